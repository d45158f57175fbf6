//! `slurminit top`: GPUs, queue, nodes and daemons in the terminal, live.
//!
//! A thread reads the files and queries slurmctld, so that keys work while slurmctld does not respond; `view` is pure.

mod view;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::overview::{self, Allocations, Files, Slurm, State, slurm};
use init::status::StatusWatcher;

/// The interval of samples if no file changes.
const INTERVAL: Duration = Duration::from_secs(2);
/// The minimum interval of samples.
const MIN_INTERVAL: Duration = Duration::from_millis(300);
/// How long an answer of slurmctld is reused.
const ANSWER_LIFETIME: Duration = Duration::from_secs(5);
/// How long the first drawing waits for slurmctld's answer.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How soon a new state is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Shows the state until `q` is pressed.
///
/// # Errors
/// There is no terminal.
pub fn run(directory: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        io::stdout().is_terminal() && io::stdin().is_terminal(),
        "top needs a terminal: `docker exec -it ...`; without one, `slurminit status` and `slurminit nodes` print once"
    );
    let (sender, states) = sync_channel(1);
    let directory = directory.to_owned();
    std::thread::Builder::new().name("sample".to_owned()).spawn(move || sample(&directory, &sender))?;
    // `try_init` also restores the terminal after a panic.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, &states);
    ratatui::restore();
    shown
}

fn show(terminal: &mut DefaultTerminal, states: &Receiver<State>) -> anyhow::Result<()> {
    let (mut scroll, mut is_expanded) = (0_u16, false);
    // Longer than FIRST, so that the first drawing has data.
    let mut state = states.recv_timeout(FIRST_ANSWER_TIMEOUT * 2).ok();
    loop {
        if let Ok(new) = states.try_recv() {
            state = Some(new);
        }
        let mut max_scroll = 0;
        terminal.draw(|frame| max_scroll = view::draw(frame, state.as_ref(), scroll, is_expanded))?;
        scroll = scroll.min(max_scroll);
        if !event::poll(DRAW_INTERVAL)? {
            continue;
        }
        if let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event::read()? {
            match code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Down | KeyCode::Char('j') => scroll = scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => scroll = scroll.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => scroll = scroll.saturating_add(10),
                KeyCode::PageUp => scroll = scroll.saturating_sub(10),
                KeyCode::Home => scroll = 0,
                KeyCode::Char('a') | KeyCode::Enter => is_expanded = !is_expanded,
                _ => {}
            }
        }
    }
}

/// Sends a state after each change of a file, and every two seconds, until the receiver is dropped.
fn sample(directory: &Path, states: &SyncSender<State>) {
    let watcher = StatusWatcher::of(directory);
    let mut allocations = Allocations::default();
    let Some(mut answer) = first_answer(directory, states) else { return };
    loop {
        let began = Instant::now();
        let mut files = overview::files(directory);
        if answer.0.elapsed() >= ANSWER_LIFETIME {
            answer = (Instant::now(), query(&files));
        }
        let slurm = answer.1.as_ref().map_err(String::as_str);
        allocations.apply(&mut files, slurm);
        if states.send(State::of(&files, slurm)).is_err() {
            return;
        }
        watcher.wait(INTERVAL);
        while began.elapsed() < MIN_INTERVAL {
            watcher.wait(MIN_INTERVAL.saturating_sub(began.elapsed()));
        }
    }
}

/// slurmctld's first answer. If it takes longer than [`FIRST_ANSWER_TIMEOUT`], sends a state without the queue meanwhile. `None` if the
/// receiver is dropped.
fn first_answer(directory: &Path, states: &SyncSender<State>) -> Option<(Instant, Result<Slurm, String>)> {
    let files = overview::files(directory);
    std::thread::scope(|scope| {
        let (sender, answers) = sync_channel(1);
        let files = &files;
        scope.spawn(move || _ = sender.send(query(files)));
        let answer = match answers.recv_timeout(FIRST_ANSWER_TIMEOUT) {
            Ok(answer) => answer,
            Err(_) => {
                states.send(State::of(files, Err("no answer yet"))).ok()?;
                answers.recv().ok()?
            }
        };
        Some((Instant::now(), answer))
    })
}

fn query(files: &Files) -> Result<Slurm, String> {
    slurm::query(files.snapshot.as_ref().and_then(|snapshot| snapshot.prepared.as_ref()), false)
}
