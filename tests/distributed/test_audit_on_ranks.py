"""An audit of loops on real ranks: formulas are named, what happens to gradients is seen, and the run is left alone."""

import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ddp_tokens import audit
from ddp_tokens.checks.window import CLEARED_INSIDE, WEIGHTS_UPDATED_INSIDE
from ddp_tokens.world import World
from tests.distributed import audited
from tests.distributed.audited import WAYS, Case, Loop, Words, clipped, digest_of, loss_sum, run_cases
from tests.distributed.audited_models import MakesTensors
from tests.distributed.ranks import run_ranks


class ManyStates(Loop):
    """Batch normalization that is frozen, dropout, and draws from every generator between forwards."""

    def __init__(self, world: World, adam: bool) -> None:
        super().__init__(world, lambda: Words(dropout=0.2, norm=nn.BatchNorm1d(audited.WIDTH).eval()))
        if adam:
            self.optimizer = torch.optim.Adam(self.bare.parameters(), lr=0.01)
        random.seed(world.rank)
        numpy.random.seed(world.rank)

    def before(self, index: int) -> None:
        torch.rand(1)
        random.random()
        numpy.random.normal()


def kept_by(world: World, listen: bool) -> tuple[list[int], list[float]]:
    """What a forward keeps in the module besides: a list, and a tensor that is no buffer."""
    loop = Loop(world, MakesTensors)
    if listen:
        loop.audited(count=1)
    else:
        loop.windows(2)
    return loop.bare.history, loop.bare.calls.tolist()


def digests(world: World, adam: bool) -> dict[str, Any]:
    plain = ManyStates(world, adam)
    before = audited.values_of(plain.bare)
    plain.windows(4)
    listened = ManyStates(world, adam)
    with audit(listened.model, listened.optimizer, loss_sum=loss_sum, windows=3, timeout_s=20) as report:
        listened.windows(4)
    return {
        "plain": digest_of(plain),
        "listened": digest_of(listened),
        "kept": kept_by(world, listen=False),
        "kept while listened": kept_by(world, listen=True),
        "moved": before != audited.values_of(listened.bare),
        "windows": len(report.windows),
        "outcome": report.outcome,
    }


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("adam", [False, True])
def test_an_audited_run_ends_in_the_bits_of_one_that_is_not(tmp_path, world_size, adam):
    """Parameters, buffers, the optimizer's state, the generators of torch, numpy and Python, and other attributes."""
    for found in run_ranks(digests, world_size, tmp_path, adam):
        assert found["listened"] == found["plain"]
        assert found["kept while listened"] == found["kept"]
        assert len(found["kept"][0]) >= 4
        assert found["moved"]
        assert found["windows"] == 3
        assert found["outcome"] == "pass", "dropout is drawn again as it was"


CLASS_WEIGHTS = torch.linspace(0.1, 2.3, audited.WORDS)


def weighted_sum(outputs: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """CrossEntropyLoss with class weights divides by their sum."""
    labels = batch["labels"].flatten()
    weights = CLASS_WEIGHTS.to(outputs.dtype)
    total = nn.functional.cross_entropy(
        outputs.flatten(0, 1), labels, weights, ignore_index=audited.IGNORED, reduction="sum"
    )
    return total, weights[labels[labels != audited.IGNORED]].sum()


class Weighted(Loop):
    def __init__(self, world: World, right: bool) -> None:
        super().__init__(world)
        self.right = right

    def scale_of(self, window: int) -> Any:
        of_ranks = [self.batches(rank, window) for rank in range(self.world.size)]
        sums = [
            sum(float(CLASS_WEIGHTS[labels[labels != audited.IGNORED]].sum()) for _, labels in of_rank)
            for of_rank in of_ranks
        ]
        if self.right:
            return lambda units: self.world.size / sum(sums)
        return lambda units: 1 / sums[self.world.rank]

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return weighted_sum(self.model(tokens, labels=labels), {"labels": labels})


def weighted(world: World) -> dict[str, Any]:
    return run_cases(
        world, {str(right): lambda w, right=right: Weighted(w, right).audited(weighted_sum) for right in (True, False)}
    )


@pytest.mark.parametrize("world_size", [2, 3])
def test_class_weights_are_in_the_denominator(tmp_path, world_size):
    """Sums of weights that are no whole numbers; the mean that each rank makes of its own is named."""
    found, *_ = run_ranks(weighted, world_size, tmp_path)
    assert found["True"]["outcome"] == "pass"
    assert found["False"]["outcome"] == "fail"
    assert found["False"]["diagnosis"] == ["mean_of_means"]
    assert found["True"]["seen"][0]["units"][0][0] % 1, "no whole number"


def formulas(world: World) -> dict[str, Any]:
    cases: dict[str, Case] = {way: lambda w, way=way: Loop(w, way=way).audited() for way in WAYS}
    return run_cases(world, cases)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_right_formula_passes_and_each_wrong_one_is_named(tmp_path, world_size):
    """Counts over the accumulation and not over ranks are a mean of means of ranks."""
    ranks = run_ranks(formulas, world_size, tmp_path)
    assert all(rank == ranks[0] for rank in ranks[1:]), "all ranks learn the same"
    found = ranks[0]
    assert found["right"]["outcomes"] == ["pass", "pass"]
    assert min(found["right"]["power"]) > 1000
    assert found["right"]["diagnosis"] == []
    for way in ("mean_of_means", "mean_of_microbatch_means", "world_size_forgotten"):
        assert found[way]["outcomes"] == ["fail", "fail"], way
        assert found[way]["diagnosis"] == [way]
    assert found["loss_scale_kept"]["outcome"] == "inconclusive"
    assert found["loss_scale_kept"]["diagnosis"] == ["loss_scale_kept"]
    assert all(one["moved"] for one in found.values())
    assert found["right"]["seen"][0]["units"] == [
        [audited.units_in([one]) for one in audited.window_of(rank, 0, 5 - world_size)] for rank in range(world_size)
    ]


def mistakes(world: World) -> dict[str, Any]:
    return run_cases(
        world,
        {
            "cleared": lambda w: audited.Cleared(w).audited(),
            "not_cleared": lambda w: audited.NotCleared(w).audited(),
            "never_reduced": lambda w: audited.NeverReduced(w).audited(),
            "without_ddp": lambda w: audited.WithoutDdp(w).audited(),
            "weights_differ": lambda w: with_other_weights(w).audited(),
            "updated_inside": lambda w: audited.UpdatedInside(w).audited(),
            "clipped_inside": lambda w: audited.ClippedInside(w).audited(),
            "together": lambda w: audited.TogetherBackward(w).audited(),
            "evaluates_with_gradients": lambda w: Evaluating(w).audited(),
        },
    )


def with_other_weights(world: World) -> Loop:
    loop = Loop(world)
    with torch.no_grad():
        loop.bare.outer.bias.add_(0.5 * world.rank)
    return loop


class Evaluating(Loop):
    """Calls the model once more per microbatch, with gradients and without labels, to learn nothing from it."""

    def before(self, index: int) -> None:
        self.bare(torch.zeros(1, 2, dtype=torch.long))


def test_what_is_done_to_gradients_inside_a_window_is_named(tmp_path):
    ranks = run_ranks(mistakes, 2, tmp_path)
    assert ranks[0] == ranks[1]
    found = ranks[0]
    named = {
        "cleared": CLEARED_INSIDE,
        "not_cleared": "gradients_not_cleared",
        "never_reduced": "gradients_differ_between_ranks",
        "without_ddp": "gradients_differ_between_ranks",
        "weights_differ": "weights_differ_between_ranks",
        "updated_inside": WEIGHTS_UPDATED_INSIDE,
        "clipped_inside": "clipped_inside_window",
    }
    for case, name in named.items():
        assert found[case]["outcome"] == "fail", found[case]["sentence"]
        assert name in found[case]["diagnosis"], found[case]["diagnosis"]
    assert found["cleared"]["first"] == [CLEARED_INSIDE, "last_microbatch_only"]
    assert found["not_cleared"]["outcomes"][0] == "pass", "before the first window there is nothing to clear"
    assert found["never_reduced"]["outcomes"] == ["fail", "fail"]
    assert found["together"]["outcomes"] == ["pass", "pass"], found["together"]["sentence"]
    assert found["evaluates_with_gradients"]["outcomes"] == ["pass", "pass"], found["evaluates_with_gradients"]


def clippings(world: World) -> dict[str, Any]:
    def by_norm(loop: Loop) -> None:
        clip_grad_norm_(loop.bare.parameters(), 0.05)

    def part(loop: Loop) -> None:
        clip_grad_norm_(loop.bare.outer.parameters(), 0.05)

    def loosely(loop: Loop) -> None:
        clip_grad_norm_(loop.bare.parameters(), 1e6)

    def by_value(loop: Loop) -> None:
        clip_grad_value_(loop.bare.parameters(), 0.01)

    def another_model(loop: Loop) -> None:
        other = nn.Linear(2, 2)
        other(torch.ones(1, 2)).sum().backward()
        clip_grad_value_(other.parameters(), 0.01)
        clip_grad_norm_(other.parameters(), 0.01)

    def to_nothing(loop: Loop) -> None:
        clip_grad_norm_(loop.bare.parameters(), 0.0)

    hows = {"part": part, "loosely": loosely, "by_value": by_value, "another": another_model, "to_nothing": to_nothing}
    found = {name: clipped(Loop(world), how).audited() for name, how in hows.items()}
    for way in ("right", "mean_of_means", "mean_of_microbatch_means", "world_size_forgotten"):
        found[way] = clipped(Loop(world, way=way), by_norm).audited()
    return found | {"own": clipped(Loop(world), audited.own_clipping).audited()}


def test_clipping_is_undone_where_it_is_seen_and_said_where_it_is_not(tmp_path):
    found = run_ranks(clippings, 2, tmp_path)[0]
    for case in ("right", "part", "loosely", "another"):
        assert found[case]["outcomes"] == ["pass", "pass"], (case, found[case]["text"])
    assert any(note.startswith("clipped from norm") for note in found["right"]["notes"])
    assert not any("clipped" in note for case in ("loosely", "another") for note in found[case]["notes"])
    for way in ("mean_of_means", "mean_of_microbatch_means", "world_size_forgotten"):
        assert (found[way]["outcome"], found[way]["diagnosis"]) == ("fail", [way])
    assert (found["own"]["outcome"], found["own"]["diagnosis"]) == ("inconclusive", ["clipped"])
    assert "clip_grad_value_" in found["by_value"]["sentence"]
    assert "clipped to the norm 0" in found["to_nothing"]["sentence"]
    assert found["by_value"]["outcome"] == found["to_nothing"]["outcome"] == "inconclusive"
