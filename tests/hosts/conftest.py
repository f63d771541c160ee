"""Where two hosts can be made, see two_hosts.py."""

from collections.abc import Iterator

import pytest

from tests.hosts.two_hosts import TwoHosts, missing, two_hosts


@pytest.fixture(scope="session")
def _possible() -> None:
    reason = missing()
    if reason:
        pytest.skip(f"no two hosts: {reason}")


@pytest.fixture
def hosts(_possible: None) -> Iterator[TwoHosts]:
    with two_hosts() as both:
        yield both
