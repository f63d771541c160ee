"""Models and loops of other shapes than audited.Loop's, and what a right loop and a mean of means are found to be."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from ddp_tokens import audit
from ddp_tokens.world import World
from tests.distributed.audited import WIDTH, WORDS, Loop, Words, cross_entropy, summary


class ReturnsDict(Words):
    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return {"logits": super().forward(tokens), "classes": WORDS}


class ReturnsTuple(Words):
    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return tokens, (super().forward(tokens),)


@dataclass(slots=True)
class Output:
    logits: torch.Tensor
    extra: Callable[[], None] | None = None


class ReturnsObject(Words):
    """With a part that no message could hold."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return Output(super().forward(tokens), lambda: None)


class Tied(Words):
    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(WIDTH, WORDS, bias=False)
        self.outer.weight = self.embedding.weight


class Frozen(Words):
    def __init__(self) -> None:
        super().__init__()
        self.inner.requires_grad_(False)


class PartlyUnused(Words):
    """Only some rows, by length, meet `inner`."""

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        return torch.tanh(self.inner(hidden)) if tokens.shape[1] > 1000 else hidden


class Checkpointed(Words):
    def __init__(self, reentrant: bool) -> None:
        super().__init__(dropout=0.3)
        self.reentrant = reentrant

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        embedded = self.embedding(tokens)
        hidden = checkpoint(self.rest, embedded, use_reentrant=self.reentrant)
        return self.outer(hidden)

    def rest(self, embedded: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.tanh(self.inner(embedded)))


class Recurrent(nn.Module):
    """Rows of unequal length are packed; the first state is made in forward, in torch's default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.outer = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        lengths = torch.arange(tokens.shape[1], tokens.shape[1] - len(tokens), -1)
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True)
        first = (torch.zeros(1, len(tokens), WIDTH), torch.zeros(1, len(tokens), WIDTH))
        padded, _ = pad_packed_sequence(self.lstm(packed, first)[0], batch_first=True)
        return self.outer(padded)


class MakesTensors(Words):
    """A mask, a cast to float32, a draw, and tensors that are neither parameters nor buffers; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((WIDTH,), 1.5)
        self.calls = torch.zeros(1)
        self.history: list[int] = []

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        self.history.append(len(tokens))
        self.calls.add_(1)
        hidden = super().hidden(tokens) * self.scale
        mask = torch.triu(torch.full((tokens.shape[1], tokens.shape[1]), float("-inf")), diagonal=1)
        hidden = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=mask)
        kept = (torch.rand_like(hidden) > 0.2).to(torch.float32)
        return hidden.float() * kept + 0.1 * torch.randn(WIDTH)


class HoldsDdp(Words):
    """Wrapped part by part, inside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = DistributedDataParallel(self.embedding)
        self.inner = DistributedDataParallel(self.inner)
        self.outer = DistributedDataParallel(self.outer)


class Sparse(Words):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, sparse=True)


class Draws(Words):
    """From the generators of Python and numpy, as stochastic depth may."""

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().hidden(tokens) * (1 + random.random()) * (1 + numpy.random.rand())


class InParts(Loop):
    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        return self.bare

    def synchronized(self, last: bool) -> Any:
        stack = contextlib.ExitStack()
        if not last:
            for part in (self.bare.embedding, self.bare.inner, self.bare.outer):
                stack.enter_context(part.no_sync())
        return stack


class WholeInCheckpoint(Loop):
    reentrant = False

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
        switch = torch.ones((), requires_grad=True)
        outputs = checkpoint(self.called, tokens, labels, switch, use_reentrant=self.reentrant)
        return cross_entropy(outputs, labels)

    def called(self, tokens: torch.Tensor, labels: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, labels=labels) * switch


class WholeInReentrantCheckpoint(WholeInCheckpoint):
    reentrant = True


class Positional(Loop):
    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
        return cross_entropy(self.model(tokens, labels), labels)


class OfSparse(Loop):
    def __init__(self, world: World, way: str) -> None:
        super().__init__(world, Sparse, way)
        self.optimizer = torch.optim.SGD(self.bare.parameters(), lr=0.1)


class WithClosure(Loop):
    """Gradients are computed inside the optimizer's step."""

    def windows(self, count: int) -> None:
        for window in range(count):

            def closure(window: int = window) -> float:
                self.optimizer.zero_grad()
                self.backward(self.batches(self.world.rank, window), self.scale_of(window))
                return 0.0

            self.optimizer.step(closure)


class TwoOptimizers(Loop):
    """The one that is audited, of `outer`, is the second to update."""

    def __init__(self, world: World, way: str) -> None:
        super().__init__(world, way=way)
        rest = [*self.bare.embedding.parameters(), *self.bare.inner.parameters()]
        self.first = torch.optim.SGD(rest, lr=0.5)
        self.optimizer = torch.optim.SGD(self.bare.outer.parameters(), lr=0.1)

    def step(self) -> None:
        self.first.step()
        self.optimizer.step()
        self.first.zero_grad()


class WithScaler(Loop):
    """The first update is left out, since a gradient is infinite; `fused` optimizers unscale by themselves."""

    def __init__(self, world: World, way: str, fused: bool) -> None:
        super().__init__(world, way=way)
        self.optimizer = torch.optim.Adam(self.bare.parameters(), lr=0.01, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        self.steps = 0

    def differentiate(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        self.steps += 1
        if self.steps == 1:
            self.bare.outer.bias.grad[0] = float("inf")
        self.scaler.step(self.optimizer)
        self.scaler.update()


@dataclass
class Rows:
    """A batch whose labels the model does not get."""

    tokens: torch.Tensor
    labels: torch.Tensor
    name: str = "rows"


class Prefetching(Loop):
    """Batches come from a loader that is two microbatches ahead; the model gets the tokens alone."""

    def audited_rows(self) -> dict[str, Any]:
        def loss_sum(outputs: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, int]:
            return cross_entropy(outputs, rows.labels)

        with audit(self.model, self.optimizer, loss_sum=loss_sum, windows=2, timeout_s=20) as report:
            self.loader = iter(ahead(report.watch(self.rows())))
            self.windows(3)
        return summary(report)

    def rows(self) -> Iterator[Rows]:
        for window in range(3):
            for tokens, labels in self.batches(self.world.rank, window):
                yield Rows(tokens, labels)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
        rows = next(self.loader)
        return cross_entropy(self.model(rows.tokens), rows.labels)


def ahead(batches: Iterator[Any]) -> Iterator[Any]:
    kept = [next(batches), next(batches)]
    for batch in batches:
        yield kept.pop(0)
        kept.append(batch)
    yield from kept


class Compiled(Loop):
    """`inside`: DDP around what is compiled, else the other way round."""

    inside = True

    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        if self.inside:
            return DistributedDataParallel(torch.compile(self.bare, backend="eager"))
        return torch.compile(super().wrapped(ddp), backend="eager")


class CompiledAround(Compiled):
    inside = False

    def synchronized(self, last: bool) -> Any:
        return contextlib.nullcontext() if last else self.model._orig_mod.no_sync()


class CompiledInPlace(Loop):
    def wrapped(self, ddp: dict[str, Any]) -> nn.Module:
        self.bare.compile(backend="eager")
        return super().wrapped(ddp)


def of_logits(outputs: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Wherever an output has them."""
    if isinstance(outputs, dict):
        outputs = outputs["logits"]
    if isinstance(outputs, tuple):
        outputs = outputs[1][0]
    return cross_entropy(outputs.logits if isinstance(outputs, Output) else outputs, batch["labels"])


class OfLogits(Loop):
    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
        return of_logits(self.model(tokens, labels=labels), {"labels": labels})
