//! Renders the state in the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use crate::overview::state::{DaemonView, GpuView, State};
use model::queued_job::QueuedJob;
use slurm::nodes::answer::{ClusterNode, GpuState};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const WARN: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);

/// Width of a meter in cells.
const METER: usize = 8;

/// Draws the state, scrolled down by `scroll` lines; returns the maximum of `scroll`.
pub(super) fn draw(frame: &mut Frame<'_>, state: Option<&State>, scroll: u16) -> u16 {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let Some(state) = state else {
        frame.render_widget(Paragraph::new("slurminit: loading ..."), head);
        return 0;
    };
    frame.render_widget(Paragraph::new(headline(state)), head);
    let lines = body_lines(state, usize::from(body.width));
    let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
    frame.render_widget(Paragraph::new(Text::from(lines)).scroll((scroll.min(most), 0)), body);
    frame.render_widget(Paragraph::new(footline(foot, scroll.min(most), most)), foot);
    most
}

fn headline(state: &State) -> Line<'static> {
    let node = if state.node.is_empty() { "slurminit" } else { &state.node };
    let ready = if state.is_ready { span("ready", GOOD) } else { span(&format!("not ready: {}", state.why), BAD) };
    Line::from(vec![span(node, BOLD), span("  ", Style::new()), ready])
}

fn footline(area: Rect, scroll: u16, most: u16) -> Line<'static> {
    let more = if most > 0 { format!(" · ↑↓ {scroll}/{most}") } else { String::new() };
    let text = format!("q quits{more} · every 2 s");
    Line::from(span(&clipped(&text, usize::from(area.width)), SOFT))
}

fn body_lines(state: &State, width: usize) -> Vec<Line<'static>> {
    let mut lines = notes(state);
    lines.extend(state.gpus.iter().flat_map(|gpu| gpu_lines(gpu, state.is_ready, width)));
    if state.gpus.is_empty() {
        lines.push(Line::from(span("no GPUs here", SOFT)));
    }
    if !state.faults.is_empty() {
        lines.extend(title("LAST FAULTS"));
        lines.extend(state.faults.iter().take(5).map(|fault| {
            Line::from(vec![span(&format!("{:>6} ago ", age(fault.age)), SOFT), span(&fault.line, Style::new())])
        }));
    }
    lines.extend(cluster(state, width));
    lines.extend(title("DAEMON           STATE          FOR RESTARTS"));
    lines.extend(state.daemons.iter().map(daemon));
    lines
}

fn notes(state: &State) -> Vec<Line<'static>> {
    let mut notes = Vec::new();
    if state.is_simulated {
        notes.push(Line::from(span("the GPUs are simulated", WARN)));
    }
    if state.simulated_nodes > 0 {
        notes.push(Line::from(span("all nodes are simulated: they run in this container", WARN)));
    }
    if let Some(notice) = &state.notice {
        notes.push(Line::from(span(notice, WARN)));
    }
    match state.report_age {
        Some(seconds) if state.is_stale => {
            let text = format!("the last GPU report is {} old; its measurements are left out", age(seconds));
            notes.push(Line::from(span(&text, BAD)));
        }
        None if !state.gpus.is_empty() => {
            notes.push(Line::from(span("no GPU report: the agent is off or has not started", SOFT)))
        }
        _ => {}
    }
    notes
}

/// One GPU: ` 0 NVIDIA H200 ████ 50 % 33/140 GiB 627 W 52 C 17 alice`. A free GPU of a node that is not ready shows as idle.
fn gpu_lines(gpu: &GpuView, is_ready: bool, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(62).clamp(12, 30);
    let (job, style) = match gpu.jobs.first() {
        _ if gpu.is_out => ("out".to_owned(), BAD),
        None if is_ready => ("free".to_owned(), GOOD),
        None => ("idle".to_owned(), SOFT),
        Some(first) => {
            let more = if gpu.jobs.len() > 1 { format!(" +{}", gpu.jobs.len() - 1) } else { String::new() };
            (format!("{} {}{more}", first.job, first.user), Style::new())
        }
    };
    let since = gpu.for_seconds.map(|seconds| format!(" {}", age(seconds))).unwrap_or_default();
    let used = |(used, total): (u64, u64)| format!("{}/{} GiB", used / 1024, total / 1024);
    let is_narrow = width < 80;
    let watts = if is_narrow { String::new() } else { format!(" {:>5}", known(gpu.watts, "W")) };
    let cells = format!(
        " {:>4} {:>11}{watts} {:>5}  ",
        known(gpu.utilization, "%"),
        gpu.memory_mib.map_or_else(dash, used),
        known(gpu.temperature, "C"),
    );
    let meter = if is_narrow { String::new() } else { meter(gpu.utilization) };
    let head = format!("{:>3} {:<room$} ", gpu.index, clipped(&gpu.model, room));
    let mut lines = vec![Line::from(vec![
        span(&head, Style::new()),
        span(&meter, GOOD),
        span(&cells, Style::new()),
        span(&job, style),
        span(&since, SOFT),
    ])];
    lines.extend(gpu.faults.iter().map(|fault| Line::from(span(&format!("    {fault}"), BAD))));
    lines
}

fn cluster(state: &State, width: usize) -> Vec<Line<'static>> {
    let known = match &state.slurm {
        Ok(known) => known,
        Err(why) => {
            let mut lines = title("QUEUE");
            lines.push(Line::from(span(&format!("slurmctld does not respond: {why}"), BAD)));
            return lines;
        }
    };
    let mut lines = title(&format!("QUEUE: {} running, {} waiting", known.running, known.pending));
    lines.extend(rows(&known.jobs).iter().take(20).flat_map(|tasks| job_lines(tasks, width)));
    lines.extend(title(&format!("NODES: {}", known.node_count)));
    lines.extend(known.nodes.iter().take(40).map(node));
    lines
}

/// The jobs, with the tasks of an array in one row.
fn rows(jobs: &[QueuedJob]) -> Vec<Vec<&QueuedJob>> {
    let mut rows: Vec<Vec<&QueuedJob>> = Vec::new();
    for job in jobs {
        let array = job.id.split_once('_').map(|(array, _)| array);
        let is_same = |row: &&mut Vec<&QueuedJob>| {
            row.first().and_then(|first| first.id.split_once('_')).map(|(own, _)| own) == array && array.is_some()
        };
        match rows.iter_mut().find(is_same) {
            Some(row) => row.push(job),
            None => rows.push(vec![job]),
        }
    }
    rows
}

/// A job, or all tasks of an array. What it waits for is on a second line if the first one has no room for it.
fn job_lines(tasks: &[&QueuedJob], width: usize) -> Vec<Line<'static>> {
    let Some(first) = tasks.first() else { return Vec::new() };
    let running = tasks.iter().filter(|task| !task.waits()).count();
    let (id, state) = match tasks.len() {
        1 => (first.id.clone(), first.state.to_lowercase()),
        all => {
            let array = first.id.split_once('_').map_or(first.id.as_str(), |(array, _)| array);
            (format!("{array}_*"), format!("{running} of {all} run"))
        }
    };
    let gpus = if first.gpus == 0 { dash() } else { first.gpus.to_string() };
    let is_narrow = width < 80;
    let (of_user, of_name) = if is_narrow { (8, 11) } else { (10, 16) };
    let mut text = format!(
        "{:>8} {:<of_user$} {:<of_name$} {:<11} {gpus:>3} GPU {:>10}",
        clipped(&id, 8),
        clipped(&first.user, of_user),
        clipped(&first.name, of_name),
        clipped(&state, 11),
        clipped(&first.time, 10),
    );
    let waits_for = tasks.iter().find(|task| task.waits()).map(|task| task.waits_for.as_str()).unwrap_or_default();
    let style = if running == 0 { SOFT } else { Style::new() };
    let fits = text.chars().count() + 2 + waits_for.chars().count() <= width;
    if fits && !waits_for.is_empty() {
        text += &format!("  {waits_for}");
    }
    let second = (!fits && !waits_for.is_empty()).then(|| format!("{:>8} {waits_for}", ""));
    std::iter::once(text).chain(second).map(|line| Line::from(span(&line, style))).collect()
}

fn node(node: &ClusterNode) -> Line<'static> {
    let free = node.gpus.iter().filter(|gpu| gpu.state == GpuState::Free).count();
    let gpus = if node.gpus.is_empty() { dash() } else { format!("{free}/{}", node.gpus.len()) };
    let silent = if node.report.responding { "" } else { ", not responding" };
    let text = format!(
        "{:<15} {:>3}/{:<3} CPU  {gpus:>5} GPUs free  ",
        clipped(&node.name, 15),
        node.cpus_allocated,
        node.cpus,
    );
    let style = if node.takes_jobs() { Style::new() } else { BAD };
    Line::from(vec![span(&text, Style::new()), span(&format!("{}{silent}", node.report), style)])
}

fn daemon(daemon: &DaemonView) -> Line<'static> {
    let style = if daemon.is_up { GOOD } else { BAD };
    let age = daemon.for_seconds.map_or_else(dash, age);
    let end = daemon.last_exit.as_deref().map(|end| format!("  {end}")).unwrap_or_default();
    Line::from(vec![
        span(&format!("{:<16} ", clipped(&daemon.name, 16)), Style::new()),
        span(&format!("{:<11}", daemon.state), style),
        span(&format!(" {age:>6} {:>8}{end}", daemon.restarts), Style::new()),
    ])
}

fn title(text: &str) -> Vec<Line<'static>> {
    vec![Line::default(), Line::from(span(text, BOLD))]
}

fn span(text: &str, style: Style) -> Span<'static> {
    Span::styled(text.to_owned(), style)
}

fn meter(percent: Option<u32>) -> String {
    let filled = percent.map_or(0, |percent| (percent.min(100) as usize * METER).div_ceil(100));
    format!("{:░<METER$}", "█".repeat(filled))
}

fn known<T: std::fmt::Display>(value: Option<T>, unit: &str) -> String {
    value.map_or_else(dash, |value| format!("{value}{unit}"))
}

fn dash() -> String {
    "-".to_owned()
}

fn clipped(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
