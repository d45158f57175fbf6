//! Compares the output on a page with the actual output. Ignores numbers, times and the widths of columns and bars, as
//! they vary with time and machine.

/// Describes the first line that differs, if any.
pub(crate) fn difference(shown: &[String], printed: &str) -> Option<String> {
    let shown: Vec<String> = shown.iter().map(|line| shape(line)).filter(|line| !line.is_empty()).collect();
    let printed: Vec<String> = printed.lines().map(shape).filter(|line| !line.is_empty()).collect();
    if matches(&shown, &printed) {
        return None;
    }
    let at = shown.iter().zip(&printed).take_while(|(shown, printed)| shown == printed).count();
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "nothing".to_owned());
    Some(format!("the page shows {:?}, the command printed {:?}", line(&shown), line(&printed)))
}

fn matches(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((any, rest)) if any == "..." => (0..=printed.len()).any(|from| matches(rest, &printed[from..])),
        Some((first, rest)) => printed.split_first().is_some_and(|(line, more)| first == line && matches(rest, more)),
    }
}

/// Normalizes a line: `up 3h 4m` and `up 12s` become `up T`, `1.2 MiB` becomes `N MiB`, `=====` becomes `=`.
fn shape(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let word = normalize_numbers(word);
        let is_time = matches!(word.as_str(), "Nd" | "Nh" | "Nm" | "Ns");
        let word = if is_time { "T".to_owned() } else { word };
        if !(word == "T" && words.last().is_some_and(|last| last == "T")) {
            words.push(word);
        }
    }
    words.join(" ")
}

fn normalize_numbers(word: &str) -> String {
    let mut shape = String::new();
    for c in word.chars() {
        match c {
            '0'..='9' if shape.ends_with('N') => {}
            '0'..='9' if shape.ends_with("N.") => drop(shape.pop()),
            '0'..='9' => shape.push('N'),
            '-' | '=' if shape.ends_with(c) => {}
            c => shape.push(c),
        }
    }
    shape
}

#[test]
fn ignores_numbers_times_and_bar_widths() {
    for (one, other) in [
        ("slurminit 0.1.0 · up 3h 4m · ready", "slurminit 0.1.0 · up 12s · ready"),
        ("munged   ready   18   4s   0   3.4 MiB -", "munged ready 7 1m 2s 0 10 MiB -"),
        ("munged 226.5 329.2   =====", "munged 9.5 7 =="),
    ] {
        assert_eq!(shape(one), shape(other));
    }
    assert_ne!(shape("slurmd ready"), shape("slurmd starting"));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(difference(&lines("a\n...\nc 1"), "a\nb\nb\nc 22"), None);
    assert!(difference(&lines("a\nc"), "a\nb\nc").is_some_and(|why| why.contains("\"c\"")));
}
