//! Renders the state in the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use crate::overview::state::{ArrayView, DaemonView, GpuView, SlurmView, State};
use model::printable;
use model::queued_job::QueuedJob;
use slurm::nodes::answer::{ClusterNode, GpuState};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const WARN: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);

/// Width of a meter in cells.
const METER: usize = 8;
/// Maximum number of rows of the queue.
const MAX_ROWS: usize = 20;
/// Maximum number of nodes.
const MAX_NODES: usize = 40;

/// Draws the state, scrolled down by `scroll` lines, with a row for each task if `is_expanded`; returns the maximum of `scroll`.
pub(super) fn draw(frame: &mut Frame<'_>, state: Option<&State>, scroll: u16, is_expanded: bool) -> u16 {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let Some(state) = state else {
        frame.render_widget(Paragraph::new("slurminit: loading ..."), head);
        return 0;
    };
    let width = usize::from(body.width);
    frame.render_widget(Paragraph::new(headline(state, width)), head);
    let lines = body_lines(state, width, is_expanded);
    let max_scroll = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
    frame.render_widget(Paragraph::new(Text::from(lines)).scroll((scroll.min(max_scroll), 0)), body);
    frame.render_widget(Paragraph::new(footline(state, foot, scroll.min(max_scroll), max_scroll)), foot);
    max_scroll
}

fn headline(state: &State, width: usize) -> Line<'static> {
    let node = if state.node.is_empty() { "slurminit" } else { &state.node };
    let why = format!("not ready: {}", state.why);
    let ready = match state.is_ready {
        true => span("ready", GOOD),
        false if fits_head(node, &why, width) => span(&why, BAD),
        false => span("not ready", BAD),
    };
    Line::from(vec![span(node, BOLD), span("  ", Style::new()), ready])
}

fn fits_head(node: &str, why: &str, width: usize) -> bool {
    node.chars().count() + 2 + why.chars().count() <= width
}

fn footline(state: &State, area: Rect, scroll: u16, max_scroll: u16) -> Line<'static> {
    let has_array = state.slurm.as_ref().is_ok_and(|slurm| slurm.arrays.iter().any(|array| array.tasks > 1));
    let arrays = if has_array { " · a: tasks of arrays" } else { "" };
    let more = if max_scroll > 0 { format!(" · ↑↓ {scroll}/{max_scroll}") } else { String::new() };
    let text = format!("q quits{arrays}{more} · every 2 s");
    Line::from(span(&clipped(&text, usize::from(area.width)), SOFT))
}

fn body_lines(state: &State, width: usize, is_expanded: bool) -> Vec<Line<'static>> {
    let mut lines = notes(state, width);
    lines.extend(state.gpus.iter().flat_map(|gpu| gpu_lines(gpu, state.is_ready, width)));
    if state.gpus.is_empty() {
        lines.push(Line::from(span("no GPUs here", SOFT)));
    }
    if !state.faults.is_empty() {
        lines.extend(title("LAST FAULTS"));
        let fault_lines =
            |(age, text): (String, &str)| wrapped(&format!("{age:>6} ago {text}"), 11, width, Style::new());
        lines.extend(state.faults.iter().take(5).flat_map(|fault| fault_lines((age(fault.age), &fault.line))));
    }
    lines.extend(cluster(state, width, is_expanded));
    lines.extend(title("DAEMON           STATE          FOR RESTARTS"));
    lines.extend(state.daemons.iter().flat_map(|unit| daemon(unit, width)));
    lines
}

fn notes(state: &State, width: usize) -> Vec<Line<'static>> {
    let mut notes = Vec::new();
    let why = format!("not ready: {}", state.why);
    if !state.is_ready && !fits_head(&state.node, &why, width) {
        notes.extend(wrapped(&state.why, 0, width, BAD));
    }
    if state.is_simulated {
        notes.push(Line::from(span("the GPUs are simulated", WARN)));
    }
    if state.simulated_nodes > 0 {
        notes.push(Line::from(span("all nodes are simulated: they run in this container", WARN)));
    }
    if let Some(notice) = &state.notice {
        notes.extend(wrapped(notice, 0, width, WARN));
    }
    match state.report_age {
        Some(seconds) if state.is_stale => {
            let text = format!("the last GPU report is {} old; its measurements are left out", age(seconds));
            notes.extend(wrapped(&text, 0, width, BAD));
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
    let model_width = width.saturating_sub(62).clamp(12, 30);
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
    let watts = if is_narrow { String::new() } else { format!(" {:>5}", with_unit(gpu.watts, "W")) };
    let cells = format!(
        " {:>4} {:>11}{watts} {:>5}  ",
        with_unit(gpu.utilization, "%"),
        gpu.memory_mib.map_or_else(dash, used),
        with_unit(gpu.temperature, "C"),
    );
    let meter = if is_narrow { String::new() } else { meter(gpu.utilization) };
    let head = format!("{:>3} {:<model_width$} ", gpu.index, clipped(&gpu.model, model_width));
    let mut lines = vec![Line::from(vec![
        span(&head, Style::new()),
        span(&meter, GOOD),
        span(&cells, Style::new()),
        span(&job, style),
        span(&since, SOFT),
    ])];
    lines.extend(gpu.faults.iter().flat_map(|fault| wrapped(&format!("    {fault}"), 4, width, BAD)));
    lines
}

fn cluster(state: &State, width: usize, is_expanded: bool) -> Vec<Line<'static>> {
    let slurm = match &state.slurm {
        Ok(slurm) => slurm,
        Err(why) => {
            let mut lines = title("QUEUE");
            lines.extend(wrapped(&format!("slurmctld does not respond: {why}"), 2, width, BAD));
            return lines;
        }
    };
    let mut lines = title(&format!("QUEUE: {} running, {} waiting", slurm.running, slurm.pending));
    let rows = rows(slurm);
    lines.extend(rows.iter().take(MAX_ROWS).flat_map(|row| row_lines(row, width, is_expanded)));
    lines.extend(more(rows.len().saturating_sub(MAX_ROWS) + slurm.more, "more job"));
    lines.extend(title(&format!("NODES: {}", slurm.node_count)));
    lines.extend(slurm.nodes.iter().take(MAX_NODES).flat_map(|one| node(one, width)));
    lines.extend(more(slurm.node_count.saturating_sub(MAX_NODES), "more node"));
    lines
}

fn more(hidden: usize, noun: &str) -> Option<Line<'static>> {
    (hidden > 0).then(|| Line::from(span(&format!("{:>8} {}", "…", printable::count(hidden, noun)), SOFT)))
}

/// A row of the queue: a job, or a job array with its listed tasks.
struct Row<'a> {
    array: Option<&'a ArrayView>,
    jobs: Vec<&'a QueuedJob>,
}

fn rows(slurm: &SlurmView) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for job in &slurm.jobs {
        let array = slurm.arrays.iter().find(|array| array.tasks > 1 && job.array() == Some(&array.id));
        let is_same = |row: &&mut Row<'_>| array.is_some() && row.array == array;
        match rows.iter_mut().find(is_same) {
            Some(row) => row.jobs.push(job),
            None => rows.push(Row { array, jobs: vec![job] }),
        }
    }
    rows
}

/// A job, or all tasks of an array in one row, with a row for each listed task if it is expanded.
fn row_lines(row: &Row<'_>, width: usize, is_expanded: bool) -> Vec<Line<'static>> {
    let job_state = |job: &QueuedJob| job.state.to_lowercase();
    let Some(first) = row.jobs.first() else { return Vec::new() };
    let Some(array) = row.array else {
        return job_lines(first, &first.id, &job_state(first), &first.waits_for, width);
    };
    let waiting = row.jobs.iter().find(|task| task.is_pending()).map_or("", |task| task.waits_for.as_str());
    let state = format!("{}/{} run", array.running, array.tasks);
    let mut lines = job_lines(first, &format!("{}_*", array.id), &state, waiting, width);
    if is_expanded {
        let tasks = row.jobs.iter();
        // The row of the array has the usual reason already.
        let own_reason =
            |task: &QueuedJob| if task.waits_for == waiting { String::new() } else { task.waits_for.clone() };
        lines.extend(tasks.flat_map(|task| job_lines(task, &task.id, &job_state(task), &own_reason(task), width)));
        let listed = u64::try_from(row.jobs.len()).unwrap_or(u64::MAX);
        lines.extend(more(usize::try_from(array.tasks.saturating_sub(listed)).unwrap_or(usize::MAX), "more task"));
    }
    lines
}

/// What the job waits for is on a second line if the first one has no room for it.
fn job_lines(job: &QueuedJob, id: &str, state: &str, waits_for: &str, width: usize) -> Vec<Line<'static>> {
    let gpus = if job.gpus == 0 { dash() } else { job.gpus.to_string() };
    let is_narrow = width < 80;
    let (of_user, of_name) = if is_narrow { (8, 11) } else { (10, 16) };
    let mut text = format!(
        "{:>8} {:<of_user$} {:<of_name$} {:<11} {gpus:>3} GPU {:>10}",
        clipped(id, 8),
        clipped(&job.user, of_user),
        clipped(&job.name, of_name),
        clipped(state, 11),
        clipped(&job.time, 10),
    );
    let style = if job.is_pending() { SOFT } else { Style::new() };
    let fits = text.chars().count() + 2 + waits_for.chars().count() <= width;
    if fits && !waits_for.is_empty() {
        text += &format!("  {waits_for}");
    }
    let mut lines = vec![Line::from(span(&text, style))];
    if !fits && !waits_for.is_empty() {
        lines.extend(wrapped(&format!("{:>8} {waits_for}", ""), 9, width, style));
    }
    lines
}

fn node(node: &ClusterNode, width: usize) -> Vec<Line<'static>> {
    let free = node.gpus.iter().filter(|gpu| gpu.state == GpuState::Free).count();
    let gpus = if node.gpus.is_empty() { dash() } else { format!("{free}/{}", node.gpus.len()) };
    let silent = if node.report.responding { "" } else { ", not responding" };
    let text = format!(
        "{:<15} {:>3}/{:<3} CPU  {gpus:>5} GPUs free  ",
        clipped(&node.name, 15),
        node.cpus_allocated,
        node.cpus,
    );
    let style = if node.accepts_jobs() { Style::new() } else { BAD };
    on_one_line_or_below(vec![span(&text, Style::new())], &format!("{}{silent}", node.report), width, style)
}

fn daemon(daemon: &DaemonView, width: usize) -> Vec<Line<'static>> {
    let style = if daemon.is_up { GOOD } else { BAD };
    let age = daemon.for_seconds.map_or_else(dash, age);
    let spans = vec![
        span(&format!("{:<16} ", clipped(&daemon.name, 16)), Style::new()),
        span(&format!("{:<11}", daemon.state), style),
        span(&format!(" {age:>6} {:>8}  ", daemon.restarts), Style::new()),
    ];
    on_one_line_or_below(spans, daemon.last_exit.as_deref().unwrap_or_default(), width, Style::new())
}

/// Appends `text` to the line if it fits, else puts it below.
fn on_one_line_or_below(mut spans: Vec<Span<'static>>, text: &str, width: usize, style: Style) -> Vec<Line<'static>> {
    let used: usize = spans.iter().map(Span::width).sum();
    if used + text.chars().count() <= width {
        spans.push(span(text, style));
        return vec![Line::from(spans)];
    }
    let mut lines = vec![Line::from(spans)];
    lines.extend(wrapped(&format!("    {text}"), 4, width, style));
    lines
}

/// Breaks the text at blanks into lines of at most `width` characters; all but the first are indented.
fn wrapped(text: &str, indent: usize, width: usize, style: Style) -> Vec<Line<'static>> {
    let width = width.max(indent + 10);
    let (mut lines, mut rest, mut lead) = (Vec::new(), text.to_owned(), String::new());
    loop {
        let space = width - lead.chars().count();
        let Some((end, _)) = rest.char_indices().nth(space) else {
            lines.push(Line::from(span(&format!("{lead}{rest}"), style)));
            return lines;
        };
        let leading = rest.len() - rest.trim_start().len();
        let (line, next) = match rest.get(..=end).and_then(|head| head.rfind(' ')).filter(|&blank| blank > leading) {
            Some(blank) => rest.split_at(blank),
            None => rest.split_at(end),
        };
        lines.push(Line::from(span(&format!("{lead}{line}"), style)));
        rest = next.trim_start().to_owned();
        lead = " ".repeat(indent);
    }
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

fn with_unit<T: std::fmt::Display>(value: Option<T>, unit: &str) -> String {
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
