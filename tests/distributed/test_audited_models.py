"""Models and loops of many shapes on two ranks: where the formula is right they pass, and a mean of means is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ddp_tokens.world import World
from tests.distributed import audited_models as shapes
from tests.distributed.audited import Loop, Words, units_in, window_of
from tests.distributed.ranks import run_ranks

RIGHT, WRONG = "right", "mean_of_means"


def in_dtype(world: World, way: str, dtype: torch.dtype) -> Loop:
    return Loop(world, lambda: Words().to(dtype), way=way)


def under_autocast(world: World, way: str) -> Loop:
    loop = Loop(world, way=way)
    loop.autocast = torch.bfloat16
    return loop


def of_recurrent(world: World, way: str) -> Loop:
    class Shortened(Loop):
        """Rows are shorter by their index."""

        def batches(self, rank: int, window: int) -> list[Any]:
            found = super().batches(rank, window)
            for _, labels in found:
                for row in range(1, len(labels)):
                    labels[row, -row:] = -100
            return found

    return Shortened(world, shapes.Recurrent, way=way)


CASES: dict[str, Callable[[World, str], dict[str, Any]]] = {
    "dict": lambda w, way: shapes.OfLogits(w, shapes.ReturnsDict, way).audited(shapes.of_logits),
    "tuple": lambda w, way: shapes.OfLogits(w, shapes.ReturnsTuple, way).audited(shapes.of_logits),
    "object": lambda w, way: shapes.OfLogits(w, shapes.ReturnsObject, way).audited(shapes.of_logits),
    "positional": lambda w, way: shapes.Positional(w, way=way).audited(),
    "batch objects": lambda w, way: shapes.Prefetching(w, way=way).audited_rows(),
    "tied": lambda w, way: Loop(w, shapes.Tied, way).audited(),
    "frozen": lambda w, way: Loop(w, shapes.Frozen, way).audited(),
    "partly unused": lambda w, way: Loop(w, shapes.PartlyUnused, way, find_unused_parameters=True).audited(),
    "two optimizers": lambda w, way: shapes.TwoOptimizers(w, way).audited(),
    "no optimizer named": lambda w, way: shapes.TwoOptimizers(w, way).audited(optimizer=None),
    "closure": lambda w, way: shapes.WithClosure(w, way=way).audited(),
    "scaler": lambda w, way: shapes.WithScaler(w, way, fused=False).audited(),
    "fused scaler": lambda w, way: shapes.WithScaler(w, way, fused=True).audited(),
    "checkpoint": lambda w, way: Loop(w, lambda: shapes.Checkpointed(False), way).audited(),
    "reentrant checkpoint": lambda w, way: Loop(w, lambda: shapes.Checkpointed(True), way).audited(),
    "whole in checkpoint": lambda w, way: shapes.WholeInCheckpoint(w, way=way).audited(),
    "whole in reentrant checkpoint": lambda w, way: shapes.WholeInReentrantCheckpoint(w, way=way).audited(),
    "compiled": lambda w, way: shapes.Compiled(w, way=way).audited(),
    "compiled around": lambda w, way: shapes.CompiledAround(w, way=way).audited(),
    "compiled in place": lambda w, way: shapes.CompiledInPlace(w, way=way).audited(),
    "autocast": lambda w, way: under_autocast(w, way).audited(),
    "float64": lambda w, way: in_dtype(w, way, torch.float64).audited(),
    "bfloat16": lambda w, way: in_dtype(w, way, torch.bfloat16).audited(),
    "recurrent": lambda w, way: of_recurrent(w, way).audited(),
    "makes tensors": lambda w, way: Loop(w, shapes.MakesTensors, way).audited(),
    "sparse": lambda w, way: shapes.OfSparse(w, way).audited(),
    "draws": lambda w, way: Loop(w, shapes.Draws, way).audited(),
    "parts in DDP": lambda w, way: shapes.InParts(w, shapes.HoldsDdp, way).audited(),
}


def all_cases(world: World) -> dict[str, Any]:
    return {f"{name}/{way}": case(world, way) for name, case in CASES.items() for way in (RIGHT, WRONG)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    ranks = run_ranks(all_cases, 2, tmp_path_factory.mktemp("models"))
    assert ranks[0] == ranks[1]
    return ranks[0]


@pytest.mark.parametrize("name", CASES)
def test_a_right_loop_passes_and_a_mean_of_means_is_named(found, name):
    right, wrong = found[f"{name}/{RIGHT}"], found[f"{name}/{WRONG}"]
    assert right.get("outcomes") == ["pass", "pass"], right
    assert (wrong.get("outcomes"), wrong.get("diagnosis")) == (["fail", "fail"], [WRONG]), wrong


def test_an_update_that_a_gradient_scaler_leaves_out_is_no_window(found):
    """The first is."""
    for name in ("scaler", "fused scaler"):
        seen = found[f"{name}/{RIGHT}"]["seen"]
        for one, window in zip(seen, (1, 2), strict=True):
            assert one["units"] == [[units_in([b]) for b in window_of(rank, window, 3)] for rank in (0, 1)]
