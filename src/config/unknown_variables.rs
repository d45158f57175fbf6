//! Unknown `SLURMINIT_*` variables, usually misspelled ones.

use model::inventory::{Finding, Kind};

/// All known variables, wherever they are read.
const KNOWN: [&str; 24] = [
    "SLURMINIT_ACCOUNTING",
    "SLURMINIT_CLUSTER_NAME",
    "SLURMINIT_CONFIG",
    "SLURMINIT_CONTROLLER",
    "SLURMINIT_DEMO",
    "SLURMINIT_GPU_TYPE",
    "SLURMINIT_GPU_TYPE_NAME",
    "SLURMINIT_GRES",
    "SLURMINIT_IMAGE",
    "SLURMINIT_JOIN",
    "SLURMINIT_LOG_FORMAT",
    "SLURMINIT_LOG_LEVEL",
    "SLURMINIT_METRICS",
    "SLURMINIT_MUNGE_KEY",
    "SLURMINIT_NODE_NAME",
    "SLURMINIT_NVML_LIBRARY",
    "SLURMINIT_ON_GIVE_UP",
    "SLURMINIT_ON_MISMATCH",
    "SLURMINIT_RESERVE_MIB",
    "SLURMINIT_ROLE",
    "SLURMINIT_STOP_TIMEOUT",
    "SLURMINIT_NODES",
    "SLURMINIT_TOML",
    "SLURMINIT_WAIT_JOBS",
];

/// Findings about unknown variables among `names`. They do not prevent a start: a service may have such a variable of
/// its own.
pub fn unknown_variables<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Finding> {
    let is_unknown = |name: &&str| name.starts_with("SLURMINIT_") && !KNOWN.contains(name) && !is_of_platform(name);
    let finding = |name: &str| {
        Finding::warning(
            Kind::Settings,
            format!("unknown environment variable {name}"),
            "slurminit has no such variable",
            match nearest(name) {
                Some(known) => format!("use {known} if intended"),
                None => format!("remove it, or use one of {}", KNOWN.join(", ")),
            },
        )
    };
    names.into_iter().filter(is_unknown).map(finding).collect()
}

/// Kubernetes and Docker links derive variables from a service's name, and a service may be called slurminit.
fn is_of_platform(name: &str) -> bool {
    let word = |part: &str| name.ends_with(part) || name.contains(&format!("{part}_"));
    word("_SERVICE_HOST") || word("_SERVICE_PORT") || word("_PORT") || name == "SLURMINIT_NAME"
}

/// The most similar known variable, if it is similar enough.
fn nearest(name: &str) -> Option<&'static str> {
    let (distance, known) = KNOWN.iter().map(|known| (strsim::levenshtein(name, known), *known)).min()?;
    (distance <= 3).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_name_for_misspelled_variable() {
        let found =
            unknown_variables(["SLURMINIT_ROL", "SLURMINIT_LOGLEVEL", "SLURMINIT_API_HOST", "PATH", "SLURMINIT_ROLE"]);
        let texts: Vec<String> = found.iter().map(|finding| format!("{}: {}", finding.what, finding.repair)).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(
            texts[0].contains("unknown environment variable SLURMINIT_ROL") && texts[0].contains("use SLURMINIT_ROLE "),
            "{texts:?}"
        );
        assert!(texts[1].contains("use SLURMINIT_LOG_LEVEL "), "{texts:?}");
        assert!(texts[2].contains("or use one of SLURMINIT_ACCOUNTING, "), "{texts:?}");
    }

    #[test]
    fn ignores_service_variables_of_platform() {
        let service_variables = [
            "SLURMINIT_SERVICE_HOST",
            "SLURMINIT_SERVICE_PORT_SLURMCTLD",
            "SLURMINIT_PORT",
            "SLURMINIT_PORT_6817_TCP_ADDR",
            "SLURMINIT_API_PORT_8000_TCP",
        ];
        assert_eq!(unknown_variables(service_variables), []);
    }

    #[test]
    fn every_variable_in_example_is_known() {
        let words = crate::EXAMPLE.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        for word in words.filter(|word| word.starts_with("SLURMINIT_")) {
            assert!(KNOWN.contains(&word), "{word}");
        }
    }
}
