"""A workload whose loss covers other units than the corpus counts is refused by every rank, before any update.

Known failure signature-decides-formula: a chosen formula that is not applied, silently.
"""

from typing import Any

import pytest
import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Sgd
from ddp_tokens.corpora.rows import UNSUPERVISED
from ddp_tokens.distributed import barrier, global_count, wrap_for_ddp
from ddp_tokens.errors import WorkloadError
from ddp_tokens.gradients import gradients_left_by, token_mean
from ddp_tokens.inputs import Prepared
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import SquaredError, row

ROWS = {"one": row(1), "two": row(2, 2), "half": row(3, UNSUPERVISED)}


class CountsPadding(SquaredError):
    """Positions without a label are summed and counted too, as those with the target 0."""

    def loss_sum(self, outputs: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        return ((outputs - batch.clamp(min=0)) ** 2).sum(), len(batch)


class OneMoreOrLess(SquaredError):
    """Counts one unit too many on rank 0 and one too few on rank 1: over both ranks, the number is right."""

    def __init__(self, rank: int) -> None:
        self.more = (1, -1)[rank]

    def loss_sum(self, outputs: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        loss, units = super().loss_sum(outputs, batch)
        return loss, units + self.more


class HalfAUnit(SquaredError):
    def loss_sum(self, outputs: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, float]:
        loss, units = super().loss_sum(outputs, batch)
        return loss, units + 0.25


def train_theta(world: World, kind: str, plan: list) -> dict[str, Any]:
    """Train theta by `plan`; say what stopped it, and what had happened until then."""
    kinds = {"right": SquaredError, "padding": CountsPadding, "half": HalfAUnit}
    workload = OneMoreOrLess(world.rank) if kind == "one" else kinds[kind]()
    bare = workload.build_model(None, None)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, Sgd(lr=0.5, momentum=0.9)))
    message = None
    try:
        for _ in train(model, state, workload, plan, ROWS, world, len(plan)):
            pass
    except WorkloadError as error:
        message = str(error)
    barrier()
    return {
        "message": message,
        "theta": float(bare.theta),
        "gradient": float(bare.theta.grad),
        "steps": [[record["step"] for record in history] for history in (state.history, state.rank_history)],
        "count_afterwards": global_count(world.rank + 1),
    }


def second_window(world_size: int, rank_with_padding: int) -> list:
    """First all targets 1; then two and two microbatches, one of which has a position without a label."""
    names = ["half" if rank == rank_with_padding else "two" for rank in range(world_size)]
    return [[[["one"]]] * world_size, [[["one"], [name]] for name in names]]


@pytest.mark.parametrize(("world_size", "padded"), [(1, 0), (2, 0), (2, 1), (3, 1)])
def test_signature_decides_formula(tmp_path, world_size, padded):
    """The padded rank has the targets 1 and 3 and a position without a label: it sums 3 units and the corpus counts 2.

    The first window, of targets 1 only, takes theta from 0 to 0.5 * 2 = 1. In the second the other ranks add
    2 * (1 - 1) + 2 * 2 * (1 - 2) = -4 each to the gradient's sum and the padded one 2 * (1 - 3) = -4, so the right
    gradient is -4 W / (3 W - 1). The position without a label adds 2 * (1 - 0) = 2: another gradient is left.
    """
    ranks = run_ranks(train_theta, world_size, tmp_path, "padding", second_window(world_size, padded))
    right = -4 * world_size / (3 * world_size - 1)
    for rank in ranks:
        assert rank["message"] == (
            f"window 2: workload CountsPadding sums the losses of 3 units on rank {padded}, where the corpus counts 2: "
            "let its loss_sum cover the supervised units and no others"
        )
        assert rank["theta"] == pytest.approx(1.0, rel=1e-14)
        assert rank["steps"] == [[1], [1]]
        assert rank["gradient"] == pytest.approx(right + 2 / (3 * world_size - 1), rel=1e-14)
        # The barrier after the error was passed, and the group still adds: 1 + ... + W.
        assert rank["count_afterwards"] == world_size * (world_size + 1) // 2


def test_the_same_rows_train_with_a_workload_that_leaves_padding_out(tmp_path):
    """The guard of the test above. theta goes from 1 by 0.5 * (8/5 + 0.9 * 2): the momentum buffer was -2."""
    for rank in run_ranks(train_theta, 2, tmp_path, "right", second_window(2, 0)):
        assert rank["message"] is None
        assert rank["steps"] == [[1, 2], [1, 2]]
        assert rank["theta"] == pytest.approx(1 + 0.5 * (8 / 5 + 0.9 * 2), rel=1e-14)


def test_units_that_are_wrong_on_two_ranks_and_right_in_sum_are_refused(tmp_path):
    for rank in run_ranks(train_theta, 2, tmp_path, "one", [[[["two"]], [["two"]]]]):
        assert rank["message"].startswith(
            "window 1: workload OneMoreOrLess sums the losses of 3 units on rank 0, where"
        )
        assert (rank["theta"], rank["steps"]) == (0.0, [[], []])


def test_a_fraction_of_a_unit_is_not_rounded_away(tmp_path):
    for rank in run_ranks(train_theta, 2, tmp_path, "half", [[[["one"]], [["one"]]]]):
        assert rank["message"].startswith("window 1: workload HalfAUnit sums the losses of 1.25 units on rank 0, where")
        assert rank["theta"] == 0.0


def dump_gradients(world: World, kind: str) -> str | None:
    workload = {"right": SquaredError, "padding": CountsPadding}[kind]()
    model = wrap_for_ddp(workload.build_model(None, None))
    prepared = Prepared(ROWS, {}, [[[["one"]], [["two"]]], [[["one"], ["half"]], [["two"], ["two"]]]])
    try:
        gradients_left_by(token_mean, model, workload, prepared, {"first": 0, "most_unequal": 1}, world)
    except WorkloadError as error:
        return str(error)
    return None


def test_gradients_that_are_to_be_compared_are_refused_too(tmp_path):
    """Units per rank are (1, 2) and (2, 4): window 2 is the most unequal, and rank 0 has a position without a label."""
    assert run_ranks(dump_gradients, 2, tmp_path, "right") == [None, None]
    messages = run_ranks(dump_gradients, 2, tmp_path, "padding")
    assert messages[0] == messages[1]
    assert messages[0].startswith("window 2: workload CountsPadding sums the losses of 3 units on rank 0, where the")
