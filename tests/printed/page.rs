//! Parser for the code blocks of a page and the comments before them.

/// A code block that is run, written to a file or skipped.
#[derive(Debug)]
pub(crate) struct Block {
    /// Line number of the opening fence, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    /// Whether the block contains prompts and output.
    pub(crate) is_session: bool,
    pub(crate) target: Target,
    pub(crate) how: How,
}

/// How a block runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// Whether the commands must exit with an error.
    pub(crate) fails: bool,
    /// Whether the block runs at a terminal, where `exit` is then typed.
    pub(crate) tty: bool,
    /// Whether the page's cluster uses the image of the target `full`.
    pub(crate) full: bool,
}

/// The place where a block runs or is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Host,
    Container,
    BareContainer,
    /// Written to this path.
    File(String),
    /// Run by this script, which reads the block from the page.
    Script(String),
    Skip,
}

/// The page's blocks with commands or files. Other blocks are ignored.
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
            let (line, _) = lines.next().ok_or_else(|| format!("{number}: unterminated block"))?;
            if line.trim() == "```" {
                break;
            }
            text += line.get(indent..).unwrap_or_default();
            text.push('\n');
        }
        let is_commands = matches!(language, "bash" | "sh" | "shell" | "console");
        let (target, how) = match marker.take().and_then(as_marker) {
            Some(marker) => parse(marker).map_err(|why| format!("{number}: {why}"))?,
            None if is_commands => (Target::Host, How::default()),
            None => continue,
        };
        if !is_commands && !matches!(target, Target::File(_) | Target::Skip) {
            return Err(format!("{number}: a {language:?} block cannot be run; use bash, sh or console"));
        }
        blocks.push(Block { line: number, text, is_session: language == "console", target, how });
    }
    Ok(blocks)
}

fn as_marker(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix("<!-- test:")?.strip_suffix("-->")?.trim())
}

fn parse(marker: &str) -> Result<(Target, How), String> {
    if let Some(why) = marker.strip_prefix("skip") {
        return if why.trim().is_empty() {
            Err("skip needs a reason".to_owned())
        } else {
            Ok((Target::Skip, How::default()))
        };
    }
    let (mut target, mut how) = (Target::Host, How::default());
    for word in marker.split_whitespace() {
        match word.split_once('=') {
            Some(("in", "container")) => target = Target::Container,
            Some(("in", "bare")) => target = Target::BareContainer,
            Some(("file", path)) => target = Target::File(path.to_owned()),
            Some(("by", script)) => target = Target::Script(script.to_owned()),
            Some(("image", "full")) => how.full = true,
            None if word == "fails" => how.fails = true,
            None if word == "tty" => how.tty = true,
            _ => {
                let known = "in=container in=bare image=full file=PATH by=SCRIPT fails tty or skip WHY";
                return Err(format!("unknown {word:?}; expected {known}"));
            }
        }
    }
    Ok((target, how))
}

/// The commands of a session, each with the output lines below it.
pub(crate) fn session(text: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
            (None, Some((command, output))) if output.is_empty() && command.ends_with('\\') => {
                *command += &format!("\n{line}");
            }
            (None, Some((_, output))) => output.push(line.to_owned()),
            (None, None) => {}
        }
    }
    commands
}

#[test]
fn unmarked_block_runs_on_host() {
    let page = "text\n\n```bash\ntrue\n```\n```toml\na = 1\n```\n";
    let found = blocks(page).expect("a valid page");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].line, &found[0].target, found[0].text.as_str()), (3, &Target::Host, "true\n"));
}

#[test]
fn marker_applies_to_block_on_next_line() {
    let page = "<!-- test: file=job.sh -->\n```toml\na = 1\n```\n  <!-- test: in=container fails -->\n  ```sh\n  false\n  ```\n";
    let found = blocks(page).expect("a valid page");
    assert_eq!(found[0].target, Target::File("job.sh".to_owned()));
    assert_eq!((&found[1].target, found[1].how.fails, found[1].text.as_str()), (&Target::Container, true, "false\n"));
    for wrong in ["skip", "in=there", "sometimes"] {
        assert!(blocks(&format!("<!-- test: {wrong} -->\n```sh\n```\n")).is_err(), "{wrong}");
    }
    assert!(blocks("<!-- test: fails -->\n\n```sh\n```\n").is_err(), "blank line between marker and block");
    assert!(blocks("```sh\ntrue\n").is_err(), "unterminated block");
}
