//! A page's blocks of code, and what the comment before each says.

/// A block that is to be run or written.
#[derive(Debug)]
pub(crate) struct Block {
    /// Of its fence, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    /// Whether it shows prompts and what the commands print.
    pub(crate) is_session: bool,
    pub(crate) how: How,
    /// Whether it contains commands, and is not a file.
    pub(crate) is_commands: bool,
    /// Whether its commands end with an error.
    pub(crate) fails: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum How {
    OnTheHost,
    InTheContainer,
    InABareContainer,
    /// The path.
    File(String),
    Skip,
}

/// The blocks of commands and of files; others only show something.
pub(crate) fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().zip(1..);
    let mut marker = None;
    while let Some((line, number)) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some(language) = line.trim_start().strip_prefix("```") else {
            if let Some(stray) = marker.replace(line).and_then(as_marker) {
                return Err(format!("{}: no block follows <!-- test: {stray} -->", number - 1));
            }
            continue;
        };
        let mut text = String::new();
        loop {
            let (line, _) = lines.next().ok_or_else(|| format!("{number}: the block does not end"))?;
            if line.trim() == "```" {
                break;
            }
            text += line.get(indent..).unwrap_or_default();
            text.push('\n');
        }
        let is_commands = matches!(language, "bash" | "sh" | "shell" | "console");
        let (how, fails) = match marker.take().and_then(as_marker) {
            Some(marker) => parse(marker).map_err(|why| format!("{number}: {why}"))?,
            None if is_commands => (How::OnTheHost, false),
            None => continue,
        };
        if !is_commands && !matches!(how, How::File(_) | How::Skip) {
            return Err(format!("{number}: a block of {language:?} is no commands; bash, sh or console is"));
        }
        let is_commands = is_commands && !matches!(how, How::File(_));
        blocks.push(Block { line: number, text, is_session: language == "console", how, is_commands, fails });
    }
    Ok(blocks)
}

fn as_marker(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix("<!-- test:")?.strip_suffix("-->")?.trim())
}

fn parse(marker: &str) -> Result<(How, bool), String> {
    if let Some(why) = marker.strip_prefix("skip") {
        return if why.trim().is_empty() { Err("skip says why".to_owned()) } else { Ok((How::Skip, false)) };
    }
    let (mut how, mut fails) = (How::OnTheHost, false);
    for word in marker.split_whitespace() {
        match word.split_once('=') {
            Some(("in", "container")) => how = How::InTheContainer,
            Some(("in", "bare")) => how = How::InABareContainer,
            Some(("file", path)) => how = How::File(path.to_owned()),
            None if word == "fails" => fails = true,
            _ => return Err(format!("{word:?} is none of: in=container in=bare file=PATH fails, skip WHY")),
        }
    }
    Ok((how, fails))
}

/// A command of a session, and the lines that it shows below it.
pub(crate) fn session(text: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
            (None, Some((command, shown))) if shown.is_empty() && command.ends_with('\\') => {
                *command += &format!("\n{line}");
            }
            (None, Some((_, shown))) => shown.push(line.to_owned()),
            (None, None) => {}
        }
    }
    commands
}

#[test]
fn types_unmarked_block_on_host() {
    let page = "text\n\n```bash\ntrue\n```\n```toml\na = 1\n```\n";
    let found = blocks(page).expect("a good page");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].line, &found[0].how, found[0].text.as_str()), (3, &How::OnTheHost, "true\n"));
}

#[test]
fn marker_is_for_next_line() {
    let page = "<!-- test: file=job.sh -->\n```toml\na = 1\n```\n  <!-- test: in=container fails -->\n  ```sh\n  false\n  ```\n";
    let found = blocks(page).expect("a good page");
    assert_eq!(found[0].how, How::File("job.sh".to_owned()));
    assert_eq!((&found[1].how, found[1].fails, found[1].text.as_str()), (&How::InTheContainer, true, "false\n"));
    for wrong in ["skip", "in=there", "sometimes"] {
        assert!(blocks(&format!("<!-- test: {wrong} -->\n```sh\n```\n")).is_err(), "{wrong}");
    }
    assert!(blocks("<!-- test: fails -->\n\n```sh\n```\n").is_err(), "a blank line between");
    assert!(blocks("```sh\ntrue\n").is_err(), "without an end");
}
