//! Host name lookups by glibc, each in a separate process with a timeout.

use std::time::{Duration, Instant};

use sys::tool::{self, answer::Answer};

/// Timeout of one lookup. A working name server answers immediately.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a name has an address. `false` if the name server does not respond.
pub fn resolves(name: &str) -> bool {
    has_addresses(&[name], TIMEOUT)
}

/// Whether a name server resolves the name. nss-myhostname is not used, because it resolves this host's name to an address that
/// other hosts may not reach.
pub fn is_in_dns(name: &str) -> bool {
    has_addresses(&["--service=dns", name], TIMEOUT)
}

/// The names without an address. When `limit` is over, the remaining names are skipped.
pub fn unresolvable<'a>(names: impl IntoIterator<Item = &'a str>, limit: Duration) -> Vec<&'a str> {
    let deadline = Instant::now() + limit;
    let left = || deadline.saturating_duration_since(Instant::now()).min(TIMEOUT);
    let names = names.into_iter().take_while(|_| !left().is_zero());
    names.filter(|name| !has_addresses(&[name], left())).collect()
}

fn has_addresses(arguments: &[&str], limit: Duration) -> bool {
    let arguments: Vec<&str> = std::iter::once("ahosts").chain(arguments.iter().copied()).collect();
    matches!(tool::ask("getent", &arguments, limit), Answer::Ended { succeeded: true, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_names_without_an_address() {
        let names = ["localhost", "no-such-host.invalid", "127.0.0.1"];
        assert_eq!(unresolvable(names, 9 * TIMEOUT), ["no-such-host.invalid"]);
        assert!(unresolvable(names, Duration::ZERO).is_empty());
        assert!(resolves("localhost") && !resolves("no-such-host.invalid") && !is_in_dns("no-such-host.invalid"));
    }
}
