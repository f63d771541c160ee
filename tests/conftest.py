"""Settings for all tests."""

import pytest
from hypothesis import settings

# The same examples in every run, and no failure because a machine was busy.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


# Marker -> why a test that has it does not run without the option of that name.
ON_REQUEST = {
    "all_hosts": "one test of this kind runs; all of them by `make test-hosts`",
    "containers": "builds an image and runs it, by `make test-containers`",
}


def pytest_addoption(parser):
    for marker, reason in ON_REQUEST.items():
        parser.addoption(option(marker), action="store_true", help=f"run what is left out otherwise: {reason}")


def pytest_collection_modifyitems(config, items):
    for marker, reason in ON_REQUEST.items():
        if config.getoption(option(marker)):
            continue
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def option(marker):
    return f"--{marker.replace('_', '-')}"
