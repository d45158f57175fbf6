"""The fixtures and options that dask-jobqueue's tests expect. The project's own conftest.py is not in its source distribution."""

import pytest
from dask_jobqueue import SLURMCluster
from distributed.utils_test import cleanup, loop, loop_in_thread  # noqa: F401


def pytest_addoption(parser):
    parser.addoption("-E", help="the scheduler whose tests are run")


def pytest_configure(config):
    config.addinivalue_line("markers", "env(name): for this scheduler alone")
    config.addinivalue_line("markers", "xfail_env(reasons): expected to fail with these schedulers")


def pytest_collection_modifyitems(config, items):
    """Deselects the tests of other schedulers, so that none of them is counted as skipped."""
    chosen = config.getoption("-E")

    def is_ours(item):
        names = [mark.args[0] for mark in item.iter_markers("env")]
        names = [name for each in names for name in (each if isinstance(each, list) else [each])]
        return not names or chosen in names

    left_out = [item for item in items if not is_ours(item)]
    items[:] = [item for item in items if is_ours(item)]
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        for mark in item.iter_markers("xfail_env"):
            if chosen in mark.args[0]:
                item.add_marker(pytest.mark.xfail(reason=mark.args[0][chosen]))


@pytest.fixture
def EnvSpecificCluster():
    return SLURMCluster


@pytest.fixture
def Cluster():
    return SLURMCluster
