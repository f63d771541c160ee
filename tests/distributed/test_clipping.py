"""Known failure clip-per-microbatch: the gradient is clipped once per window, after the last backward."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Sgd
from ddp_tokens.distributed import barrier, global_count, wrap_for_ddp
from ddp_tokens.errors import DivergedError
from ddp_tokens.files import read_json_lines
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.precision import Precision
from ddp_tokens.trainer import How, build_optimizer, train
from ddp_tokens.window import accumulate
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import SETTINGS, SquaredError, Tiny, prepared, row

ROWS = {name: row(int(name)) for name in ("20", "-18", "22", "-16")}
PLAN = [[[["20"], ["-18"]], [["22"], ["-16"]]]]
LR = 0.5


def train_clipped(world: World, clip_norm: float | None, scale: float | None = None) -> dict[str, Any]:
    """`scale`: of the losses. `clips`: how often a norm was taken."""
    clips, clip = [], torch.nn.utils.clip_grad_norm_

    def counted(*given: Any) -> Any:
        clips.append(given)
        return clip(*given)

    torch.nn.utils.clip_grad_norm_ = counted
    precision = Precision() if scale is None else Precision(scaler=torch.amp.GradScaler("cpu", init_scale=scale))
    bare = SquaredError().build_model(None, None)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, Sgd(lr=LR, momentum=0)))
    records = list(train(model, state, SquaredError(), PLAN, ROWS, world, 1, How(clip_norm, precision)))
    assert records == state.history
    return {"theta": float(bare.theta), "clips": len(clips), **records[0]}


def clip_before_unscaling(world: World, clip_norm: float, scale: float) -> float:
    """Wrong: the norm is that of the scaled gradient."""
    workload = SquaredError()
    bare = workload.build_model(None, None)
    model = wrap_for_ddp(bare)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=LR), torch.amp.GradScaler("cpu", init_scale=scale)
    normalize = partial(global_token_loss, global_count=4, world_size=world.size)
    batches = [workload.collate([ROWS[name]]) for [name] in PLAN[0][world.rank]]
    accumulate(model, workload, batches, normalize, precision=Precision(scaler=scaler))
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    scaler.step(optimizer)
    return float(bare.theta)


def clip_per_microbatch(world: World, clip_norm: float) -> float:
    """Wrong, as people write it: clip and then ask whether it is time for an update."""
    workload = SquaredError()
    bare = workload.build_model(None, None)
    model = wrap_for_ddp(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    normalize = partial(global_token_loss, global_count=4, world_size=world.size)
    microbatches = PLAN[0][world.rank]
    for index, [name] in enumerate(microbatches):
        batch, last = workload.collate([ROWS[name]]), index == len(microbatches) - 1
        with nullcontext() if last else model.no_sync():
            loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
            normalize(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return float(bare.theta)


def test_clip_per_microbatch(tmp_path):
    """Four units, targets 20 and -18 on rank 0, 22 and -16 on rank 1: gradient at 0 is -2 * 8 / 4 = -4, of norm 4.

    Clipped to norm 1, torch multiplies by 1 / (4 + 1e-6), so theta moves by 0.5 * 4 / (4 + 1e-6).
    Clipped in each microbatch, each rank's first gradient, -20 and -22 (scaled by W/N), becomes -1; the second adds 18
    and 16; the average, (17 + 15) / 2 = 16, becomes 1: theta moves the other way.
    """
    for found in run_ranks(train_clipped, 2, tmp_path, 1.0):
        assert found["theta"] == pytest.approx(LR * 4 / (4 + 1e-6), rel=1e-14)
        assert found["gradient_norm"] == pytest.approx(4.0, rel=1e-14)
    for theta in run_ranks(clip_per_microbatch, 2, tmp_path, 1.0):
        assert theta == pytest.approx(-LR * 16 / (16 + 1e-6), rel=1e-14)


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**16])
def test_clip_per_microbatch_or_before_unscaling(tmp_path, scale):
    """Two microbatches per rank, one norm. A power of two as the scale changes no bit of update or norm.

    Clipped before unscaling, the gradient -4 * 2^16 becomes -1 and is then divided by 2^16: theta hardly moves.
    At 2^-10 the norm 4 / 1024 is below 1, so that nothing is clipped: theta moves by the whole 0.5 * 4.
    """
    plain = run_ranks(train_clipped, 2, tmp_path, 1.0)
    scaled = run_ranks(train_clipped, 2, tmp_path, 1.0, scale)
    assert scaled == [of_rank | {"scale": scale, "skipped": False} for of_rank in plain]
    assert [of_rank["clips"] for of_rank in plain] == [1, 1]
    wrong = LR * 4 if scale < 1 else LR / scale
    for theta in run_ranks(clip_before_unscaling, 2, tmp_path, 1.0, scale):
        assert theta == pytest.approx(wrong, rel=1e-10)  # torch's 1e-6 beside the norm of 4 * 2^16


@pytest.mark.parametrize("clip_norm", [None, 5.0])
def test_a_gradient_within_the_norm_stays_as_it_is(tmp_path, clip_norm):
    """Without the setting, the record is the one that it always was."""
    for found in run_ranks(train_clipped, 2, tmp_path, clip_norm):
        assert found["theta"] == pytest.approx(LR * 4, rel=1e-14)
        assert ("gradient_norm" in found) == (clip_norm is not None)
        assert found["clips"] == (clip_norm is not None)
        assert set(found) - {"gradient_norm"} == {"theta", "clips", "step", "units", "loss_sum", "loss"}


class Root(SquaredError):
    """sqrt(|theta - target|) per unit: at theta = target the loss is 0 and the gradient, infinity times 0, is NaN."""

    def loss_sum(self, outputs: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        return (outputs - batch).abs().sqrt().sum(), len(batch)


def train_to_nan(world: World) -> dict[str, Any]:
    """Rank 0's target is 1, and rank 1's is theta itself, 0."""
    bare = Root().build_model(None, None)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, Sgd(lr=LR)))
    rows, message = {"0": row(0), "1": row(1)}, None
    try:
        list(train(model, state, Root(), [[[["1"]], [["0"]]]], rows, world, 1, How(1.0)))
    except DivergedError as error:
        message = str(error)
    barrier()
    updates = [len(state.history), len(state.rank_history), len(state.optimizer.state)]
    return {"message": message, "theta": float(bare.theta), "updates": updates, "counted": global_count(1)}


def test_a_norm_that_is_no_number_stops_every_rank_before_the_update(tmp_path):
    """The loss, sqrt(1) + 0, is one: only the norm can tell."""
    for found in run_ranks(train_to_nan, 2, tmp_path):
        expected = "the gradient's norm of update 1 is nan: lower the learning rate or look at the rows"
        assert found == {"message": expected, "theta": 0.0, "updates": [0, 0, 0], "counted": 2}


@pytest.fixture(scope="module")
def clipped(tmp_path_factory) -> Tiny:
    settings = SETTINGS["optimizer"] | {"clip_norm": 0.05}
    tiny = prepared(tmp_path_factory.mktemp("clipped"), 2, optimizer=settings)
    tiny.train_all()
    return tiny


def test_a_run_with_clipping_logs_norms_and_resumes_bit_for_bit(clipped, trained):
    history = read_json_lines(clipped.at.run("continuous") / "history.jsonl")
    without = read_json_lines(trained(2).at.run("continuous") / "history.jsonl")
    assert history[0]["loss"] == without[0]["loss"], "the first loss comes before any update"
    assert history[-1]["loss"] != without[-1]["loss"]
    assert min(record["gradient_norm"] for record in history) > 0.05, "every window is clipped"
    assert all("gradient_norm" not in record for record in without)
    assert {verdict.outcome for verdict in clipped.resume_verdicts().values()} == {"pass"}
