"""One JSON line per update; the numbers of real runs are judged in tests/distributed/test_failing_ranks.py."""

import errno
import os
from pathlib import Path

import pytest

from ddp_tokens.files import read_json_lines
from ddp_tokens.progress import COMMUNICATION, REDUCING_BACKWARD, WrittenProgress
from ddp_tokens.rank_log import RankLog, log_file


@pytest.fixture
def progress(tmp_path):
    written = WrittenProgress(tmp_path, 1, "launch")
    yield written
    written.close(remove=True)


def test_the_seconds_of_a_line_are_parts_of_the_update(tmp_path, progress, monkeypatch):
    """10 s of which 2 in collectives and 3 in the reducing backward: 5 are left."""
    log = RankLog(tmp_path, 1, 50, 2)
    progress.since_update = 100.0
    progress.seconds.update({COMMUNICATION: 2.0, REDUCING_BACKWARD: 3.0})
    monkeypatch.setattr("time.perf_counter", lambda: 110.0)
    log.update({"step": 51, "units": 48, "loss_sum": 120.0}, {"units": 12, "loss_sum": 12.0}, progress)
    start, line = read_json_lines(log_file(tmp_path, 1))
    assert (start["after_step"], start["world_size"], start["pid"]) == (50, 2, os.getpid())
    assert line == {
        "step": 51,
        "rank_units": 12,
        "units": 48,
        "loss_sum": 12.0,
        "compute_s": 5.0,
        "communication_s": 2.0,
        "reducing_backward_s": 3.0,
    }


def test_a_line_that_was_cut_off_is_ended_by_the_next_start(tmp_path):
    log_file(tmp_path, 1).write_text('{"step": 1}\n{"ste')
    RankLog(tmp_path, 1, 0, 2)
    RankLog(tmp_path, 1, 0, 2)
    lines = log_file(tmp_path, 1).read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"ste']
    assert [line.startswith('{"after_step": 0') for line in lines[2:]] == [True, True]


def test_a_full_disk_names_the_log(tmp_path):
    """/dev/full is a disk on which no byte can be written."""
    log = RankLog(tmp_path, 1, 0, 2)
    log.path = Path("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        log._append("a line\n")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
