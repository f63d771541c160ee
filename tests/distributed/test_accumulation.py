"""One window: how often ranks synchronize, what is cleared, what moves, what is returned."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Sgd
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import SquaredError, row

BUCKETS = 2
WINDOWS = 3


class TwoBuckets(torch.nn.Module):
    """Two parameters of 2.4 MB each. DDP closes its first bucket at 1 MiB, so each gets a bucket of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.zeros(300_000, dtype=torch.float64)) for _ in range(2))

    def forward(self, targets: torch.Tensor) -> torch.Tensor:
        return (self.first.sum() + 2 * self.second.sum()).expand(targets.shape)


def count_call(calls: list[int], bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    calls.append(bucket.index())
    return allreduce_hook(None, bucket)


def forward_outside_no_sync(model, workload, batches, normalize):
    """Wrong: DDP decides in forward whether the next backward synchronizes, and only backward is inside."""
    model.zero_grad(set_to_none=True)
    for index, batch in enumerate(batches):
        loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
        with nullcontext() if index == len(batches) - 1 else model.no_sync():
            normalize(loss).backward()


def never_no_sync(model, workload, batches, normalize):
    """Wrong: each backward synchronizes."""
    model.zero_grad(set_to_none=True)
    for batch in batches:
        loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
        normalize(loss).backward()


def calls_per_window(world: World, microbatches: int) -> dict[str, Any]:
    """For the right and both wrong ways: buckets reduced in each of three windows, and one value of the gradient."""
    found = {}
    for way in (accumulate, forward_outside_no_sync, never_no_sync):
        model, calls, of_windows = wrap_for_ddp(TwoBuckets()), [], []
        model.register_comm_hook(calls, count_call)
        rows = [[row(index + 1, world.rank)] for index in range(microbatches)]
        _, total = count_window(rows, "window 1")
        normalize = partial(global_token_loss, global_count=total, world_size=world.size)
        batches = [SquaredError().collate(microbatch) for microbatch in rows]
        for _ in range(WINDOWS):
            calls.clear()
            way(model, SquaredError(), batches, normalize)
            of_windows.append(sorted(calls))
        gradients = [float(parameter.grad[0]) for parameter in model.parameters()]
        found[way.__name__] = {"calls": of_windows, "gradients": gradients}
    return found


@pytest.mark.parametrize("microbatches", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_forward_outside_no_sync_reduces_in_every_microbatch_and_we_once_per_window(tmp_path, world_size, microbatches):
    """Known failure forward-outside-no-sync: the same gradient, but as many all-reduces as microbatches, silently."""
    for found in run_ranks(calls_per_window, world_size, tmp_path, microbatches):
        once, every_time = list(range(BUCKETS)), sorted(list(range(BUCKETS)) * microbatches)
        # DDP lays out its final buckets after the first synchronization; until then it may have fewer.
        first, *later = found["accumulate"]["calls"]
        assert first == list(range(len(set(first))))
        assert len(first) > 0
        assert later == [once] * (WINDOWS - 1)
        assert found["forward_outside_no_sync"]["calls"][1:] == [every_time] * (WINDOWS - 1)
        assert found["never_no_sync"]["calls"][1:] == [every_time] * (WINDOWS - 1)
        # Rank r's microbatch i (from 1) has the targets i and r, so N = 2 W M units with the sum
        # W * M(M+1)/2 + M * W(W-1)/2. The gradient of (first + 2 second - target)^2 / N at 0, summed over the units, is
        # -2 * sum / N for `first` and twice that for `second`. 1e-14: a few roundings of 1e-16 each.
        targets = world_size * microbatches * (microbatches + 1) / 2 + microbatches * world_size * (world_size - 1) / 2
        expected = -2 * targets / (2 * world_size * microbatches)
        assert expected != 0
        for way in found.values():
            assert way["gradients"] == pytest.approx([expected, 2 * expected], rel=1e-14)


class Watching(SquaredError):
    """Notes, before each forward, whether the parameter has a gradient."""

    def __init__(self) -> None:
        self.had_gradient: list[bool] = []

    def forward(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        self.had_gradient.append(any(parameter.grad is not None for parameter in model.parameters()))
        return super().forward(model, batch)


def watch_windows(world: World, targets: list[list[list[int]]]) -> dict[str, Any]:
    """Windows of the same rows; `targets[rank][microbatch]` are labels."""
    workload, optimizer_steps = Watching(), []
    register_optimizer_step_post_hook(lambda *_: optimizer_steps.append(1))
    model = wrap_for_ddp(workload.build_model(None, None))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rows = [[row(*labels)] for labels in targets[world.rank]]
    _, total = count_window(rows, "window 1")
    normalize = partial(global_token_loss, global_count=total, world_size=world.size)
    losses, gradients = [], []
    for _ in range(WINDOWS):
        batches = [workload.collate(microbatch) for microbatch in rows]
        losses.append(accumulate(model, workload, batches, normalize)[0])
        gradients.append(float(model.module.theta.grad))
    before, steps_before = float(model.module.theta), len(optimizer_steps)
    optimizer.step()
    after, steps_after = float(model.module.theta), len(optimizer_steps)
    return {
        "had_gradient": workload.had_gradient,
        "losses": losses,
        "gradients": gradients,
        "theta": [before, after],
        "steps": [steps_before, steps_after],
    }


def test_a_window_clears_gradients_once_moves_nothing_and_returns_this_ranks_loss_sum(tmp_path):
    """Targets 1, 2 | 3 on rank 0 and 4 | 5, 6, 7 on rank 1, seven units.

    Loss sums at theta = 0: 1 + 4 + 9 = 14 and 16 + 25 + 36 + 49 = 126. Gradient: -2 * (1 + ... + 7) / 7 = -8.
    """
    found = run_ranks(watch_windows, 2, tmp_path, [[[1, 2], [3]], [[4], [5, 6, 7]]])
    assert [rank["losses"] for rank in found] == [[14.0] * WINDOWS, [126.0] * WINDOWS]
    for rank in found:
        # None before the first microbatch of either window, so the first window's gradient cannot leak into the second;
        # present before the second microbatch, so it is not cleared inside a window.
        assert rank["had_gradient"] == [False, True] * WINDOWS
        assert rank["gradients"] == pytest.approx([-8.0] * WINDOWS, rel=1e-14)
        assert rank["theta"][0] == 0.0
        assert rank["steps"] == [0, 1]
        # The guard: one step with this gradient at learning rate 1 does move the parameter, and is seen.
        assert rank["theta"][1] == pytest.approx(8.0, rel=1e-14)


def train_by(world: World, targets: list[list[list[int]]]) -> list[list[float]]:
    """By window, theta and the loss. `targets[window][rank]`: one label per microbatch. Each update, at learning rate
    0.5 without momentum, takes theta to the mean target of its window."""
    rows = {str(target): row(target) for window in targets for of_rank in window for target in of_rank}
    plan = [[[[str(target)] for target in of_rank] for of_rank in window] for window in targets]
    bare = SquaredError().build_model(None, None)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, Sgd(lr=0.5, momentum=0)))
    updates = train(model, state, SquaredError(), plan, rows, world, len(plan))
    return [[float(bare.theta), record["loss"]] for record in updates]


def test_short_last_window_divides_by_its_own_count(tmp_path):
    """Four microbatches per rank, of targets 1 to 8, then a last window with two of them, of targets 10 to 13.

    theta goes to 4.5, then to 11.5, where a division by four microbatches would stop half-way, at 8. The losses are
    (1 + 4 + ... + 64) / 8 = 25.5 at theta = 0, and the mean of 5.5^2, 6.5^2, 7.5^2 and 8.5^2 = 50.25 at 4.5.
    """
    windows = [[[1, 2, 3, 4], [5, 6, 7, 8]], [[10, 11], [12, 13]]]
    for found in run_ranks(train_by, 2, tmp_path, windows):
        assert found == [pytest.approx([4.5, 25.5], rel=1e-14), pytest.approx([11.5, 50.25], rel=1e-14)]
