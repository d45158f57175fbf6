//! Lists of nodes as Slurm writes them: `node[1-4],big`.

use crate::value::NodeName;

/// Slurm's maximum number of nodes.
const MAX_NODES: u32 = 65_536;

/// The names of a list; `None` if a part of it is neither a name nor a range.
pub fn names(list: &str) -> Option<Vec<String>> {
    let (mut ranges, mut is_within) = (vec![String::new()], false);
    for letter in list.chars() {
        is_within = if is_within { letter != ']' } else { letter == '[' };
        match ranges.last_mut() {
            Some(range) if letter != ',' || is_within => range.push(letter),
            _ => ranges.push(String::new()),
        }
    }
    Some(ranges.iter().map(|text| range(text)).collect::<Option<Vec<_>>>()?.concat())
}

/// The names of one range such as `burst-[1-4]`, or the name itself; `None` if that is not a range and no name.
pub fn range(text: &str) -> Option<Vec<String>> {
    let is_name = |name: &String| NodeName::try_from(name.clone()).is_ok();
    expanded(text).filter(|names| names.iter().all(is_name))
}

fn expanded(text: &str) -> Option<Vec<String>> {
    let Some((prefix, list)) = text.split_once('[') else { return Some(vec![text.to_owned()]) };
    let mut names = Vec::new();
    for range in list.strip_suffix(']')?.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number =
            |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u32>().ok());
        let (from, until) = (number(first).flatten()?, number(last).flatten()?);
        if until < from || until - from >= MAX_NODES {
            return None;
        }
        // burst-[01-10] counts with leading zeros, as Slurm does.
        names.extend((from..=until).map(|number| format!("{prefix}{number:0width$}", width = first.len())));
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    #[test]
    fn expands_ranges_and_rejects_invalid_lists() {
        let expanded = |text: &str| super::names(text).map(|names| names.join(" "));
        assert_eq!(expanded("a[1-2,4],b,c[01-02]").as_deref(), Some("a1 a2 a4 b c01 c02"));
        assert_eq!(expanded("localhost").as_deref(), Some("localhost"));
        assert_eq!((expanded("a[1,b"), expanded("a,,b"), expanded("")), (None, None, None));
    }
}
