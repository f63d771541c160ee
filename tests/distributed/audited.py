"""Training loops to be audited: a tiny model on rows of unequal length, and many ways to make its gradient."""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ddp_tokens import audit
from ddp_tokens.errors import AuditError
from ddp_tokens.world import World

WORDS, WIDTH, IGNORED = 11, 6, -100

Batch = tuple[torch.Tensor, torch.Tensor]
Case = Callable[[World], dict[str, Any]]

# What the sum of a microbatch's losses is multiplied by. `own`: units of the rank's window, `total`: of all ranks,
# `units`: of the microbatch, `size`: ranks, `count`: microbatches.
WAYS: dict[str, Callable[..., float]] = {
    "right": lambda own, total, units, size, count: size / total,
    "mean_of_means": lambda own, total, units, size, count: 1 / own,
    "mean_of_microbatch_means": lambda own, total, units, size, count: 1 / units / count,
    "world_size_forgotten": lambda own, total, units, size, count: 1 / total,
    "loss_scale_kept": lambda own, total, units, size, count: 256 * size / total,
}


class Words(nn.Module):
    """Logits of the words after `dropout`; `norm` is a layer of WIDTH features."""

    def __init__(self, dropout: float = 0.0, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(WIDTH, WORDS)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(self.embedding(tokens)))
        if self.norm is not None:
            hidden = self.norm(hidden.flatten(0, 1)).view(hidden.shape)
        return self.dropout(hidden)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return self.outer(self.hidden(tokens))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, int((labels != IGNORED).sum())


def loss_sum(outputs: torch.Tensor, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return cross_entropy(outputs, batch["labels"])


def batch(rank: int, window: int, index: int) -> Batch:
    """3 rows; a later rank, window or microbatch has longer ones. The first row's first label is not supervised."""
    generator = torch.Generator().manual_seed(1000 * window + 100 * rank + index)
    tokens = torch.randint(0, WORDS, (3, 3 + 2 * rank + 3 * index + window), generator=generator)
    labels = tokens.roll(1, 1).clone()
    labels[0, 0] = IGNORED
    return tokens, labels


def window_of(rank: int, window: int, microbatches: int) -> list[Batch]:
    return [batch(rank, window, index) for index in range(microbatches)]


def units_in(batches: Sequence[Batch]) -> int:
    return sum(int((labels != IGNORED).sum()) for _, labels in batches)


class Loop:
    """Plain DDP on `windows` windows. Subclasses and arguments change what is said to be changed."""

    def __init__(self, world: World, model: Callable[[], nn.Module] = Words, way: str = "right", **ddp: Any) -> None:
        torch.manual_seed(3)
        self.world, self.way = world, way
        self.microbatches = 3 if world.size == 2 else 2  # else dividing by one is dividing by the other
        self.bare = model()
        self.model = self.wrapped(ddp)
        self.optimizer: Any = torch.optim.SGD(self.bare.parameters(), lr=0.1, momentum=0.9)
        self.between: Callable[[], Any] = lambda: None  # called before each update
        self.autocast: torch.dtype | None = None
        torch.manual_seed(30 + world.rank)

    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        return DistributedDataParallel(self.bare, **ddp) if self.world.size > 1 else self.bare

    def batches(self, rank: int, window: int) -> list[Batch]:
        return window_of(rank, window, self.microbatches)

    def windows(self, count: int) -> None:
        for window in range(count):
            self.optimizer.zero_grad()
            self.backward(self.batches(self.world.rank, window), self.scale_of(window))
            self.between()
            self.step()

    def scale_of(self, window: int) -> Callable[[int], float]:
        of_ranks = [self.batches(rank, window) for rank in range(self.world.size)]
        own = of_ranks[self.world.rank]
        total = sum(map(units_in, of_ranks))
        return lambda units: WAYS[self.way](units_in(own), total, units, self.world.size, len(own))

    def backward(self, batches: Sequence[Batch], scale: Callable[[int], float]) -> None:
        for index, one in enumerate(batches):
            self.before(index)
            with self.synchronized(index == len(batches) - 1), self.casting():
                total, units = self.forward(*one)
                self.differentiate(total * scale(units))

    def before(self, index: int) -> None:
        """A microbatch."""

    def synchronized(self, last: bool) -> Any:
        return nullcontext() if last or self.world.size == 1 else self.model.no_sync()

    def casting(self) -> Any:
        return torch.autocast("cpu", self.autocast, enabled=self.autocast is not None)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
        return cross_entropy(self.model(tokens, labels=labels), labels)

    def differentiate(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        self.optimizer.step()

    def audited(self, loss: Any = loss_sum, count: int = 2, optimizer: Any = "own", **named: Any) -> dict[str, Any]:
        """What the audit of `count` updates and one more found."""
        weights = values_of(self.bare)
        optimizer = self.optimizer if optimizer == "own" else optimizer
        try:
            with audit(self.model, optimizer, loss_sum=loss, windows=count, timeout_s=20, **named) as report:
                self.report = report
                self.windows(count + 1)
        except AuditError as error:
            return {"error": str(error)}
        return summary(report) | {"moved": bool(weights != values_of(self.bare))}


def summary(report: Any) -> dict[str, Any]:
    document = report.document()
    verdicts = [one["verdict"] for one in document["windows"]]
    return {
        "outcome": document["outcome"],
        "outcomes": [verdict["outcome"] for verdict in verdicts],
        "diagnosis": sorted({name for verdict in verdicts for name in verdict["diagnosis"]}),
        "first": list(verdicts[0]["diagnosis"]) if verdicts else None,
        "sentence": document["sentence"],
        "power": [verdict["observed"]["power"] for verdict in verdicts],
        "notes": [note for one in document["windows"] for note in one["notes"]],
        "seen": [one["seen"] for one in document["windows"]],
        "text": report.text(),
    }


def values_of(module: nn.Module) -> list[float]:
    return [float(parameter.detach().double().sum()) for parameter in module.parameters()]


def digest_of(loop: Loop) -> str:
    """Of everything that a run goes on from: parameters, buffers, the optimizer's state, and all generators."""
    digest = hashlib.sha256()
    for tensor in [*loop.bare.state_dict().values(), *tensors_in(loop.optimizer.state_dict()["state"])]:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr(random.getstate()).encode())
    digest.update(numpy.random.get_state(legacy=True)[1].tobytes() + repr(numpy.random.get_state()[2:]).encode())
    return digest.hexdigest()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors_in(value[key])


def run_cases(world: World, cases: dict[str, Case]) -> dict[str, Any]:
    return {name: case(world) for name, case in cases.items()}


class Cleared(Loop):
    def before(self, index: int) -> None:
        if index:
            self.optimizer.zero_grad()


class NotCleared(Loop):
    def windows(self, count: int) -> None:
        for window in range(count):
            self.backward(self.batches(self.world.rank, window), self.scale_of(window))
            self.step()


class NeverReduced(Loop):
    def synchronized(self, last: bool) -> Any:
        return self.model.no_sync()


class WithoutDdp(Loop):
    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        return self.bare

    def synchronized(self, last: bool) -> Any:
        return nullcontext()


class UpdatedInside(Loop):
    def before(self, index: int) -> None:
        if index:
            with torch.no_grad():
                self.bare.inner.weight.mul_(1.01)


class ClippedInside(Loop):
    def before(self, index: int) -> None:
        if index:
            clip_grad_norm_(self.bare.parameters(), 1e-3)


class TogetherBackward(Loop):
    """All forwards of a window, then one backward."""

    def backward(self, batches: Sequence[Batch], scale: Callable[[int], float]) -> None:
        losses = []
        for one in batches:
            total, units = self.forward(*one)
            losses.append(total * scale(units))
        self.differentiate(torch.stack(losses).sum())


def clipped(loop: Loop, how: Callable[[Loop], Any]) -> Loop:
    loop.between = lambda: how(loop)
    return loop


def own_clipping(loop: Loop) -> None:
    """To a round norm, as torch does it, but not by torch."""
    gradients = [parameter.grad for parameter in loop.bare.parameters()]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(0.01 / (norm + 1e-6))
