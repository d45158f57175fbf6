//! Parses the arguments of a step from the command that slurmstepd wrote.
//!
//! slurmstepd puts the arguments into the text of a shell command, for `%@` in oci.conf, and quotes them wrongly: in
//! every release from 24.11 to 26.05 an apostrophe becomes `'"'"''`, which has an apostrophe too many (`_pattern_argv`
//! of container.c). The shell would read arguments other than the user's, or fail. So oci.conf has slurmstepd put them
//! into a comment of the command, and this module reverses slurmstepd's encoding.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// The text in oci.conf before the arguments. The text before this mark is fixed, so the first occurrence is the mark.
pub(super) const MARK: &[u8] = b"# slurminit ";
/// slurmstepd's encoding of an apostrophe.
const APOSTROPHE: &[u8] = b"'\"'\"''";

/// The arguments and the image of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) arguments: Vec<OsString>,
    /// The value of `--container`.
    pub(super) bundle: OsString,
}

impl Step {
    /// Parses `MARK 'ARGUMENT' 'ARGUMENT' BUNDLE`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let start = text.windows(MARK.len()).position(|window| window == MARK)?;
        let mut rest = &text[start + MARK.len()..];
        let mut arguments = Vec::new();
        while let Some(quoted) = rest.strip_prefix(b"'") {
            let (argument, after) = argument(quoted)?;
            arguments.push(OsString::from_vec(argument));
            rest = after.strip_prefix(b" ")?;
        }
        let bundle = OsString::from_vec(rest.to_vec());
        (!arguments.is_empty() && !bundle.is_empty()).then_some(Self { arguments, bundle })
    }
}

/// The decoded text up to the closing apostrophe, and the text after it.
fn argument(mut quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut argument = Vec::new();
    loop {
        let end = quoted.iter().position(|byte| *byte == b'\'')?;
        argument.extend(&quoted[..end]);
        match quoted[end..].strip_prefix(APOSTROPHE) {
            Some(rest) => {
                argument.push(b'\'');
                quoted = rest;
            }
            None => return Some((argument, &quoted[end + 1..])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line as slurmstepd builds it.
    fn encoded(arguments: &[&str], bundle: &str) -> String {
        let quoted = |argument: &&str| format!("'{}'", argument.replace('\'', "'\"'\"''"));
        let arguments: Vec<String> = arguments.iter().map(quoted).collect();
        format!("/bin/sh\n-c\nX=$(y) exec z # slurminit {} {bundle}", arguments.join(" "))
    }

    #[test]
    fn parses_arguments_exactly_as_given() {
        for arguments in [
            &["echo", "it's"] as &[&str],
            &["a", "", "'", "''", "'\"'", " ", "' '", "$(reboot)", "x\ny", "# slurminit 'z'", "\\", "é"],
            &["sh", "-c", "printf '%s\\n' \"$@\"", "'a' 'b' image"],
        ] {
            let step = Step::parse(encoded(arguments, "/data/my image").as_bytes()).unwrap();
            assert_eq!(step.arguments, arguments);
            assert_eq!(step.bundle, "/data/my image");
        }
    }

    #[test]
    fn rejects_text_that_is_not_a_step() {
        for text in
            ["", "x", "# slurminit ", "# slurminit image", "# slurminit 'a", "# slurminit 'a'", "# slurminit 'a'b c"]
        {
            assert_eq!(Step::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
