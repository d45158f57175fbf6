//! `Include` lines of the user's files.
//!
//! Slurm looks for a relative name in the directory of the installed slurm.conf, which does not contain the operator's
//! other files. So slurminit replaces such a line of an operator's file with the text of the included file. Comparison, restoration and
//! display then cover this text, too.

use std::path::{Path, PathBuf};

use super::parse::last_value;

/// The maximum include depth; deeper includes are treated as circular.
pub(super) const MAX_DEPTH: u32 = 8;

/// The text of a file, with the text of the files that it includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expanded {
    /// The text.
    pub(super) text: String,
    /// The file and the line, counted from 1, that each line comes from.
    pub(super) places: Vec<(PathBuf, usize)>,
}

/// An `Include` line whose file cannot be read, or that is circular or too deep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingInclude {
    /// The file with the line.
    pub(super) path: PathBuf,
    /// The line, counted from 1.
    pub(super) line: usize,
    /// The file name in the Include line, with `%c` replaced.
    pub(super) name: String,
    /// Why the file cannot be read; `None` if the includes are circular or too deep.
    pub(super) why: Option<String>,
}

/// Which `Include` lines are replaced by the text of their file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inlined {
    /// Lines with a relative file name.
    Relative,
    /// All lines.
    All,
}

/// Reads an included file, given the name in the `Include` line with `%c` replaced. Returns its path and text, or why it cannot be read.
pub(super) type Read<'a> = &'a dyn Fn(&str) -> Result<(PathBuf, String), String>;

impl Expanded {
    /// Replaces `Include` lines with the text that `read` returns.
    ///
    /// # Errors
    /// The first line whose file cannot be read, or that makes the includes circular or too deep.
    pub(super) fn new(path: &Path, text: &str, inlined: Inlined, read: Read<'_>) -> Result<Self, MissingInclude> {
        let mut expanded = Self::default();
        expanded.add(path, text, (inlined, read), 0)?;
        Ok(expanded)
    }

    fn add(&mut self, path: &Path, text: &str, mode: (Inlined, Read<'_>), depth: u32) -> Result<(), MissingInclude> {
        let (inlined, read) = mode;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let is_inlined = |name: &&str| inlined == Inlined::All || !Path::new(name).is_absolute();
            let Some(name) = included(line).filter(is_inlined) else {
                self.push(line, path, index + 1);
                continue;
            };
            // %c is the name of the cluster (slurm.conf(5)).
            let name = name.replace("%c", &last_value(&self.text, "ClusterName").unwrap_or_default());
            let missing = |why: Option<String>| MissingInclude {
                path: path.to_owned(),
                line: index + 1,
                name: name.clone(),
                why,
            };
            if depth >= MAX_DEPTH {
                return Err(missing(None));
            }
            let (found, text) = read(&name).map_err(|why| missing(Some(why)))?;
            self.push(&format!("# {}\n", line.trim()), path, index + 1);
            self.add(&found, &text, mode, depth + 1)?;
            if !self.text.ends_with('\n') {
                self.text.push('\n');
            }
        }
        Ok(())
    }

    fn push(&mut self, line: &str, path: &Path, number: usize) {
        self.text.push_str(line);
        self.places.push((path.to_owned(), number));
    }

    /// The file and line that a line, counted from 1, comes from.
    pub(super) fn place(&self, line: usize) -> Option<&(PathBuf, usize)> {
        self.places.get(line.checked_sub(1)?)
    }
}

/// The file name in an `Include` line; `None` for any other line.
pub(crate) fn included(line: &str) -> Option<&str> {
    let mut words = line.split('#').next()?.split_whitespace();
    words.next().filter(|word| word.eq_ignore_ascii_case("include"))?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Result<(PathBuf, String), String> {
        let text = match name {
            "nodes.conf" => "NodeName=a\nInclude more.conf",
            "more.conf" => "NodeName=b",
            "/abs.conf" => "NodeName=c\n",
            "circle.conf" => "include circle.conf",
            "lab.conf" => "NodeName=lab\n",
            _ => return Err("no such file".to_owned()),
        };
        Ok((Path::new("/config").join(name), text.to_owned()))
    }

    fn expanded(text: &str, inlined: Inlined) -> Result<Expanded, MissingInclude> {
        Expanded::new(Path::new("/config/slurm.conf"), text, inlined, &read)
    }

    #[test]
    fn inlines_relative_includes_and_tracks_line_origins() {
        let text = "ClusterName=lab\n  INCLUDE nodes.conf # all\nInclude /abs.conf\nInclude %c.conf\nA=1";
        let found = expanded(text, Inlined::Relative).unwrap();
        let lines: Vec<&str> = found.text.lines().collect();
        assert_eq!(
            lines[1..6],
            ["# INCLUDE nodes.conf # all", "NodeName=a", "# Include more.conf", "NodeName=b", "Include /abs.conf"]
        );
        assert_eq!(lines[7..], ["NodeName=lab", "A=1"]);
        let place = |line| found.place(line).map(|(path, line)| (path.to_str().unwrap(), *line));
        assert_eq!(place(5), Some(("/config/more.conf", 1)));
        assert_eq!(place(9), Some(("/config/slurm.conf", 5)));
        assert_eq!(place(10), None);
        assert!(expanded(text, Inlined::All).unwrap().text.contains("NodeName=c\n"));
    }

    #[test]
    fn keeps_text_without_includes() {
        let text = "# Include x\nIncludes=1\r\nA=1";
        assert_eq!(expanded(text, Inlined::All).unwrap().text, text);
    }

    #[test]
    fn reports_line_of_unreadable_include() {
        let missing = expanded("A=1\nInclude x.conf\n", Inlined::Relative).unwrap_err();
        assert_eq!((missing.line, missing.name.as_str()), (2, "x.conf"));
        assert_eq!(missing.why.as_deref(), Some("no such file"));
        let circular = expanded("Include circle.conf\n", Inlined::Relative).unwrap_err();
        assert_eq!((circular.name.as_str(), circular.why), ("circle.conf", None));
    }
}
