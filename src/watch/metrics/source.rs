//! The served data: the files, read for each request, and slurmctld's answers, cached for some seconds.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::sync::Mutex;

use super::Settings;
use crate::overview::{self, Allocations, Files, Slurm, State, slurm};
use ::slurm::client::limit;
use model::printable;

/// slurmctld's answer, or why there is none.
type Answer = Arc<Result<Slurm, String>>;

/// The sources of the data.
#[derive(Debug)]
pub(super) struct Source {
    run: PathBuf,
    dcgm: Option<String>,
    accounting: bool,
    answer: Mutex<Option<(Instant, Answer)>>,
    allocations: std::sync::Mutex<Allocations>,
}

impl Source {
    /// Creates the source. The machine's name is used only if DCGM's metric names are enabled.
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let Settings { run, dcgm, host, accounting, .. } = settings;
        let dcgm = dcgm.then_some(host);
        Arc::new(Self { run, dcgm, accounting, answer: Mutex::new(None), allocations: std::sync::Mutex::default() })
    }

    /// The text of `/metrics`.
    pub(super) async fn metrics(self: &Arc<Self>) -> String {
        let (files, answer) = self.collect().await;
        super::text(&files, answer.as_ref().as_ref().map_err(String::as_str), self.dcgm.as_deref())
    }

    /// The page's data, as JSON on one line.
    pub(super) async fn state(self: &Arc<Self>) -> String {
        let (files, answer) = self.collect().await;
        let state = State::of(&files, answer.as_ref().as_ref().map_err(String::as_str));
        let json = serde_json::to_string(&state).unwrap_or_else(|_| "{}".to_owned());
        printable::json(&json).into_owned()
    }

    async fn collect(self: &Arc<Self>) -> (Files, Answer) {
        let source = Arc::clone(self);
        // A separate task: a client that disconnects does not cancel the query or cause a second one.
        let result = tokio::spawn(async move { source.query_slurm().await }).await;
        let answer = result.unwrap_or_else(|_| Arc::new(Err("slurmctld could not be queried".to_owned())));
        let mut files = overview::files(&self.run);
        let mut allocations = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        allocations.apply(&mut files, answer.as_ref().as_ref().map_err(String::as_str));
        drop(allocations);
        (files, answer)
    }

    /// Runs one query at a time; concurrent callers wait for its result.
    async fn query_slurm(&self) -> Answer {
        let mut cache = self.answer.lock().await;
        if let Some((at, answer)) = cache.as_ref() {
            if at.elapsed() < limit::CACHE_LIFETIME {
                return Arc::clone(answer);
            }
        }
        let (run, accounting) = (self.run.clone(), self.accounting);
        let query = tokio::task::spawn_blocking(move || {
            let snapshot = overview::files(&run).snapshot;
            slurm::query(snapshot.and_then(|snapshot| snapshot.prepared).as_ref(), accounting)
        });
        let answer = Arc::new(query.await.unwrap_or_else(|_| Err("slurmctld could not be queried".to_owned())));
        *cache = Some((Instant::now(), Arc::clone(&answer)));
        answer
    }
}
