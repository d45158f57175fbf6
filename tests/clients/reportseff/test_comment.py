"""reportseff reads the comment of a job that used 120 of 240 s of CPU time, 1 of 2 MiB, and of each GPU 66.7 % and half of the memory."""

import os
import subprocess


def test_reportseff_reads_the_comment():
    columns = "jobid,cpueff,memeff,gpueff,gpumem"
    command = ["reportseff", "--no-color", "--parsable", "--format", columns, os.environ["JOB"]]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [field.strip() for field in lines[-1].split("|")] == [os.environ["JOB"], "50.0", "50.0", "66.7", "50.0"]
