"""The tools that psij's tests import."""

from datetime import timedelta
from pathlib import Path

from psij import JobAttributes, JobExecutor, JobState


def _make_test_dir():
    (Path.home() / ".psij" / "test").mkdir(parents=True, exist_ok=True)


def _get_timeout(execparams):
    return timedelta(minutes=5)


def _get_executor_instance(execparams, job=None):
    if job is not None:
        job.spec.launcher = execparams.launcher
        job.spec.attributes = job.spec.attributes or JobAttributes()
    return JobExecutor.get_instance(execparams.executor, url=execparams.url)


def assert_completed(job, status, attached=False):
    assert status is not None, "the job did not end in time"
    assert status.state == JobState.COMPLETED, f"{status.state}: {status.message}"
