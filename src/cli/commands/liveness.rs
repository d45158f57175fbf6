//! `slurminit liveness`: asks the daemons whether they still answer.

use std::io::Write as _;

use anyhow::Context as _;

use machine::liveness_result::{Liveness, QUESTIONS, Question};
use model::exit_code;
use startup::{jobs, liveness};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also make slurmctld ask nodes again that were silent and can be reached on this port
    #[arg(long, value_name = "PORT")]
    recall: Option<u16>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let questions = std::env::var(QUESTIONS).with_context(|| format!("{QUESTIONS} is not set; PID 1 sets it"))?;
    let questions: Vec<Question> = serde_json::from_str(&questions).context("the questions are no JSON")?;
    let answers = liveness::ask_all(questions)?;
    let mut lines = Vec::new();
    for answer in &answers {
        serde_json::to_writer(&mut lines, answer)?;
        lines.push(b'\n');
    }
    // Written at once, because it wakes PID 1, which judges when this process ends.
    std::io::stdout().lock().write_all(&lines)?;
    // The verdicts must not wait for this, and without working daemons Slurm cannot tell which jobs are ending.
    if answers.iter().all(|answer| answer.liveness == Liveness::Answers) {
        liveness::stuck::end();
        if let Some(Err(error)) = args.recall.map(jobs::recall::run) {
            eprintln!("warning: nobody could say whether a silent node is back: {error:#}");
        }
    }
    Ok(exit_code::SUCCESS)
}
