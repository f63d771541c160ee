"""init_distributed, is_main_process, barrier and cleanup, as a script of one's own calls them."""

import time

import pytest
import torch.distributed as dist

from ddp_tokens import distributed
from ddp_tokens.distributed import barrier, cleanup, global_count, is_main_process
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks


def join_and_leave(world: World) -> dict:
    before = [dist.is_initialized(), is_main_process(), global_count(5)]
    barrier()
    joined = distributed.init_distributed("gloo", 20)
    inside = [dist.is_initialized(), is_main_process(), global_count(5)]
    backend = dist.get_backend()
    cleanup()
    after = [dist.is_initialized(), is_main_process(), global_count(5)]
    barrier()
    cleanup()
    return {"joined": joined, "backend": backend, "before": before, "inside": inside, "after": after}


def test_two_ranks_join_and_leave_one_group(tmp_path):
    """Outside of a group each process is a world of its own: main, and nobody to wait for. Inside: 5 + 5."""
    for rank, found in enumerate(run_ranks(join_and_leave, 2, tmp_path, joined=False)):
        alone = [False, True, 5]
        assert found == {
            "joined": [rank, 2],
            "backend": "gloo",
            "before": alone,
            "inside": [True, rank == 0, 10],
            "after": alone,
        }


def who_was_there(world: World, waits: bool) -> bool:
    """On rank 0, whether rank 1, which is late, had come before rank 0 went on."""
    distributed.init_distributed("gloo", 20)
    try:
        store = dist.distributed_c10d._get_default_store()
        if world.rank == 1:
            store.wait(["rank 0 is about to wait"])
            time.sleep(0.5)
            store.set("rank 1 has come", "yes")
        else:
            store.set("rank 0 is about to wait", "yes")
        if waits:
            barrier()
        was_there = store.check(["rank 1 has come"])
        barrier()
        return was_there
    finally:
        cleanup()


@pytest.mark.parametrize("waits", [True, False])
def test_a_barrier_holds_a_rank_until_the_others_have_come(tmp_path, waits):
    """Without it, the injected fault, rank 0 goes on before the other has come."""
    assert run_ranks(who_was_there, 2, tmp_path, waits, joined=False)[0] is waits


def raise_by_hand(world: World) -> list:
    seen = []
    try:
        try:
            distributed.init_distributed("gloo", 20)
            seen += [dist.is_initialized(), global_count(world.rank + 1)]
            raise ArithmeticError("inside")
        finally:
            cleanup()
    except ArithmeticError as error:
        seen += [str(error), dist.is_initialized()]
    rank, size = distributed.init_distributed("gloo", 20)
    try:
        return [*seen, rank, size, global_count(10)]
    finally:
        cleanup()


def test_an_exception_leaves_the_group_and_another_can_be_joined(tmp_path):
    """Ranks 0 and 1 count 1 + 2 in the first group and 10 + 10 in the second."""
    found = run_ranks(raise_by_hand, 2, tmp_path, joined=False)
    assert found == [[True, 3, "inside", False, rank, 2, 20] for rank in (0, 1)]


def fail_on_one(world: World) -> list:
    try:
        distributed.init_distributed("gloo", 20)
        barrier()
        if world.rank == 1:
            raise ArithmeticError("inside")
        global_count(1)
    except (ArithmeticError, RuntimeError) as error:
        return [type(error).__name__]
    finally:
        cleanup()
    return ["no error"]


def test_a_rank_that_leaves_by_hand_ends_the_wait_of_the_other(tmp_path):
    """Long before the group's limit, or this helper's: rank 0 hears that the connection is closed."""
    first, second = run_ranks(fail_on_one, 2, tmp_path, joined=False)
    assert second == ["ArithmeticError"]
    assert first not in (["no error"], ["ArithmeticError"])
