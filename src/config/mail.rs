//! Slurm's job mail.

use serde::{Deserialize, Serialize};

/// Slurm's job mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mail {
    /// The mail server to use; without one, no mail is sent.
    pub relay: Option<Relay>,
    /// The sender; `None` means slurm at this host.
    pub from: Option<Address>,
}

/// A mail server: `mail.example.org:25`. The port may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Relay(String);

impl TryFrom<String> for Relay {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = || format!("`{}` is no mail server: want HOST or HOST:PORT", text.escape_default());
        let (host, port) = text.rsplit_once(':').unwrap_or((&text, "25"));
        let is_host = |host: &str| {
            !host.is_empty()
                && host.len() <= 253
                && !host.starts_with('-')
                && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
        };
        match port.parse::<u16>() {
            Ok(port) if port > 0 && is_host(host) => Ok(Self(format!("{host}:{port}"))),
            _ => Err(wrong()),
        }
    }
}

model::text_type!(Relay);

/// A mail address, with or without a domain. Stricter than the standard: no character that is special to a command, a
/// mail header or a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Address(String);

model::text_type!(Address, "`{}` is no mail address that is taken: want NAME@DOMAIN", |text| {
    let is_word = |word: &str, more: &str| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        !word.is_empty() && !word.starts_with('-') && word.chars().all(is_good)
    };
    text.len() <= 254
        && match text.split_once('@') {
            Some((name, domain)) => is_word(name, "._+=-") && is_word(domain, ".-"),
            None => is_word(text, "._+=-"),
        }
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_a_host_and_a_port() {
        for (text, expected) in [
            ("mail", Some("mail:25")),
            ("mail.example.org:587", Some("mail.example.org:587")),
            ("10.0.0.1:2525", Some("10.0.0.1:2525")),
            ("", None),
            (":25", None),
            ("mail:0", None),
            ("mail:x", None),
            ("-o", None),
            ("a b", None),
            ("a'b", None),
        ] {
            assert_eq!(
                Relay::try_from(text.to_owned()).ok().map(|relay| relay.to_string()).as_deref(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn an_address_says_nothing_to_a_server_or_a_shell() {
        for good in ["alice", "alice.b+slurm@example.org", "a_b@x-y.z"] {
            assert!(Address::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in
            ["", "@x", "a@", "a@b@c", "a b", "a>\r\nRCPT TO:<b", "-f", "a@-x", "$(id)", "`id`", "a'b", "ä@x", "<a@b>"]
        {
            assert!(Address::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
