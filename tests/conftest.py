"""Settings for all tests."""

import pytest
from hypothesis import settings

# The same examples in every run, and no failure because a machine was busy.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--all-hosts", action="store_true", help="every test on several hosts; without, one of each kind")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--all-hosts"):
        return
    left_out = pytest.mark.skip(reason="one test of this kind runs; all of them by `make test-hosts`")
    for item in items:
        if item.get_closest_marker("all_hosts"):
            item.add_marker(left_out)
