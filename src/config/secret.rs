//! Which keys hold secrets. Their values are never printed.

/// Keys of slurm.conf and slurmdbd.conf that hold a password (slurm.conf(5), slurmdbd.conf(5)), or a URL that may contain one (JobCompLoc of
/// jobcomp/elasticsearch).
const SLURM_KEYS: [&str; 4] = ["AccountingStoragePass", "JobCompLoc", "JobCompPass", "StoragePass"];

/// Whether the value at this dotted key may be a secret: `notify[0].url`, `service[0].env.TOKEN`, `slurm.conf.JobCompPass`.
pub fn is_secret(key: &str) -> bool {
    key.split(['.', '[']).any(is_secret_name)
}

/// Whether a key of this name, in any table, may be a secret.
fn is_secret_name(name: &str) -> bool {
    ["env", "url"].contains(&name) || SLURM_KEYS.iter().any(|secret| secret.eq_ignore_ascii_case(name))
}

/// The part of a line of slurminit.toml that may be printed. `key`: the key that the line sets; empty if unknown, as in a file that is not
/// TOML.
pub(super) fn printable_part<'a>(line: &'a str, key: &str) -> &'a str {
    // An inline table sets several keys. If the file is not TOML, the table that contains the line is unknown: the line may set a program's variable.
    let is_hidden = match key {
        "" => !line.starts_with('['),
        key => is_secret(key) || line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(is_secret_name),
    };
    let end = if is_hidden { line.find('=').map_or(0, |equals| equals + 1) } else { line.len() };
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keys_of_secrets() {
        for secret in [
            "notify[1].url",
            "service[0].env.TOKEN",
            "daemon.slurmd.env",
            "slurm.conf.jobcomppass",
            "slurm.conf.JobCompLoc",
        ] {
            assert!(is_secret(secret), "{secret}");
        }
        for key in [
            "",
            "notify[0].url_file",
            "slurm.conf.JobCompType",
            "gpu.only",
            "environment",
            "accounting.password_secret",
        ] {
            assert!(!is_secret(key), "{key}");
        }
    }
}
