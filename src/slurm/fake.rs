//! A fake of Slurm's commands for tests.

use std::cell::RefCell;

use sys::tool::answer::Answer;

/// Replies to commands by the text with which they begin, and records all commands. The first match is used; without a match, the reply is
/// [`Answer::Missing`].
pub(crate) struct FakeSlurm {
    replies: Vec<(String, Answer)>,
    commands: RefCell<Vec<String>>,
}

impl FakeSlurm {
    /// The reply is the output of a command that succeeds, or the error of one that fails.
    pub(crate) fn new(replies: &[(&str, Result<&str, &str>)]) -> Self {
        let answer = |reply: &Result<&str, &str>| Answer::Ended {
            succeeded: reply.is_ok(),
            stdout: reply.unwrap_or_default().to_owned(),
            stderr: reply.err().unwrap_or_default().to_owned(),
        };
        let replies = replies.iter().map(|(start, reply)| ((*start).to_owned(), answer(reply))).collect();
        Self { replies, commands: RefCell::default() }
    }

    /// The function for [`slurm::client::Client::with_runner`].
    pub(crate) fn run(&self) -> impl Fn(&str, &[&str]) -> Answer + '_ {
        |program, arguments| {
            let command = format!("{program} {}", arguments.join(" "));
            let reply =
                self.replies.iter().find(|(start, _)| command.starts_with(start)).map(|(_, reply)| reply.clone());
            self.commands.borrow_mut().push(command);
            reply.unwrap_or(Answer::Missing)
        }
    }

    /// The commands so far that begin with this text.
    pub(crate) fn commands(&self, start: &str) -> Vec<String> {
        self.commands.borrow().iter().filter(|command| command.starts_with(start)).cloned().collect()
    }
}
