"""Loops that are odd, or cannot be audited as asked."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddp_tokens import audit
from ddp_tokens.errors import AuditError
from ddp_tokens.world import World
from tests.distributed.audited import (
    IGNORED,
    WIDTH,
    Batch,
    Loop,
    Words,
    batch,
    cross_entropy,
    loss_sum,
    summary,
    units_in,
)


class ReducedByHand(Loop):
    """Without DDP, each rank adds up its microbatches, of which it may have none, and ranks add up theirs."""

    counts: Sequence[int] = (0, 2)

    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        return self.bare

    def synchronized(self, last: bool) -> Any:
        return contextlib.nullcontext()

    def batches(self, rank: int, window: int) -> list[Batch]:
        return [batch(rank, window, index) for index in range(self.counts[rank])]

    def scale_of(self, window: int) -> Callable[[int], float]:
        total = sum(units_in(self.batches(rank, window)) for rank in range(self.world.size))
        if self.way == "mean_of_microbatch_means":
            return lambda units: self.world.size / units / len(self.batches(self.world.rank, window))
        return lambda units: self.world.size / total

    def step(self) -> None:
        for parameter in self.bare.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.world.size
        self.optimizer.step()


class Uneven(Loop):
    """3 microbatches on rank 0, 2 on rank 1."""

    def batches(self, rank: int, window: int) -> list[Batch]:
        return [batch(rank, window, index) for index in range(3 - rank)]


class WithoutUnits(Loop):
    """Rank 0 has rows and no label that counts; the mean of means is then 0/0 there."""

    def batches(self, rank: int, window: int) -> list[Batch]:
        found = super().batches(rank, window)
        for _, labels in found:
            if rank == 0:
                labels.fill_(IGNORED)
        return found

    def scale_of(self, window: int) -> Callable[[int], float]:
        total = sum(units_in(self.batches(rank, window)) for rank in range(self.world.size))
        return lambda units: 1.0 if self.way != "right" else self.world.size / total


class Communicates(Words):
    """As synchronized batch normalization does, in a group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.group = dist.new_group()

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = super().hidden(tokens)
        mean = hidden.detach().mean((0, 1))
        dist.all_reduce(mean, group=self.group)
        return hidden - mean


class Decaying(Words):
    """A factor becomes smaller with each forward, and differs by rank: what rank 0 holds is not what rank 1 had."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(1.0 + dist.get_rank()))

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        self.factor.mul_(0.99)
        return super().hidden(tokens) * self.factor


class Averaged(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()


class CommunicatesInBackward(Words):
    """Averages the gradient of its last layer itself."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        weight, bias = Averaged.apply(self.outer.weight), Averaged.apply(self.outer.bias)
        return nn.functional.linear(self.hidden(tokens), weight, bias)


class Sharded(Loop):
    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        for part in (self.bare.inner, self.bare.outer, self.bare):
            fully_shard(part)
        return self.bare

    def synchronized(self, last: bool) -> Any:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()


class ShardedInHalf(Sharded):
    """Parameters are cast to bfloat16 for forward and backward."""

    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (self.bare.inner, self.bare.outer, self.bare):
            fully_shard(part, mp_policy=policy)
        return self.bare


def clip(loop: Loop) -> None:
    nn.utils.clip_grad_norm_(loop.bare.parameters(), 0.05)


def clip_while_scaled(loop: Loop) -> None:
    """As a gradient scaler's step after a clipping without unscale_."""
    for factor in (256.0, 1 / 256):
        for parameter in loop.bare.parameters():
            assert parameter.grad is not None
            parameter.grad *= factor
        if factor > 1:
            clip(loop)


class NotInFloat64(Words):
    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        found = super().hidden(tokens)
        if found.dtype == torch.float64:
            raise ArithmeticError("no float64 here")
        return found


def compressing(loop: Loop) -> Loop:
    loop.model.register_comm_hook(None, fp16_compress_hook)
    return loop


def with_shards_of_state(loop: Loop) -> Loop:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit

    loop.optimizer = ZeroRedundancyOptimizer(loop.bare.parameters(), torch.optim.Adam, lr=0.01)
    return loop


def uneven_updates(world: World) -> dict[str, Any]:
    """Rank 0 makes an update more than rank 1, which DDP's join allows; the audit is asked for each."""
    loop = Loop(world)
    found: dict[str, Any] = {}
    with contextlib.suppress(RuntimeError), loop.model.join():  # rank 1's, when rank 0 has left
        try:
            with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=3, timeout_s=2) as report:
                loop.windows(3 - world.rank)
        except AuditError as error:
            found["error"] = str(error)
            dist.destroy_process_group()
            raise RuntimeError from error
    return found | {"windows": len(report.windows)}


def hooks_there(loop: Loop) -> list[Any]:
    """What an audit sets, as it is now."""
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    return [
        *(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in loop.model.modules()),
        len(loop.optimizer._optimizer_step_pre_hooks) + len(loop.optimizer._optimizer_step_post_hooks),
        len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks),
        *map(id, (clip_grad._clip_grads_with_norm_, clip_grad._group_tensors_by_device_and_dtype)),
        *map(id, (torch.nn.utils.clip_grads_with_norm_, torch.nn.utils.clip_grad_value_, torch.amp.GradScaler.step)),
        torch.get_num_threads(),
        torch.get_default_dtype() == torch.float32,
    ]


def groups_of(world: World) -> dict[str, Any]:
    """How many there are before an audit, inside of it, and after it; the run's own goes on after that."""
    numbers = [len(dist.distributed_c10d._world.pg_map)]
    loop = Loop(world)
    with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=1, timeout_s=20) as report:
        loop.windows(1)
        numbers.append(len(dist.distributed_c10d._world.pg_map))
        loop.windows(1)
        numbers.append(len(dist.distributed_c10d._world.pg_map))
    again = Loop(world).audited(count=1)  # groups are made anew
    numbers.append(len(dist.distributed_c10d._world.pg_map))
    total = torch.ones(1)
    dist.all_reduce(total)
    return {"numbers": numbers, "outcomes": [report.outcome, again["outcome"]], "total": float(total)}


class Own(Exception):
    pass


def hooks_of(world: World) -> dict[str, Any]:
    """Are they those from before, inside the block, after the last window, after the block, and after an exception?"""
    loop = Loop(world)
    before, found = hooks_there(loop), {}
    with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=1, timeout_s=20) as report:
        found["inside"] = hooks_there(loop) == before
        later = register_optimizer_step_pre_hook(lambda *_: None)  # torch goes through it when the last window is over
        loop.windows(2)
        later.remove()
        found["after the last window"] = hooks_there(loop) == before
    found["after"] = hooks_there(loop) == before
    try:
        with audit(loop.model, loop.optimizer, loss_sum=loss_sum, windows=3, timeout_s=20):
            loop.windows(1)
            raise Own("as it is")
    except Own as error:
        found["exception"] = [type(error).__name__, str(error), error.__cause__ is None, error.__context__ is None]
    found["after an exception"] = hooks_there(loop) == before
    return found | {"windows": len(report.windows)}


def two_audits(world: World) -> dict[str, Any]:
    """At once, of two models in turn; the one that began first ends first."""
    one, other = Loop(world), Loop(world, way="mean_of_means")
    before = hooks_there(one)
    named = {"loss_sum": loss_sum, "timeout_s": 20}
    with (
        audit(one.model, one.optimizer, windows=1, **named) as first,
        audit(other.model, other.optimizer, windows=2, **named) as second,
    ):
        for window in range(3):
            for loop in (one, other):
                loop.optimizer.zero_grad()
                loop.backward(loop.batches(world.rank, window), loop.scale_of(window))
                nn.utils.clip_grad_norm_(loop.bare.parameters(), 0.05)
                loop.step()
    return {"first": summary(first), "second": summary(second), "same": hooks_there(one) == before}


class OnlyForwards(Loop):
    def windows(self, count: int) -> None:
        for one in self.batches(self.world.rank, 0):
            self.forward(*one)


class NoForward(Loop):
    def windows(self, count: int) -> None:
        pass


class GivesLock(Loop):
    """Rank 1 calls the model with something that cannot be sent."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
        lock = threading.Lock() if self.world.rank == 1 else None
        return cross_entropy(self.model(tokens, labels=labels, lock=lock), labels)


class TakesLock(Words):
    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None, lock: Any = None) -> Any:
        return super().forward(tokens)


class RowsNorm(Words):
    def __init__(self) -> None:
        super().__init__(norm=nn.BatchNorm1d(WIDTH))


def raising_on_rank_1(world: World) -> Callable[..., Any]:
    """An error of one rank alone is told on all."""

    def raising(outputs: Any, batch: Any) -> Any:
        if world.rank == 1:
            raise ArithmeticError("no such loss")
        return loss_sum(outputs, batch)

    return raising
