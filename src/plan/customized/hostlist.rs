//! Slurm's hostlists: `dgx[1-4],login` and `/dev/nvidia[0-7]`.

/// The largest range that is expanded; a larger one is treated as a typing error.
const MAX_RANGE: u32 = 4096;
/// The maximum number of names from one list.
const MAX_NAMES: usize = 1 << 16;

/// Expands `/dev/nvidia[0-3,5]` and `a,b[01-12]` to single names.
pub(super) fn expand(list: &str) -> Vec<String> {
    let mut all = Vec::new();
    for item in items(list) {
        expand_item(item, &mut all);
    }
    all
}

/// Whether the list has this name. `ALL` has every name.
pub(super) fn contains(list: &str, name: &str) -> bool {
    list == "ALL" || list == name || expand(list).iter().any(|item| item == name)
}

/// The items, which commas outside of brackets separate.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let split = move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.split(split).filter(|item| !item.is_empty())
}

/// Expands the first range; those after it are expanded with each of its names.
fn expand_item(item: &str, all: &mut Vec<String>) {
    if all.len() >= MAX_NAMES {
        return;
    }
    let Some((before, (inside, after))) =
        item.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once(']')?)))
    else {
        return all.push(item.to_owned());
    };
    for part in inside.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.trim(), to.trim());
        match (from.parse::<u32>(), to.parse::<u32>()) {
            (Ok(first), Ok(last)) if last.saturating_sub(first) < MAX_RANGE => {
                // Leading zeros are part of a name: n[08-10] is n08, n09, n10.
                let width = from.len();
                (first..=last).for_each(|number| expand_item(&format!("{before}{number:0width$}{after}"), all));
            }
            _ => all.push(format!("{before}{part}{after}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_ranges_of_devices_and_hosts() {
        assert_eq!(expand("/dev/nvidia[0-2,7]").len(), 4);
        assert_eq!(expand("/dev/a,/dev/b[1-2]"), ["/dev/a", "/dev/b1", "/dev/b2"]);
        assert_eq!(expand("/dev/x[0-4294967295]").len(), 1);
        assert_eq!(expand("n[08-10]"), ["n08", "n09", "n10"]);
        assert_eq!(expand("r[1-2]n[1-2],x"), ["r1n1", "r1n2", "r2n1", "r2n2", "x"]);
        assert!(expand("a[0-4095]b[0-4095]c[0-4095]").len() <= 2 * MAX_NAMES);
    }

    #[test]
    fn contains_matches_whole_names_in_ranges() {
        assert!(contains("dgx[1-4]", "dgx2") && contains("a,b", "b") && contains("ALL", "x"));
        assert!(!contains("dgx[1-4]", "dgx5") && !contains("dgx[1-4]", "dgx") && !contains("dgx1", "dgx10"));
    }
}
