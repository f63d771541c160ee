"""The helper itself: a test of ranks is worth nothing if a failing, hanging or dying rank goes unnoticed."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch.distributed as dist

from ddp_tokens.distributed import barrier, process_group
from ddp_tokens.world import World
from tests.distributed.ranks import RankError, run_ranks


def describe(world: World, word: str) -> list[object]:
    return [world.rank, dist.get_rank(), dist.get_world_size(), dist.get_backend(), word]


def note_pid(world: World, folder: Path) -> None:
    (folder / f"pid-{world.rank}").write_text(str(os.getpid()))
    barrier()


def fail_on_rank_1(world: World, folder: Path) -> None:
    note_pid(world, folder)
    if world.rank == 1:
        raise ArithmeticError("only rank 1")
    signal.pause()


def hang_on_rank_1(world: World, folder: Path) -> None:
    note_pid(world, folder)
    if world.rank == 1:
        signal.pause()


def die_on_rank_1(world: World, folder: Path) -> None:
    note_pid(world, folder)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def join_twice(world: World) -> list[bool]:
    seen = [dist.is_initialized()]
    for _ in range(2):
        with process_group("gloo", 20):
            barrier()
            seen.append(dist.is_initialized())
        seen.append(dist.is_initialized())
    return seen


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_runs_and_answers_by_rank(tmp_path, world_size):
    expected = [[rank, rank, world_size, "gloo", "word"] for rank in range(world_size)]
    assert run_ranks(describe, world_size, tmp_path, "word") == expected


def test_ranks_join_several_groups_one_after_another(tmp_path):
    assert run_ranks(join_twice, 2, tmp_path, joined=False) == [[False, True, False, True, False]] * 2


def test_a_failing_rank_is_named_with_its_traceback_and_its_siblings_are_gone(tmp_path):
    with pytest.raises(RankError, match=r"(?s)rank 1 ended with exit code 1.*fail_on_rank_1.*only rank 1"):
        run_ranks(fail_on_rank_1, 3, tmp_path, tmp_path)
    assert_all_gone(tmp_path, 3)


def test_a_hanging_rank_is_named_with_its_stack_and_is_gone(tmp_path):
    with pytest.raises(TimeoutError, match=r"(?s)ranks \[1\] did not end.*hang_on_rank_1"):
        run_ranks(hang_on_rank_1, 2, tmp_path, tmp_path, timeout=3)
    assert_all_gone(tmp_path, 2)


def test_a_killed_rank_is_named_with_its_signal_and_its_siblings_are_gone(tmp_path):
    with pytest.raises(RankError, match=r"rank 1 ended with exit code -9"):
        run_ranks(die_on_rank_1, 2, tmp_path, tmp_path)
    assert_all_gone(tmp_path, 2)


def test_results_travel_as_json_with_every_bit_of_a_float(tmp_path):
    [value] = run_ranks(third, 1, tmp_path, joined=False)
    assert value == 1 / 3
    assert json.loads(json.dumps(1 / 3)) == 1 / 3


def third(world: World) -> float:
    return 1 / 3


def assert_all_gone(folder: Path, world_size: int) -> None:
    pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(world_size)]
    assert len(set(pids)) == world_size
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
