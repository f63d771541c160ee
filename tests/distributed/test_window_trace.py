"""The trace sees what happens and changes nothing."""

from typing import Any

import pytest
import torch

from ddp_tokens.controls.gradients import synchronized_forward_left
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.gradients import token_mean, traced
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.test_accumulation import TwoBuckets
from tests.distributed.tiny import SquaredError, row

TARGETS = [[[1, 2], [3], [4]], [[4], [5, 6], [7, 8, 9]]]


def traced_and_not(world: World, way_name: str) -> dict[str, Any]:
    """The same window twice, on a model that is watched and on one that is not."""
    way = {"token_mean": token_mean, "synchronized_forward_left": synchronized_forward_left}[way_name]
    workload, rows = SquaredError(), [[row(*labels)] for labels in TARGETS[world.rank]]
    plain, watched = (wrap_for_ddp(TwoBuckets()) for _ in range(2))
    way(plain, workload, rows, "window 1", world)
    record = traced(way, watched, workload, rows, world)
    return {
        "record": record,
        "gradients": [[float(p.grad[0]) for p in model.module.parameters()] for model in (plain, watched)],
        "hooks_left": len(watched.module._forward_pre_hooks),
    }


def test_a_right_window_is_seen_as_it_is_and_has_the_same_gradient(tmp_path):
    """Targets 1, 2 | 3 | 4 and 4 | 5, 6 | 7, 8, 9: ten units, sum 49. Gradient at 0: -2 * 49 / 10, and twice that."""
    for found in run_ranks(traced_and_not, 2, tmp_path, "token_mean"):
        forwards = found["record"]["forwards"]
        assert [forward["gradients"] for forward in forwards] == [False, True, True]
        assert [bool(forward["reductions"]) for forward in forwards] == [False, False, True]
        assert not found["record"]["moved"]
        assert found["record"]["microbatches"] == 3
        plain, watched = found["gradients"]
        assert plain == pytest.approx([-9.8, -19.6], rel=1e-14)
        assert watched == pytest.approx(plain, rel=1e-15)
        assert found["hooks_left"] == 0


def test_a_forward_that_arms_the_reducer_is_seen(tmp_path):
    """The first microbatch of no_sync reduces, which no figure of the loss or the gradient shows."""
    for found in run_ranks(traced_and_not, 2, tmp_path, "synchronized_forward_left"):
        reduced = [bool(forward["reductions"]) for forward in found["record"]["forwards"]]
        assert reduced == [False, True, False, True]
        plain, watched = found["gradients"]
        assert plain == pytest.approx([-9.8, -19.6], rel=1e-14)
        assert watched == pytest.approx(plain, rel=1e-14)


def move_inside(world: World) -> dict[str, Any]:
    bare = TwoBuckets()
    model = wrap_for_ddp(bare)

    def way(model, workload, microbatches, name, world):
        token_mean(model, workload, microbatches, name, world)
        with torch.no_grad():
            bare.second[-1] += 1.0

    return traced(way, model, SquaredError(), [[row(1)], [row(2)]], world)


def test_a_single_value_that_moves_at_the_end_is_seen(tmp_path):
    [record] = run_ranks(move_inside, 1, tmp_path)
    assert record["moved"]
    assert [forward["moved"] for forward in record["forwards"]] == [False, False]
