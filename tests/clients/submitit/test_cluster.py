"""submitit's public interface on the real cluster."""

import os
import time

import pytest
import submitit
from submitit.core.utils import FailedJobError


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.2)


def where():
    environment = submitit.JobEnvironment()
    return environment.global_rank, environment.num_tasks, os.environ["SLURMD_NODENAME"]


@pytest.fixture
def executor():
    # A directory that the nodes share.
    executor = submitit.AutoExecutor(folder=os.path.expanduser("~/submitit/%j"), cluster="slurm")
    executor.update_parameters(timeout_min=5, mem_gb=1, slurm_additional_parameters={"export": "ALL"})
    return executor


def test_a_result_comes_back(executor):
    job = executor.submit(sum, [1, 2, 3])
    assert job.result() == 6
    # Slurm's accounting records the end a moment later.
    until(lambda: job.state == "COMPLETED")


def test_an_exception_comes_back(executor):
    with pytest.raises(FailedJobError, match="ZeroDivisionError"):
        executor.submit(divmod, 1, 0).result()


def test_tasks_of_several_nodes(executor):
    executor.update_parameters(nodes=2, tasks_per_node=2)
    results = executor.submit(where).results()
    assert [rank for rank, _, _ in results] == [0, 1, 2, 3]
    assert {tasks for _, tasks, _ in results} == {4}
    assert len({node for _, _, node in results}) == 2


def test_an_array(executor):
    executor.update_parameters(slurm_array_parallelism=2)
    jobs = executor.map_array(pow, [2, 3, 4], [2, 2, 2])
    assert [job.result() for job in jobs] == [4, 9, 16]


def test_a_job_is_cancelled(executor):
    job = executor.submit(time.sleep, 600)
    until(lambda: job.state == "RUNNING")
    job.cancel(check=False)
    until(lambda: job.state.startswith("CANCELLED"))


class Resumed:
    """Leaves a note at its first start, and ends at its second."""

    def __init__(self, note):
        self.note = note

    def __call__(self):
        if os.path.exists(self.note):
            return "resumed"
        with open(self.note, "w"):
            pass
        time.sleep(600)

    def checkpoint(self):
        return submitit.helpers.DelayedSubmission(self)


def test_a_preempted_job_is_requeued_from_its_checkpoint(executor):
    note = os.path.expanduser(f"~/note-{os.getpid()}")
    job = executor.submit(Resumed(note))
    until(lambda: os.path.exists(note))
    job._interrupt(timeout=False)
    assert job.result() == "resumed"
