//! GRES lists in Slurm's format.

/// An item of a GRES list: `gpu:nvidia:2(IDX:0-1)`, `gpu`, `bandwidth:lustre:no_consume:4G`.
struct Item<'a> {
    name: &'a str,
    /// The parts after the name, without flags.
    parts: Vec<&'a str>,
    /// The texts in parentheses: `S:0,1`, `IDX:0-1`, `2/4,0/4`.
    details: Vec<&'a str>,
}

impl<'a> Item<'a> {
    fn parse(text: &'a str) -> Self {
        let (head, tail) = text.split_at(text.find('(').unwrap_or(text.len()));
        let mut parts = head.split(':').map(str::trim).filter(|part| *part != "no_consume");
        let name = parts.next().unwrap_or_default();
        Self { name, parts: parts.collect(), details: tail.split(['(', ')']).filter(|text| !text.is_empty()).collect() }
    }

    fn is_gpu(&self) -> bool {
        self.name.eq_ignore_ascii_case("gpu")
    }

    fn is_shared_gpu(&self) -> bool {
        matches!(self.name, "shard" | "mps")
    }

    /// The item's count; 1 if it is omitted.
    fn count(&self) -> u64 {
        match self.parts.last() {
            Some(count) if count.bytes().all(|byte| byte.is_ascii_digit()) => count.parse().unwrap_or_default(),
            _ => 1,
        }
    }
}

/// The items, separated by commas outside of parentheses.
fn items(gres: &str) -> impl Iterator<Item = Item<'_>> {
    let mut depth = 0_u32;
    let is_separator = move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    gres.split(is_separator).map(Item::parse)
}

/// The number of GPUs in a GRES list: 3 for `gpu:nvidia:2(S:0,1),gpu:amd:1,mps:100`.
pub fn gpus(gres: &str) -> u64 {
    items(gres).filter(Item::is_gpu).map(|item| item.count()).fold(0, u64::saturating_add)
}

/// Removes the sockets: `gpu:nvidia:2(S:0-1)` becomes `gpu:nvidia:2`.
pub fn without_sockets(gres: &str) -> String {
    let mut pieces = gres.split("(S:");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once(')').map_or("", |(_, rest)| rest))
}

/// Adds up the counts of each name, in order of first appearance.
pub fn counted<T: PartialEq>(named: impl IntoIterator<Item = (T, usize)>) -> Vec<(T, usize)> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for (name, more) in named {
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += more,
            None => counts.push((name, more)),
        }
    }
    counts
}

/// Whether a GRES list contains a GPU or a part of one.
pub fn has_gpu(gres: &str) -> bool {
    items(gres).any(|item| item.is_gpu() || item.is_shared_gpu())
}

/// Parses `gpu:nvidia:2(IDX:0-1),gpu:amd:1(IDX:4)` as 0, 1, 4. Ignores other GRES, including shards.
pub fn indices(gres: &str) -> Vec<usize> {
    let lists = items(gres).filter(Item::is_gpu).flat_map(|item| item.details);
    lists
        .filter_map(|list| list.strip_prefix("IDX:"))
        .flat_map(|list| list.split(',').filter_map(range))
        .flatten()
        .collect()
}

/// The indices of the GPUs whose shards or MPS shares are in use: 0 for `shard:nvidia:2(2/4,0/4)`, 1 for `mps:50(0/100,50/100)`.
pub fn shared(gres: &str) -> Vec<usize> {
    shares(gres).into_iter().map(|(index, _)| index).collect()
}

/// The indices of the GPUs whose shards or MPS shares are in use, and the used part in ppm: half of GPU 0 for `shard:nvidia:2(2/4,0/4)`.
pub fn shares(gres: &str) -> Vec<(usize, u32)> {
    let share = |(index, part): (usize, &str)| {
        let (used, total) = part.split_once('/')?;
        let (used, total) = (used.parse::<u64>().ok().filter(|used| *used > 0)?, total.parse::<u64>().unwrap_or(1));
        let ppm = used.saturating_mul(1_000_000).checked_div(total).unwrap_or(1_000_000).min(1_000_000);
        Some((index, u32::try_from(ppm).unwrap_or(1_000_000)))
    };
    let lists = items(gres).filter(Item::is_shared_gpu).flat_map(|item| item.details);
    lists.flat_map(|list| list.split(',').take(MAX_GPUS).enumerate().filter_map(share)).collect()
}

fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (last < MAX_GPUS).then_some(first..=last)
}

/// The maximum number of GPUs of a node.
pub const MAX_GPUS: usize = 256;

/// The type of each GPU by its index: `gpu:nvidia:2(S:0),gpu:amd:1` is nvidia, nvidia, amd. A GPU without a type is listed as "gpu".
pub fn types<'a>(gres: &'a str) -> Vec<&'a str> {
    let of_item = |item: Item<'a>| {
        let name = item.parts.first().copied().filter(|part| part.parse::<u64>().is_err()).unwrap_or("gpu");
        std::iter::repeat_n(name, usize::try_from(item.count()).unwrap_or(MAX_GPUS).min(MAX_GPUS))
    };
    items(gres).filter(Item::is_gpu).flat_map(of_item).take(MAX_GPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_no_part_of_a_gres() {
        for (gres, expected) in [
            ("gpu:nvidia:2(S:0-1)", "gpu:nvidia:2"),
            ("gpu:a:1(S:0),gpu:b:2(S:1),lic:1", "gpu:a:1,gpu:b:2,lic:1"),
            ("gpu:nvidia:2(IDX:0-1)", "gpu:nvidia:2(IDX:0-1)"),
            ("(null)", "(null)"),
        ] {
            assert_eq!(without_sockets(gres), expected);
        }
    }

    #[test]
    fn part_of_a_gpu_is_a_gpu() {
        for gres in ["gpu", "gpu:nvidia:2(S:0)", "shard:4", "lic:1,mps:50"] {
            assert!(has_gpu(gres), "{gres}");
        }
        for gres in ["", "lic:1", "gpus:1", "bandwidth:lustre:no_consume:4G"] {
            assert!(!has_gpu(gres), "{gres}");
        }
    }

    #[test]
    fn counts_gpus_of_all_types_and_sockets() {
        for (gres, expected) in [
            ("(null)", 0),
            ("", 0),
            ("gpu:2", 2),
            ("license:4", 0),
            ("gpu:nvidia:2(S:0-1)", 2),
            ("gpu:a:1(S:0,2),gpu:b:3", 4),
            ("gpu:nvidia:2(S:0)", 2),
            ("gpu:nvidia:2(S:0,1),gpu:amd:1(S:1-3),mps:100", 3),
            ("gpu:gpu0:1,gpu:gpu1:1", 2),
            ("gpu:nvidia_h200_1g.18gb:7", 7),
            ("gpu:nvidia:2,gpu,gpu:3(S:0),shard:8,gpu:a100", 7),
            ("gpux:2,shard:8", 0),
            ("gpu:99999999999999999999", 0),
        ] {
            assert_eq!(gpus(gres), expected, "{gres}");
        }
    }

    #[test]
    fn distinguishes_shared_from_whole_gpus() {
        let used = "gpu:nvidia:1(IDX:1),shard:nvidia:3(2/4,0/4,1/4)";
        assert_eq!((indices(used), shared(used)), (vec![1], vec![0, 2]));
        assert_eq!(shares(used), [(0, 500_000), (2, 250_000)]);
        assert_eq!(shared("mps:50(0/100,0/100,0/100,50/100)"), [3]);
        assert_eq!(shared("shard:0(0/8)(x/,/,(1"), [0; 0]);
        assert_eq!(shared("gpu:nvidia:1(S:1),shard:nvidia:0(IDX:N/A)"), [0; 0]);
    }

    #[test]
    fn other_gres_and_order_do_not_change_gpus_in_use() {
        let items = [
            "gpu:nvidia:2(S:0,1)(IDX:0,2)",
            "tmpdir:10",
            "shard:nvidia:3(0/4,2/4)",
            "gpu:amd:1(IDX:4)",
            "fpga:1(IDX:7)",
        ];
        for first in 0..items.len() {
            for second in (0..items.len()).filter(|second| *second != first) {
                let mut order = vec![items[first], items[second]];
                order.extend(items.iter().filter(|item| **item != items[first] && **item != items[second]));
                let gres = order.join(",");
                let mut used = indices(&gres);
                used.sort_unstable();
                assert_eq!((used, shared(&gres), gpus(&gres)), (vec![0, 2, 4], vec![1], 3), "{gres}");
            }
        }
    }

    #[test]
    fn returns_type_of_each_gpu() {
        assert_eq!(types("gpu:nvidia:2(S:0,1),gpu:amd:1(S:1-3),mps:100,shard:nvidia:8"), ["nvidia", "nvidia", "amd"]);
        assert_eq!(types("gpu:gpu0:1,gpu:gpu1:1,gpu:2"), ["gpu0", "gpu1", "gpu", "gpu"]);
        assert_eq!(types("gpu:a:99999999999").len(), MAX_GPUS);
        assert_eq!(types("(null)"), [""; 0]);
    }
}
