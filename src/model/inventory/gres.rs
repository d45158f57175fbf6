//! GRES as Slurm writes them.

/// The number of GPUs of a Gres: `gpu:nvidia:2(S:0,1),gpu:amd:1,mps:100` has 3. A type without a count is one.
pub fn gpus(gres: &str) -> u64 {
    let count = |item: &str| {
        // Sockets of a list such as `(S:0,1)` are items too, but their names are not `gpu`.
        let mut parts = item.split('(').next().unwrap_or_default().split(':');
        if !parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gpu")) {
            return 0;
        }
        match parts.rfind(|part| *part != "no_consume") {
            Some(count) if count.bytes().all(|byte| byte.is_ascii_digit()) => count.parse().unwrap_or_default(),
            _ => 1,
        }
    };
    gres.split(',').map(count).fold(0, u64::saturating_add)
}

/// `gpu:nvidia:2(S:0-1)` is `gpu:nvidia:2`.
pub fn without_sockets(gres: &str) -> String {
    let mut pieces = gres.split("(S:");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once(')').map_or("", |(_, rest)| rest))
}

/// The sum for each name, in the order of their first appearance.
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

/// Whether a Gres has a GPU, or a part of one.
pub fn has_gpu(gres: &str) -> bool {
    gres.split(',').any(|item| matches!(item.split(':').next(), Some("gpu" | "shard" | "mps")))
}

/// Parses `gpu:nvidia:2(IDX:0-1),gpu:amd:1(IDX:4)` as 0, 1, 4. Ignores other GRES, including shards.
pub fn indices(gres: &str) -> Vec<usize> {
    let mut all = Vec::new();
    let mut rest = gres.trim();
    while let Some((name, after)) = rest.split_once("(IDX:") {
        let Some((list, next)) = after.split_once(')') else { break };
        if name.trim_start_matches(',').starts_with("gpu") {
            all.extend(list.split(',').filter_map(range).flatten());
        }
        rest = next;
    }
    all
}

/// The GPUs of which parts are in use: `shard:nvidia:2(2/4,0/4)`, `mps:50(0/100,50/100)`; in 22.05 `shard:nvidia:1(IDX:0)`. They are
/// counted as the whole GPUs are.
pub fn shared(gres: &str) -> Vec<usize> {
    let mut all = Vec::new();
    let mut rest = gres.trim();
    while let Some((name, after)) = rest.split_once('(') {
        let Some((list, next)) = after.split_once(')') else { break };
        let name = name.trim_start_matches(',');
        if name.starts_with("shard") || name.starts_with("mps") {
            match list.strip_prefix("IDX:") {
                Some(list) => all.extend(list.split(',').filter_map(range).flatten()),
                None => {
                    let is_used =
                        |part: &str| part.split('/').next().is_some_and(|used| used.parse().unwrap_or(0_u64) > 0);
                    let used = list.split(',').take(MAX_GPUS).enumerate().filter(|(_, part)| is_used(part));
                    all.extend(used.map(|(index, _)| index));
                }
            }
        }
        rest = next;
    }
    all
}

fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (last < MAX_GPUS).then_some(first..=last)
}

/// The maximum number of GPUs of a node.
pub const MAX_GPUS: usize = 256;

/// The type of each GPU by its index: `gpu:nvidia:2(S:0),gpu:amd:1` is nvidia, nvidia, amd. One without a type is "gpu".
pub fn types(gres: &str) -> Vec<&str> {
    let one = |item| {
        let mut parts = str::split(str::split(item, '(').next().unwrap_or_default(), ':').skip(1);
        let name = parts.next().filter(|part| part.parse::<u64>().is_err() && *part != "no_consume").unwrap_or("gpu");
        std::iter::repeat_n(name, usize::try_from(gpus(item)).unwrap_or(MAX_GPUS).min(MAX_GPUS))
    };
    gres.split(',').flat_map(one).take(MAX_GPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(shared("shard:nvidia:1(IDX:0-1),mps:50(0/100,0/100,0/100,50/100)"), [0, 1, 3]);
        assert_eq!(shared("shard:0(0/8)(x/,/,(1"), [0; 0]);
        assert_eq!(shared("gpu:nvidia:1(S:1),shard:nvidia:0(IDX:N/A)"), [0; 0]);
    }

    #[test]
    fn returns_type_of_each_gpu() {
        assert_eq!(types("gpu:nvidia:2(S:0,1),gpu:amd:1(S:1-3),mps:100,shard:nvidia:8"), ["nvidia", "nvidia", "amd"]);
        assert_eq!(types("gpu:gpu0:1,gpu:gpu1:1,gpu:2"), ["gpu0", "gpu1", "gpu", "gpu"]);
        assert_eq!(types("gpu:a:99999999999").len(), MAX_GPUS);
        assert_eq!(types("(null)"), [""; 0]);
    }
}
