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

use crate::overview::{self, Allocations, Slurm, State, slurm};
use init::status::News;

/// The interval of samples if no file changes.
const PAUSE: Duration = Duration::from_secs(2);
/// The minimum interval of samples.
const SHORTEST: Duration = Duration::from_millis(300);
/// How long an answer of slurmctld is reused.
const KEPT: Duration = Duration::from_secs(5);
/// How soon a new state is drawn.
const TICK: Duration = Duration::from_millis(200);

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
    std::thread::Builder::new().name("look".to_owned()).spawn(move || look(&directory, &sender))?;
    // This restores the terminal also after a panic.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let shown = show(&mut terminal, &states);
    ratatui::restore();
    shown
}

fn show(terminal: &mut DefaultTerminal, states: &Receiver<State>) -> anyhow::Result<()> {
    let (mut state, mut scroll) = (None, 0_u16);
    loop {
        if let Ok(new) = states.try_recv() {
            state = Some(new);
        }
        let mut most = 0;
        terminal.draw(|frame| most = view::draw(frame, state.as_ref(), scroll))?;
        scroll = scroll.min(most);
        if !event::poll(TICK)? {
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
                _ => {}
            }
        }
    }
}

/// Sends a state after each change of a file, and every two seconds, until the receiver is dropped.
fn look(directory: &Path, states: &SyncSender<State>) {
    let news = News::of(directory);
    let mut allocations = Allocations::default();
    let mut answer: Option<(Instant, Result<Slurm, String>)> = None;
    loop {
        let began = Instant::now();
        let mut files = overview::files(directory);
        if answer.as_ref().is_none_or(|(at, _)| at.elapsed() >= KEPT) {
            let own = files.snapshot.as_ref().and_then(|snapshot| snapshot.prepared.as_ref());
            answer = Some((Instant::now(), slurm::ask(own, false)));
        }
        let slurm =
            answer.as_ref().map_or(Err("not queried yet"), |(_, answer)| answer.as_ref().map_err(String::as_str));
        allocations.apply(&mut files, slurm);
        if states.send(State::of(&files, slurm)).is_err() {
            return;
        }
        news.wait(PAUSE);
        while began.elapsed() < SHORTEST {
            news.wait(SHORTEST.saturating_sub(began.elapsed()));
        }
    }
}
