"""A rank's account of where it is, as another process reads it."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from ddp_tokens import progress as module
from ddp_tokens.progress import (
    FORWARD,
    REDUCING_BACKWARD,
    SIZE,
    UNWATCHED,
    WrittenProgress,
    is_gone,
    launch_name,
    place_file,
    read_places,
)
from ddp_tokens.world import World

LAUNCH = "a launch"


@pytest.fixture
def progress(tmp_path):
    written = WrittenProgress(tmp_path, 1, LAUNCH)
    yield written
    os.close(written._descriptor)


def read(folder, rank=1, launch=LAUNCH):
    return read_places(folder, World(rank=0, size=3), launch).get(rank)


def test_others_read_what_the_rank_says_of_itself(progress, tmp_path):
    assert (read(tmp_path).step, read(tmp_path).entered, read(tmp_path).pid) == (None, 0, os.getpid())
    progress.begins_update(3)
    progress.begins_microbatch(2)
    with progress.entered("all-reduce of the count"):
        during = read(tmp_path)
    after = read(tmp_path)
    assert (during.step, during.microbatch, during.collective) == (3, 2, "all-reduce of the count")
    assert (during.inside, during.entered) == (True, 1)
    assert (after.inside, after.entered, after.collective) == (False, 1, "all-reduce of the count")
    progress.begins_update(4)
    assert (read(tmp_path).step, read(tmp_path).microbatch) == (4, None)


def test_a_collective_that_raised_was_not_left(progress, tmp_path):
    with pytest.raises(RuntimeError), progress.entered("barrier of all ranks"):
        raise RuntimeError
    assert read(tmp_path).inside


def test_a_shorter_account_replaces_a_longer_one_whole(progress, tmp_path):
    progress.failed('"' * 10_000)
    assert place_file(tmp_path, 1).stat().st_size == SIZE
    assert read(tmp_path).raised == '"' * 300
    progress.failed("\U0001f600" * 10_000)  # the longest that JSON writes for a character
    assert place_file(tmp_path, 1).stat().st_size == SIZE
    assert read(tmp_path).raised == "\U0001f600" * 300
    progress.failed("short,\n  in lines", blames=2)
    assert (read(tmp_path).raised, read(tmp_path).blames) == ("short, in lines", 2)


def test_what_an_earlier_launch_left_and_what_is_half_written_do_not_count(progress, tmp_path):
    assert read(tmp_path, launch="another launch") is None
    whole = place_file(tmp_path, 1).read_text()
    place_file(tmp_path, 1).write_text(whole[: len(whole.rstrip()) // 2])
    assert read(tmp_path) is None
    place_file(tmp_path, 1).write_text(json.dumps({"rank": 1}))
    assert read(tmp_path) is None
    assert read(tmp_path, rank=2) is None


def test_a_rank_does_not_read_itself(progress, tmp_path):
    assert read_places(tmp_path, World(rank=1, size=3), LAUNCH) == {}


def test_the_file_goes_with_success_and_stays_after_a_failure(tmp_path):
    for remove in (False, True):
        WrittenProgress(tmp_path, 1, LAUNCH).close(remove)
        assert place_file(tmp_path, 1).exists() != remove


def test_seconds_are_counted_by_kind_and_anew_in_each_update(progress):
    progress.begins_update(1)
    with progress.entered("a"):
        pass
    with progress.entered("b", "another kind"):
        pass
    assert {kind: value > 0 for kind, value in progress.seconds.items()} == {
        "communication": True,
        "another kind": True,
    }
    progress.begins_update(2)
    assert dict(progress.seconds) == {}


def test_a_process_is_gone_when_it_has_ended_even_if_nobody_has_asked_for_its_end(progress, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    of_child = replace(progress.place, pid=child.pid, born=module._state_and_birth(child.pid)[1])
    assert not is_gone(of_child)
    assert is_gone(replace(of_child, born="1"))  # another process under the same number
    assert not is_gone(replace(of_child, born="1", machine="another host/boot"))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
    assert is_gone(of_child)
    child.communicate()
    assert is_gone(of_child)


def test_a_launch_is_told_apart_by_what_torchrun_sets():
    first = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": "1"}
    assert launch_name(first) == launch_name(first | {"RANK": "1"}) == "x 0 - 1"
    assert launch_name(first) != launch_name(first | {"TORCHELASTIC_RESTART_COUNT": "1"})


def test_without_a_watch_nothing_is_kept():
    UNWATCHED.begins_update(1)
    UNWATCHED.begins_microbatch(1)
    UNWATCHED.failed("x")
    with UNWATCHED.entered("all-reduce"):
        pass
    assert vars(UNWATCHED) == {}


def test_each_part_of_an_update_is_marked_by_its_name(progress):
    """As a profiler shows them; a collective by its own name, and the backward that reduces as a backward."""
    names = []
    progress.marked = lambda name: names.append(name) or nullcontext()
    with progress.spent(FORWARD), progress.entered("all-reduce of the count"):
        pass
    with progress.entered("all-reduce of the gradients", REDUCING_BACKWARD):
        pass
    assert names == ["forward", "all-reduce of the count", "backward"]
