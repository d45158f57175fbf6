//! Checks of the services of a configuration as a whole.

use std::collections::{BTreeMap, BTreeSet};

use model::daemons::{DaemonName, Service};

use super::error::Fault;

/// Checks the services as a whole: names are valid and unique, `after` names exist, and no service waits for itself.
pub(super) fn check_services(services: &[Service]) -> Result<(), Fault> {
    let mut known: BTreeSet<&str> = DaemonName::ALL.into_iter().map(DaemonName::as_str).collect();
    for (index, service) in services.iter().enumerate() {
        let at = || vec!["service".into(), index.into(), "name".into()];
        if !is_service_name(&service.name) {
            let what =
                format!("`{}` is not a service name: it must start with a-z, followed by a-z, 0-9 and -", service.name);
            return Err(Fault::new(at(), what));
        }
        if !known.insert(&service.name) {
            return Err(Fault::new(at(), format!("`{}` is already the name of a daemon or service", service.name)));
        }
    }
    for (index, service) in services.iter().enumerate() {
        for (position, other) in service.after.iter().enumerate() {
            if !known.contains(other.as_str()) {
                let names = known.iter().copied().collect::<Vec<_>>().join(", ");
                let path = vec!["service".into(), index.into(), "after".into(), position.into()];
                return Err(Fault::new(path, format!("unknown name `{other}`; known: {names}")));
            }
        }
    }
    match find_dependency_cycle(services) {
        Some(index) => {
            let what = format!(
                "`{}` can never start: through `after`, it waits for itself or for a service that waits for itself",
                services[index].name
            );
            Err(Fault::new(vec!["service".into(), index.into(), "after".into()], what))
        }
        None => Ok(()),
    }
}

fn is_service_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Finds a service that can never start, by repeatedly removing the services that wait for no remaining service.
fn find_dependency_cycle(services: &[Service]) -> Option<usize> {
    let mut waiting: BTreeMap<&str, usize> =
        services.iter().enumerate().map(|(index, service)| (service.name.as_str(), index)).collect();
    loop {
        let former_count = waiting.len();
        let names: BTreeSet<&str> = waiting.keys().copied().collect();
        waiting.retain(|_, index| services[*index].after.iter().any(|other| names.contains(other.as_str())));
        if waiting.len() == former_count {
            return waiting.into_values().min();
        }
    }
}
