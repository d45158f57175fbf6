"""ReFrame's public interface on the real cluster."""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable


class OnNodes(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "printenv"
    executable_opts = ["SLURMD_NODENAME"]
    time_limit = "2m"
    nodes = variable(int, value=1)

    def names(self):
        return sn.extractall(r"^(nid0[0-3])$", self.stdout, 1)

    @sanity_function
    def has_each_task(self):
        return sn.assert_eq(sn.count(self.names()), self.num_tasks)


@rfm.simple_test
class OneTask(OnNodes):
    num_tasks = 1


@rfm.simple_test
class TwoTasksOnEachOfTwoNodes(OnNodes):
    num_tasks = 4
    num_tasks_per_node = 2

    @sanity_function
    def has_both_nodes(self):
        return sn.all(
            [sn.assert_eq(sn.count(self.names()), 4), sn.assert_eq(sn.count_uniq(self.names()), 2)]
        )


@rfm.simple_test
class AllIdleNodes(OnNodes):
    """A flexible allocation: ReFrame counts the nodes by `scontrol show nodes`."""

    num_tasks = 0
    num_tasks_per_node = 1

    @sanity_function
    def has_some(self):
        return sn.assert_ge(sn.count_uniq(self.names()), 1)


@rfm.simple_test
class OnThatNode(OnNodes):
    num_tasks = 1

    @run_before("run")
    def choose(self):
        self.job.options = ["--nodelist=nid02"]

    @sanity_function
    def is_there(self):
        return sn.assert_found(r"^nid02$", self.stdout)


@rfm.simple_test
class AnExitCode(OnNodes):
    """The backend `slurm` reads the exit code from sacct; squeue does not report it."""

    num_tasks = 1
    executable = "false"
    executable_opts = []

    @sanity_function
    def failed(self):
        tells = self.current_partition.scheduler.registered_name == "slurm"
        return sn.assert_eq(self.job.exitcode, 1 if tells else None)
