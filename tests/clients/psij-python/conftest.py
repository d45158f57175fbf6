import pytest
from executor_test_params import ExecutorTestParams


def pytest_generate_tests(metafunc):
    if "execparams" in metafunc.fixturenames:
        ways = [ExecutorTestParams("slurm", launcher) for launcher in ("single", "multiple", "srun")]
        metafunc.parametrize("execparams", ways, ids=str)
