//! Unknown `SLURMINIT_*` variables, usually misspelled ones.

use model::inventory::{Finding, Kind};

use super::VARIABLES;
use super::layers::is_service_address;

/// Known variables that do not set a configuration key.
const OTHERS: [&str; 7] = [
    "SLURMINIT_CONFIG",
    "SLURMINIT_DEMO",
    "SLURMINIT_IMAGE",
    "SLURMINIT_JOIN",
    "SLURMINIT_MUNGE_KEY",
    "SLURMINIT_NVML_LIBRARY",
    "SLURMINIT_TOML",
];

/// All known `SLURMINIT_*` variables.
fn known() -> impl Iterator<Item = &'static str> {
    let of_keys = VARIABLES.iter().map(|variable| variable.name).filter(|name| name.starts_with("SLURMINIT_"));
    of_keys.chain(OTHERS)
}

/// Warnings about unknown variables, and about known variables that Kubernetes replaced. They do not prevent a start,
/// because a service in the container may use such a variable.
pub fn unknown_variables<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Finding> {
    let finding = |(name, value): (&str, &str)| {
        if VARIABLES.iter().any(|variable| variable.name == name) && is_service_address(value) {
            return Some(Finding::warning(
                Kind::Settings,
                format!("ignoring the environment variable {name}: its value is the address of a Kubernetes Service"),
                "Kubernetes sets variables that begin with the name of a Service, and replaces those of the image",
                "set enableServiceLinks: false for the pod, or rename the Service",
            ));
        }
        let is_unknown = name.starts_with("SLURMINIT_") && !known().any(|known| known == name) && !is_of_platform(name);
        is_unknown.then(|| {
            Finding::warning(
                Kind::Settings,
                format!("unknown environment variable {name}"),
                "slurminit has no such variable",
                match nearest(name) {
                    Some(known) => format!("rename it to {known}, or remove it"),
                    None => format!("remove it, or use one of {}", known().collect::<Vec<_>>().join(", ")),
                },
            )
        })
    };
    variables.into_iter().filter_map(finding).collect()
}

/// Whether the name has the form of a variable that Kubernetes or Docker links derive from the name of a service: a
/// service may be called slurminit.
fn is_of_platform(name: &str) -> bool {
    let word = |part: &str| name.ends_with(part) || name.contains(&format!("{part}_"));
    word("_SERVICE_HOST") || word("_SERVICE_PORT") || word("_PORT") || name == "SLURMINIT_NAME"
}

/// The most similar known variable, if it is similar enough.
fn nearest(name: &str) -> Option<&'static str> {
    let (distance, known) = known().map(|known| (strsim::levenshtein(name, known), known)).min()?;
    (distance <= 3).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_name_for_misspelled_variable() {
        let names = ["SLURMINIT_ROL", "SLURMINIT_LOGLEVEL", "SLURMINIT_API_HOST", "PATH", "SLURMINIT_ROLE"];
        let found = unknown_variables(names.map(|name| (name, "x")));
        let texts: Vec<String> = found.iter().map(|finding| format!("{}: {}", finding.what, finding.fix)).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(
            texts[0].contains("unknown environment variable SLURMINIT_ROL")
                && texts[0].contains("rename it to SLURMINIT_ROLE,"),
            "{texts:?}"
        );
        assert!(texts[1].contains("rename it to SLURMINIT_LOG_LEVEL,"), "{texts:?}");
        assert!(texts[2].contains("or use one of SLURMINIT_ROLE, "), "{texts:?}");
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
        assert_eq!(unknown_variables(service_variables.map(|name| (name, "tcp://10.0.0.1:6817"))), []);
    }

    #[test]
    fn names_known_variable_with_address_of_service() {
        let found = unknown_variables([("LOGIN_PORT", "tcp://10.0.0.1:22"), ("LOGIN_PORT", "22")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("LOGIN_PORT"), "{found:?}");
    }

    #[test]
    fn every_variable_in_example_is_known() {
        let words = crate::EXAMPLE.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        for word in words.filter(|word| word.starts_with("SLURMINIT_")) {
            assert!(known().any(|known| known == word), "{word}");
        }
    }
}
