//! Runs the operator's commands and calls the operator's webhooks for faults and jobs. Each command or webhook handles one event at a
//! time.
//!
//! The agent does not wait for a command: one that hangs is killed at its deadline. Events beyond the hourly limit, or beyond the limit of
//! waiting events, are skipped and counted.

use std::collections::VecDeque;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::unistd::User;
use serde::Serialize;

use config::{Notify, Receiver, WebhookUrl};
use faults::report::ReportedFault;
use faults::usage::{IdleAction, JobUse};
use model::message;
use model::message::REPORTS;
use sys::report;
use sys::tool;

const HOUR: Duration = Duration::from_secs(3600);
/// Polling interval of a running command or webhook.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of waiting events per receiver; further ones are skipped.
const MAX_WAITING: usize = 100;

/// The standard input of a command, and the body of a webhook: one line of JSON.
#[derive(Debug, Serialize)]
struct Message<'a> {
    /// The node's name in Slurm.
    node: &'a str,
    #[serde(flatten)]
    event: &'a Event,
    /// For a webhook, `line` again, under the key that chat services (Slack, Mattermost, Rocket.Chat) show.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// How many events were skipped since the previous message.
    skipped: u64,
}

/// An event that is sent to a receiver.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Event {
    Fault(ReportedFault),
    Job(JobEvent),
}

/// The end of a job, or an action on a job that does not use its GPUs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JobEvent {
    /// The time, in seconds since 1970.
    pub(super) at: u64,
    /// `job-end`, `idle-job` or `idle-job-cancelled`.
    pub(super) kind: &'static str,
    #[serde(flatten)]
    pub(super) job: JobUse,
    /// A description of the event in one line.
    pub(super) line: String,
}

impl JobEvent {
    /// The event kind of an action.
    pub(super) const fn kind(action: IdleAction) -> &'static str {
        match action {
            IdleAction::Cancel => "idle-job-cancelled",
            _ => "idle-job",
        }
    }
}

impl Event {
    fn line(&self) -> &str {
        match self {
            Self::Fault(fault) => &fault.line,
            Self::Job(event) => &event.line,
        }
    }

    fn is_for(&self, notify: &Notify) -> bool {
        match self {
            Self::Fault(fault) => notify.on == config::Event::GpuFault && fault.policy >= notify.at_least,
            Self::Job(JobEvent { kind: "job-end", .. }) => notify.on == config::Event::JobEnd,
            Self::Job(_) => notify.on == config::Event::IdleJob,
        }
    }
}

#[derive(Debug)]
pub(super) struct Notifier<'a> {
    receivers: Vec<ReceiverQueue<'a>>,
}

/// A receiver with its waiting events and its rate limit.
#[derive(Debug)]
struct ReceiverQueue<'a> {
    notify: &'a Notify,
    receiver: &'a Receiver,
    runs: VecDeque<Instant>,
    skipped: u64,
    waiting: VecDeque<Event>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    until: Instant,
}

impl<'a> Notifier<'a> {
    pub(super) fn new(all: &'a [Notify]) -> Self {
        let pairs = all.iter().flat_map(|notify| notify.receivers.iter().map(move |receiver| (notify, receiver)));
        let queue = |(notify, receiver)| ReceiverQueue {
            notify,
            receiver,
            runs: VecDeque::new(),
            skipped: 0,
            waiting: VecDeque::new(),
            running: None,
        };
        Self { receivers: pairs.map(queue).collect() }
    }

    /// When to call [`Self::step`] next; `None` if no command or webhook is running.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let running = self.receivers.iter().filter_map(|queue| queue.running.as_ref());
        running.map(|running| running.until.min(now + POLL_INTERVAL)).min()
    }

    pub(super) fn notify(&mut self, now: Instant, event: &Event) {
        self.receivers.iter_mut().filter(|queue| event.is_for(queue.notify)).for_each(|queue| queue.notify(now, event));
    }

    pub(super) fn step(&mut self, now: Instant, node: &str) {
        self.receivers.iter_mut().for_each(|queue| queue.step(now, node));
    }
}

impl ReceiverQueue<'_> {
    fn notify(&mut self, now: Instant, event: &Event) {
        self.runs.retain(|run| now.saturating_duration_since(*run) < HOUR);
        let limit = usize::try_from(self.notify.per_hour).unwrap_or(usize::MAX);
        if self.runs.len() >= limit || self.waiting.len() >= MAX_WAITING {
            self.skipped += 1;
        } else {
            self.runs.push_back(now);
            self.waiting.push_back(event.clone());
        }
    }

    fn step(&mut self, now: Instant, node: &str) {
        let receiver = self.receiver.to_string();
        if let Some(running) = &mut self.running {
            let why = match running.child.try_wait() {
                Ok(None) if now < running.until => return,
                Ok(None) => Some("timed out".to_owned()),
                Ok(Some(status)) => (!status.success()).then(|| status.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = why {
                report::warn(message!(
                    "notification-failed",
                    "notification failed: {receiver} of [[notify]]: {why}",
                    receiver,
                    why
                ));
            }
            // Reaps the command, or kills it if it has exceeded its timeout.
            self.running.take().into_iter().for_each(|running| tool::end(running.child));
        }
        let Some(event) = self.waiting.pop_front() else { return };
        let is_command = matches!(self.receiver, Receiver::Command(_));
        let text = (!is_command).then(|| event.line());
        let message = Message { node, event: &event, text, skipped: std::mem::take(&mut self.skipped) };
        match launch(self, &message) {
            Ok(child) => self.running = Some(Running { child, until: now + self.notify.timeout }),
            Err(error) => report::warn(message!(
                "notification-failed",
                "cannot run {receiver} of [[notify]]: {error}",
                receiver,
                error = format!("{error:#}")
            )),
        }
    }
}

/// The environment variables that are passed to a command or webhook. A webhook's process also gets [`REPORTS`].
const PASSED_VARIABLES: [&str; 11] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "SSL_CERT_FILE",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
];

#[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and may have children")]
fn launch(queue: &ReceiverQueue<'_>, message: &Message<'_>) -> anyhow::Result<Child> {
    let (mut command, mut input) = program(queue)?;
    let name = queue.notify.user.as_deref().unwrap_or(install::WATCHER_USER);
    let user = User::from_name(name)?.with_context(|| format!("no such user: {name}"))?;
    command.current_dir("/").uid(user.uid.as_raw()).gid(user.gid.as_raw());
    // Other processes of `user` can read the child's environment, and the agent's environment may contain secrets of the operator.
    let is_passed = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| PASSED_VARIABLES.contains(&name));
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_passed(name)));
    if let (false, Some(reports)) = (matches!(queue.receiver, Receiver::Command(_)), std::env::var_os(REPORTS)) {
        command.env(REPORTS, reports);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    serde_json::to_writer(&mut input, message)?;
    input.push(b'\n');
    // An event is far shorter than a pipe's buffer, so this does not wait for a reader; a command that does not read is not an error.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&input));
    Ok(child)
}

/// The command, and the first line of its standard input: a webhook's URL, or nothing. The URL is not an argument, because it may contain
/// a secret, and all users may read a process's arguments.
fn program(queue: &ReceiverQueue<'_>) -> anyhow::Result<(Command, Vec<u8>)> {
    let url = match queue.receiver {
        Receiver::Command(words) => {
            let [program, arguments @ ..] = words.as_slice() else { anyhow::bail!("the command is empty") };
            let mut command = Command::new(program);
            command.args(arguments);
            return Ok((command, Vec::new()));
        }
        Receiver::Url(url) => url.clone(),
        Receiver::UrlFile(path) => {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            WebhookUrl::try_from(text.trim().to_owned()).map_err(anyhow::Error::msg)?
        }
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["webhook", "--timeout", &queue.notify.timeout.as_secs_f64().to_string()]);
    Ok((command, format!("{}\n", url.as_str()).into_bytes()))
}

impl Drop for ReceiverQueue<'_> {
    fn drop(&mut self) {
        self.running.take().into_iter().for_each(|running| tool::end(running.child));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use config::Config;

    fn notifies(toml: &str) -> Vec<Notify> {
        Config::parse(toml, Path::new("slurminit.toml")).unwrap().notifies
    }

    fn event(kind: &'static str) -> Event {
        Event::Job(JobEvent { at: 7, kind, job: JobUse::default(), line: "the line".to_owned() })
    }

    #[test]
    fn events_beyond_hourly_limit_are_skipped_and_counted() {
        let all = notifies("[[notify]]\non = 'job-end'\ncommand = ['/bin/true']\nper_hour = 2\n");
        let (mut notifier, begin) = (Notifier::new(&all), Instant::now());
        let mut notify = |minutes: u32| {
            notifier.notify(begin + Duration::from_secs(60) * minutes, &event("job-end"));
            (notifier.receivers[0].waiting.len(), notifier.receivers[0].skipped)
        };
        assert_eq!([0, 1, 59, 60, 61, 62].map(&mut notify), [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (4, 2)]);
        assert_eq!(notifier.due(begin), None, "no command is running");
    }

    /// A command of the user who runs the test.
    fn command(script: &str, file: &Path) -> Vec<Notify> {
        let user = User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
        let words = format!("command = ['/bin/sh', '-c', '{script}', '{}']", file.display());
        notifies(&format!("[[notify]]\non = 'job-end'\nuser = '{user}'\ntimeout = 7\n{words}\n"))
    }

    #[test]
    fn command_gets_one_event_at_a_time_and_is_killed_at_its_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let all = command("cat >$0; exec /bin/sleep 600", &fifo);
        let (mut notifier, begin) = (Notifier::new(&all), Instant::now());
        (0..2).for_each(|_| notifier.notify(begin, &event("job-end")));
        notifier.receivers[0].skipped = 3;
        let mut received = |seconds: u64| {
            notifier.step(begin + Duration::from_secs(seconds), "c1");
            let waiting = notifier.receivers[0].waiting.len();
            let due = notifier.due(begin).map(|due| due - begin);
            (notifier.receivers[0].running.as_ref().map(|running| running.child.id()), waiting, due)
        };
        let message = || serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&fifo).unwrap()).unwrap();
        let (first, waiting, due) = received(0);
        assert_eq!((waiting, due), (1, Some(POLL_INTERVAL)));
        let told = message();
        assert_eq!(
            (&told["node"], &told["kind"], &told["line"]),
            (&"c1".into(), &"job-end".into(), &"the line".into())
        );
        assert_eq!((&told["skipped"], told.get("text")), (&3.into(), None));
        assert_eq!(received(6), (first, 1, due), "the command may run for 7 s");
        let (second, waiting, _) = received(7);
        assert!(second.is_some() && second != first && waiting == 0);
        assert_eq!(message()["skipped"], 0);
        assert_eq!(received(14), (None, 0, None));
    }

    #[test]
    fn command_that_cannot_be_run_does_not_stop_the_next_event() {
        let all = notifies("[[notify]]\non = 'job-end'\nuser = 'nobody-of-this-name'\ncommand = ['/bin/true']\n");
        let (mut notifier, now) = (Notifier::new(&all), Instant::now());
        (0..2).for_each(|_| notifier.notify(now, &event("job-end")));
        let mut waiting = || {
            notifier.step(now, "c1");
            (notifier.receivers[0].waiting.len(), notifier.receivers[0].running.is_some())
        };
        assert_eq!([waiting(), waiting()], [(1, false), (0, false)]);
    }

    #[test]
    fn waiting_events_are_limited() {
        let all = notifies("[[notify]]\non = 'job-end'\ncommand = ['/bin/true']\nper_hour = 1000\n");
        let (mut notifier, now) = (Notifier::new(&all), Instant::now());
        (0..MAX_WAITING + 3).for_each(|_| notifier.notify(now, &event("job-end")));
        assert_eq!((notifier.receivers[0].waiting.len(), notifier.receivers[0].skipped), (MAX_WAITING, 3));
    }

    #[test]
    fn receiver_gets_only_events_that_it_requested() {
        let is_for = |event: &Event, on: &str| {
            event.is_for(&notifies(&format!("[[notify]]\non = '{on}'\ncommand = ['/bin/true']\n"))[0])
        };
        let fault = Event::Fault(ReportedFault {
            at: 7,
            gpu: 0,
            kind: faults::fault::FaultKind::Xid(79),
            policy: faults::fault::Policy::Warn,
            jobs: Vec::new(),
            line: String::new(),
        });
        for (event, on) in [
            (&event("job-end"), "job-end"),
            (&event("idle-job"), "idle-job"),
            (&event("idle-job-cancelled"), "idle-job"),
        ] {
            for other in ["job-end", "idle-job", "gpu-fault"] {
                assert_eq!(is_for(event, other), on == other, "{event:?} {other}");
            }
        }
        assert!(is_for(&fault, "gpu-fault") && !is_for(&fault, "job-end") && !is_for(&fault, "idle-job"));
        assert!(!is_for(&fault, "gpu-fault'\nat_least = 'drain"));
        assert_eq!(
            (JobEvent::kind(IdleAction::Cancel), JobEvent::kind(IdleAction::Warn)),
            ("idle-job-cancelled", "idle-job")
        );
    }
}
