"""One JSON line per update; the numbers of real runs are judged in tests/distributed/test_failing_ranks.py."""

import errno
import os
from pathlib import Path

import pytest

from ddp_tokens.files import read_json_lines
from ddp_tokens.progress import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    OPTIMIZER,
    REDUCING_BACKWARD,
    WrittenProgress,
)
from ddp_tokens.rank_log import RankLog, log_file


@pytest.fixture
def progress(tmp_path):
    written = WrittenProgress(tmp_path, 1, "launch")
    yield written
    written.close(remove=True)


def test_the_seconds_of_a_line_are_parts_of_the_update(tmp_path, progress, monkeypatch):
    """20 s, of which 1 + 2 + 4 + 3 + 2 + 0.5 are told: 7.5 are left."""
    log = RankLog(tmp_path, 1, 50, 2)
    progress.since_update = 100.0
    told = {DATA: 1.0, FORWARD: 2.0, BACKWARD: 4.0, REDUCING_BACKWARD: 3.0, COMMUNICATION: 2.0, OPTIMIZER: 0.5}
    progress.seconds.update(told)
    monkeypatch.setattr("time.perf_counter", lambda: 120.0)
    log.update({"step": 51, "units": 48, "loss_sum": 120.0}, {"units": 12, "loss_sum": 12.0}, progress)
    start, line = read_json_lines(log_file(tmp_path, 1))
    assert (start["after_step"], start["world_size"], start["pid"]) == (50, 2, os.getpid())
    assert start["host"] == os.uname().nodename
    assert line == {
        "step": 51,
        "rank_units": 12,
        "units": 48,
        "loss_sum": 12.0,
        "data_s": 1.0,
        "forward_s": 2.0,
        "backward_s": 4.0,
        "reducing_backward_s": 3.0,
        "communication_s": 2.0,
        "optimizer_s": 0.5,
        "other_s": 7.5,
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
