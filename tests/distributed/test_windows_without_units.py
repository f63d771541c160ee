"""A rank, a microbatch or a whole window in which no label counts."""

from functools import partial
from typing import Any

import pytest
import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Sgd, Transformer
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row, supervised_in
from ddp_tokens.distributed import barrier, global_count, wrap_for_ddp
from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss
from ddp_tokens.reference import gradients_of, reference_gradient
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import SquaredError, row

SHORT = Row("short", "train", (0, 1, 2), (0, 2, 1))
LONG = Row("long", "train", (3, 2, 1, 0), (3, 3, 3, 3))
HALF = Row("half", "train", (1, 1, 1, 1), (1, UNSUPERVISED, 3, UNSUPERVISED))


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    settings = Transformer(width=8, heads=2, layers=1, feed_forward=16)
    return token_labels.build_model(settings, Shape(4, 4, 8)).double().eval()


def gradient_of_window(world: World, shares: list[list[list[Row]]]) -> dict[str, Any]:
    """`shares[rank][microbatch]` -> rows. What every rank holds, against one process over the rows that have labels."""
    bare = small_model()
    counted = [row for share in shares for rows in share for row in rows if supervised_in([row])]
    reference = reference_gradient(bare, token_labels, counted)
    model = wrap_for_ddp(bare)
    own = shares[world.rank]
    local, total = count_window(own, "window 1")
    batches = [token_labels.collate(rows) for rows in own]
    right = partial(global_token_loss, global_count=total, world_size=world.size)
    loss, summed = accumulate(model, token_labels, batches, right)
    observed = gradients_of(bare)
    return {
        "units": [local, total],
        "summed": summed,
        "loss": loss,
        "finite": all(bool(value.isfinite().all()) for value in observed.values()),
        "same_names": observed.keys() == reference.keys(),
        "error": max(float((observed[name] - value).abs().max()) for name, value in reference.items()),
        "largest": max(float(value.abs().max()) for value in reference.values()),
    }


class Masked(SquaredError):
    """Losses are masked by a product, so that a division by zero reaches the parameter."""

    def loss_sum(self, outputs: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        counted = batch != UNSUPERVISED
        return ((outputs - batch) ** 2 * counted).sum(), int(counted.sum())


def masked_gradients(world: World, shares: list[list[Row]]) -> list[str]:
    """The gradient of theta, in words since JSON knows no NaN: by the window's denominator, and by the rank's own."""
    workload, model = Masked(), wrap_for_ddp(Masked().build_model(None, None))
    local, total = count_window([shares[world.rank]], "window 1")
    right = partial(global_token_loss, global_count=total, world_size=world.size)
    wrong = partial(mean_of_means_loss, local_count=torch.tensor(local))
    found = []
    for normalize in (right, wrong):
        accumulate(model, workload, [workload.collate(shares[world.rank])], normalize)
        found.append(f"{float(model.module.theta.grad):.12g}")
    return found


def test_one_rank_empty_adds_zero_and_takes_part(tmp_path):
    """Known failure one-rank-empty: 3 + 4 units on rank 0, none on rank 1; the mean is that of the 7.

    Float64: rounding below 1e-15 per value; 1e-12 leaves room, and a NaN or a factor 2 does not fit in.
    """
    empty = [[LONG.unsupervised()], [SHORT.unsupervised()]]
    full, none = run_ranks(gradient_of_window, 2, tmp_path, [[[SHORT], [LONG]], empty])
    assert (full["units"], full["summed"]) == ([7, 7], 7)
    assert (none["units"], none["summed"]) == ([0, 7], 0)
    assert full["loss"] > 0
    assert none["loss"] == 0.0
    for rank in (full, none):
        assert rank["same_names"]
        assert rank["finite"]
        assert rank["error"] < 1e-12
        assert rank["largest"] > 0.01


def test_dividing_by_an_empty_ranks_own_count_would_be_nan_on_every_rank(tmp_path):
    """The guard of the test above. Targets 1 to 7 on rank 0: gradient at theta = 0 is -2 * 28 / 7 = -8."""
    shares = [[row(1, 2, 3, 4, 5, 6, 7)], [row(UNSUPERVISED)]]
    assert run_ranks(masked_gradients, 2, tmp_path, shares) == [["-8", "nan"]] * 2


@pytest.mark.parametrize("empty_at", [0, 1, 2])
def test_a_microbatch_without_units_changes_nothing(tmp_path, empty_at):
    """Rank 0's microbatch `empty_at` of 3 has no unit; the others hold 3 + 4 there and 2 on rank 1: 9 in all."""
    own = [[SHORT], [LONG]]
    own.insert(empty_at, [SHORT.unsupervised(), LONG.unsupervised()])
    ranks = run_ranks(gradient_of_window, 2, tmp_path, [own, [[HALF.unsupervised()], [HALF], [SHORT.unsupervised()]]])
    assert [rank["units"] for rank in ranks] == [[7, 9], [2, 9]]
    for rank in ranks:
        assert rank["same_names"]
        assert rank["finite"]
        assert rank["error"] < 1e-12
        assert rank["largest"] > 0.01


def test_a_row_without_units_beside_one_with_units_changes_nothing(tmp_path):
    shares = [[[SHORT, LONG.unsupervised()]], [[HALF.unsupervised(), HALF]]]
    ranks = run_ranks(gradient_of_window, 2, tmp_path, shares)
    assert [rank["units"] for rank in ranks] == [[3, 5], [2, 5]]
    assert all(rank["error"] < 1e-12 < rank["largest"] for rank in ranks)


ROWS = {
    "one": row(1),
    "two": row(2, 2),
    "nothing": row(UNSUPERVISED),
    "nothing either": row(UNSUPERVISED, UNSUPERVISED),
}


def train_into_an_empty_window(world: World, plan: list) -> dict[str, Any]:
    """Train SquaredError's theta by `plan`; say what stopped it, and what had happened until then."""
    bare = SquaredError().build_model(None, None)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, Sgd(lr=0.5, momentum=0.9)))
    path, message = [float(bare.theta)], None
    try:
        for _ in train(model, state, SquaredError(), plan, ROWS, world, len(plan)):
            path.append(float(bare.theta))
    except EmptyWindowError as error:
        message = str(error)
    momentum = [float(entry["momentum_buffer"]) for entry in state.optimizer.state_dict()["state"].values()]
    barrier()
    return {
        "message": message,
        "path": path,
        "theta": float(bare.theta),
        "momentum": momentum,
        "steps": [[record["step"] for record in history] for history in (state.history, state.rank_history)],
        "count_afterwards": global_count(world.rank + 1),
    }


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_window_empty_everywhere_stops_every_rank_with_the_same_words_and_no_update(tmp_path, world_size):
    """Known failure window-empty-everywhere, in the second of three windows.

    The first window moves theta from 0 by the learning rate 0.5 along -gradient = 2 * mean target: to the mean target.
    Rank 0 holds the target 1, every other rank 2 and 2: at W = 1, 2, 3 the mean is 1, 5/3 and 9/5.
    The momentum buffer is the only gradient so far, -2 * mean target: a second step would have moved theta again.
    """
    units = ["one"] + ["two"] * (world_size - 1)
    nothing = ["nothing", *["nothing either"] * (world_size - 1)]
    plan = [[[[name]] for name in names] for names in (units, nothing, units)]
    mean = {1: 1, 2: 5 / 3, 3: 9 / 5}[world_size]
    ranks = run_ranks(train_into_an_empty_window, world_size, tmp_path, plan)
    for rank in ranks:
        assert rank["message"] == ranks[0]["message"]
        assert rank["message"].startswith("window 2 holds no supervised unit on any rank")
        assert rank["path"] == [0.0, pytest.approx(mean, rel=1e-14)]
        assert rank["theta"] == rank["path"][-1]
        assert rank["momentum"] == [pytest.approx(-2 * mean, rel=1e-14)]
        assert rank["steps"] == [[1], [1]]
        # The barrier after the error was passed, and the group still adds: 1 + ... + W.
        assert rank["count_afterwards"] == world_size * (world_size + 1) // 2


def test_the_same_plan_with_units_in_it_trains_to_its_end(tmp_path):
    """The guard of the test above: nothing else in that plan stops the loop."""
    for rank in run_ranks(train_into_an_empty_window, 2, tmp_path, [[[["one"]], [["two"]]]] * 3):
        assert rank["message"] is None
        assert rank["steps"] == [[1, 2, 3]] * 2
        assert len(set(rank["path"])) == 4


def test_one_rank_without_units_in_a_window_does_not_stop_training(tmp_path):
    """Rank 1 has nothing: theta goes to rank 0's target, 1, on both ranks."""
    for rank in run_ranks(train_into_an_empty_window, 2, tmp_path, [[[["one"]], [["nothing"]]]]):
        assert rank["message"] is None
        assert rank["theta"] == pytest.approx(1.0, rel=1e-14)
