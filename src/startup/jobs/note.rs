//! What slurminit notes in a job's AdminComment, for its user and for a later start.

use super::SLURM;
use machine::node_report::OUR_REASON;

/// What has happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobNote {
    /// An ordered stop has notified it.
    Stopped,
    /// A former start ended without notice.
    Ended,
    /// It may run once, and had begun already.
    HadBegun,
    /// Its srun or salloc is gone.
    WithoutClient,
    /// Its batch script is gone.
    WithoutScript,
}

impl JobNote {
    /// The note in words.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Stopped => "the container stopped while this job ran",
            Self::Ended => "the container ended while this job ran",
            Self::HadBegun => "it had begun when slurmctld died, and --no-requeue lets it run once",
            Self::WithoutClient => "its srun or salloc is gone",
            Self::WithoutScript => "its script ended, or was to start, while slurmctld or slurmd was away",
        }
    }

    /// The note in an AdminComment that says whether a stop has notified the job.
    pub(super) fn of(comment: &str) -> Option<Self> {
        let words = comment.strip_prefix(OUR_REASON)?;
        [Self::Stopped, Self::Ended].into_iter().find(|note| words.starts_with(note.words()))
    }

    /// Writes it to jobs. For a job that has just ended this may fail.
    pub(super) fn write(self, jobs: &[&str]) {
        if !jobs.is_empty() {
            let _ = SLURM.update_job(&jobs.join(","), &[format!("admincomment={OUR_REASON}{}", self.words())]);
        }
    }
}
