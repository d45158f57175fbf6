//! Notes that slurminit writes to a job's AdminComment, for its user and for a later start.

use super::SLURM;
use machine::node_report::OUR_REASON;
use model::jobs::SLURMSTEPD_DIED;

/// An event in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobNote {
    /// A clean stop has notified the job.
    ContainerStopped,
    /// The previous start ended without a clean stop.
    ContainerEnded,
    /// The job may run only once, and had started when slurmctld died.
    AlreadyStarted,
    /// The job's srun or salloc has ended.
    WithoutClient,
    /// The job's batch script has ended or never started.
    WithoutScript,
    /// The slurmstepd of the job's batch script was killed or has crashed.
    SlurmstepdDied,
}

impl JobNote {
    /// The text of the note.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::ContainerStopped => "the container stopped while this job ran",
            Self::ContainerEnded => "the container ended while this job ran",
            Self::AlreadyStarted => "the job had started when slurmctld died, and must not run again (--no-requeue)",
            Self::WithoutClient => "the job's srun or salloc no longer runs",
            Self::WithoutScript => "the job's script ended, or was about to start, while slurmctld or slurmd was down",
            Self::SlurmstepdDied => SLURMSTEPD_DIED,
        }
    }

    /// The note in an AdminComment, if it records that the container stopped or ended.
    pub(super) fn parse(comment: &str) -> Option<Self> {
        let text = comment.strip_prefix(OUR_REASON)?;
        [Self::ContainerStopped, Self::ContainerEnded].into_iter().find(|note| text.starts_with(note.text()))
    }

    /// Writes the note to jobs. For a job that has just ended this may fail.
    pub(super) fn write(self, jobs: &[&str]) {
        if !jobs.is_empty() {
            let _ = SLURM.update_job(&jobs.join(","), &[format!("admincomment={OUR_REASON}{}", self.text())]);
        }
    }
}
