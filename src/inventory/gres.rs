//! GRES as Slurm writes them.

/// How many GPUs a Gres has: `gpu:nvidia:2(S:0,1),gpu:amd:1,mps:100` has 3. A type without a count is one.
pub fn gpus(gres: &str) -> u64 {
    let count = |item: &str| {
        // What follows a comma in a list of sockets begins with no name of a GRES.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_whatever_their_types_and_sockets() {
        for (gres, want) in [
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
            assert_eq!(gpus(gres), want, "{gres}");
        }
    }
}
