//! Slurm's lists of names, such as `node[1-4],big`, and of files, such as `/dev/nvidia[0-7]`.

use crate::value::NodeName;

/// Slurm's maximum number of nodes. A range with more numbers is not expanded.
const MAX_NODES: u32 = 65_536;

/// The names of a list of nodes; `None` if a part of it is neither a name nor a range.
pub fn names(list: &str) -> Option<Vec<String>> {
    let names = expand(list);
    let is_name = |name: &String| NodeName::try_from(name.clone()).is_ok();
    (items(list).all(|item| !item.is_empty()) && names.iter().all(is_name)).then_some(names)
}

/// The names of one range such as `burst-[1-4]`, or a single name; `None` for a list, and for an invalid name or range.
pub fn range(text: &str) -> Option<Vec<String>> {
    (items(text).count() == 1).then(|| names(text))?
}

/// The individual names in a list of names or files. An invalid range is kept verbatim.
pub fn expand(list: &str) -> Vec<String> {
    let mut all = Vec::new();
    for item in items(list).filter(|item| !item.is_empty()) {
        expand_item(item, "", &mut all);
    }
    all
}

/// Whether the list contains this name. The list `ALL` contains every name.
pub fn contains(list: &str, name: &str) -> bool {
    list == "ALL" || list == name || expand(list).iter().any(|item| item == name)
}

/// The items of the list, separated by commas outside of brackets.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// Expands the first range of `item`, then recursively the ranges after it. `start` is the prefix of each name.
fn expand_item(item: &str, start: &str, all: &mut Vec<String>) {
    if all.len() >= MAX_NODES as usize {
        return;
    }
    let parts = item.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once(']')?)));
    let Some((before, (ranges, after))) = parts else { return all.push(format!("{start}{item}")) };
    for range in ranges.split(',') {
        match bounds(range) {
            // The numbers of burst-[01-10] have leading zeros.
            Some((first, last, width)) => {
                (first..=last).for_each(|number| expand_item(after, &format!("{start}{before}{number:0width$}"), all));
            }
            None => all.push(format!("{start}{before}[{range}]{after}")),
        }
    }
}

/// The first and last number of a range, and the minimum number of digits.
fn bounds(range: &str) -> Option<(u32, u32, usize)> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    let (from, until): (u32, u32) = (number(first)?, number(last)?);
    (from <= until && until - from < MAX_NODES).then_some((from, until, first.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_ranges_and_rejects_invalid_lists() {
        let expanded = |text: &str| names(text).map(|names| names.join(" "));
        assert_eq!(expanded("a[1-2,4],b,c[01-02]").as_deref(), Some("a1 a2 a4 b c01 c02"));
        assert_eq!(expanded("localhost").as_deref(), Some("localhost"));
        for invalid in ["a[1,b", "a,,b", "", "a[2-1]", "a[x]", "a[0-70000]"] {
            assert_eq!(expanded(invalid), None, "{invalid}");
        }
        assert_eq!(
            expanded("a[70000-70001]").as_deref(),
            Some("a70000 a70001"),
            "the count is limited, not the numbers"
        );
        assert_eq!((range("a[1-2]").map(|names| names.len()), range("a,b"), range("")), (Some(2), None, None));
    }

    #[test]
    fn expands_ranges_of_devices_and_hosts() {
        assert_eq!(expand("/dev/nvidia[0-2,7]").len(), 4);
        assert_eq!(expand("/dev/a,/dev/b[1-2]"), ["/dev/a", "/dev/b1", "/dev/b2"]);
        assert_eq!(expand("/dev/x[0-4294967295]"), ["/dev/x[0-4294967295]"]);
        assert_eq!(expand("n[08-10]"), ["n08", "n09", "n10"]);
        assert_eq!(expand("r[1-2]n[1-2],x"), ["r1n1", "r1n2", "r2n1", "r2n2", "x"]);
        assert!(expand("a[0-4095]b[0-4095]c[0-4095]").len() <= 2 * MAX_NODES as usize);
    }

    #[test]
    fn contains_matches_whole_names_in_ranges() {
        assert!(contains("dgx[1-4]", "dgx2") && contains("a,b", "b") && contains("ALL", "x"));
        assert!(!contains("dgx[1-4]", "dgx5") && !contains("dgx[1-4]", "dgx") && !contains("dgx1", "dgx10"));
    }
}
