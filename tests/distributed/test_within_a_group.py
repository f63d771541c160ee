"""Collectives on a part of the ranks: on 3 ranks, ranks 0 and 1 together and rank 2 alone."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddp_tokens.distributed import (
    barrier,
    global_count,
    is_main_process,
    largest_over_ranks,
    sum_over_ranks,
    texts_of_ranks,
    together,
    within,
    wrap_for_ddp,
)
from ddp_tokens.errors import CheckpointError
from ddp_tokens.window_trace import trace
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks

PARTS = [[0, 1], [2]]


def own_part(world: World) -> tuple[Any, World]:
    """The group of this rank, and the world as this group counts it."""
    groups = [dist.new_group(part) for part in PARTS]  # every rank makes every group
    [index] = [index for index, part in enumerate(PARTS) if world.rank in part]
    return groups[index], World(PARTS[index].index(world.rank), world.local_rank, len(PARTS[index]))


def figures(world: World) -> dict[str, Any]:
    return {
        "count": global_count(10**world.rank),
        "sums": sum_over_ranks([float(10**world.rank), 1.0]),
        "largest": largest_over_ranks(-world.rank),
        "is_main": is_main_process(),
        "texts": texts_of_ranks(str(world.rank), "cpu", "texts"),
    }


def count_in_parts(world: World) -> list[dict[str, Any]]:
    group, _ = own_part(world)
    before = figures(world)
    with within(group):
        inside = figures(world)
        with within(None):
            within_none = figures(world)
        again = figures(world)
    return [before, inside, within_none, again, figures(world)]


def test_inside_the_block_each_part_sums_for_itself_and_afterwards_all_do(tmp_path):
    """Ranks 0, 1, 2 give 1, 10, 100: 111 in all, 11 on ranks 0 and 1, 100 on rank 2. Largest of 0, -1, -2 likewise."""
    everywhere = {"count": 111, "sums": [111.0, 3.0], "largest": 0, "texts": ["0", "1", "2"]}
    parts = [
        {"count": 11, "sums": [11.0, 2.0], "largest": 0, "texts": ["0", "1"]},
        {"count": 11, "sums": [11.0, 2.0], "largest": 0, "texts": ["0", "1"]},
        {"count": 100, "sums": [100.0, 1.0], "largest": -2, "texts": ["2"]},
    ]
    for rank, found in enumerate(run_ranks(count_in_parts, 3, tmp_path)):
        whole = everywhere | {"is_main": rank == 0}
        part = parts[rank] | {"is_main": rank in (0, 2)}
        assert found == [whole, part, whole, part, whole]


def count_with_an_error_inside(world: World) -> list[int]:
    group, _ = own_part(world)
    with pytest.raises(ArithmeticError), within(group):
        raise ArithmeticError
    return [global_count(1)]


def test_an_exception_leaves_the_part_too(tmp_path):
    assert run_ranks(count_with_an_error_inside, 3, tmp_path) == [[3]] * 3


def one_meets_alone(world: World) -> int:
    """Rank 2 passes a barrier while ranks 0 and 1 wait for the key that it sets after that."""
    store = dist.distributed_c10d._get_default_store()
    group, _ = own_part(world)
    if world.rank == 2:
        with within(group):
            barrier()
        store.set("rank 2 passed", "yes")
    else:
        store.wait(["rank 2 passed"])
        with within(group):
            barrier()
    return global_count(1)


def test_a_barrier_waits_for_its_own_part_only(tmp_path):
    """Over all ranks it would wait until the group's time limit, which is an error."""
    assert run_ranks(one_meets_alone, 3, tmp_path) == [3, 3, 3]


def write_together(world: World) -> str:
    group, own = own_part(world)
    try:
        with within(group), together("write", own):
            if world.rank == 1:
                raise OSError("disk full")
    except (OSError, CheckpointError) as error:
        return str(error)
    return "no error"


def test_a_failure_is_told_to_its_own_part_only(tmp_path):
    assert run_ranks(write_together, 3, tmp_path) == [
        "rank 1 could not write, and says why",
        "disk full",
        "no error",
    ]


def average_in_parts(world: World, keep_first_layout: bool) -> dict[str, Any]:
    """Weights 1, 2, 3 on ranks 0, 1, 2; the gradient of weight * input is the input, 10 to the power of the rank."""
    group, _ = own_part(world)

    def wrapped() -> Any:
        bare = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.constant_(bare.weight, world.rank + 1)
        return wrap_for_ddp(bare, keep_first_layout)

    def backward(model: Any) -> float:
        model.zero_grad()
        model(torch.tensor([[10.0**world.rank]], dtype=torch.float64)).sum().backward()
        return float(model.module.weight.grad)

    with within(group):
        model, watched = wrapped(), wrapped()
        inside = backward(model)
        trace(watched, lambda: backward(watched))
    whole = wrapped()
    return {
        "weights": [float(one.module.weight) for one in (model, whole)],
        "inside": inside,
        "watched": float(watched.module.weight.grad),
        "kept_after": backward(model),
        "whole": backward(whole),
    }


@pytest.mark.parametrize("keep_first_layout", [True, False])
def test_a_model_wrapped_inside_averages_over_its_part(tmp_path, keep_first_layout):
    """Ranks 0 and 1: (1 + 10) / 2 and rank 0's weight, 1. Rank 2: 100 and its own 3. Over all: 111 / 3 = 37 and 1."""
    for rank, found in enumerate(run_ranks(average_in_parts, 3, tmp_path, keep_first_layout)):
        part, weight = (100.0, 3.0) if rank == 2 else (5.5, 1.0)
        assert found == {
            "weights": [weight, 1.0],
            "inside": part,
            "watched": part,
            "kept_after": part,
            "whole": pytest.approx(37.0, rel=1e-15),
        }


def enter_another_part(world: World) -> str:
    alone = dist.new_group([2])
    dist.barrier()  # a rank that leaves before the others have met all of it ends them
    if world.rank == 2:
        with within(alone):
            return str(global_count(7))
    with pytest.raises(ValueError, match="not in this group") as refused, within(alone):
        pytest.fail("it was let in")
    return f"{refused.value}; all ranks: {is_main_process()}"


def test_a_rank_outside_the_group_is_refused(tmp_path):
    """torch would give it back its own number, with a warning."""
    text = "rank {} is not in this group: only its members may work within it; all ranks: {}"
    assert run_ranks(enter_another_part, 3, tmp_path) == [text.format(0, True), text.format(1, False), "7"]
