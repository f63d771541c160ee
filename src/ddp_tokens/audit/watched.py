"""Which batch a forward computes, where its labels are no input of the module."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddp_tokens.audit.packing import pack, unpack
from ddp_tokens.errors import AuditError

KEPT = 8  # batches that a loader may be ahead of the forward; what an evaluation takes is forgotten again


class Watched:
    """Batches that were taken from watched loaders and not computed yet, oldest first."""

    def __init__(self) -> None:
        self.is_used = False
        self._is_over = False
        self._taken: deque[Any] = deque(maxlen=KEPT)
        self._undo: Callable[[], None] | None = None

    def watch(self, loader: Any) -> Any:
        """A DataLoader itself, of which trainers make another one; else a loader that goes through it."""
        self.is_used = True
        if isinstance(loader, DataLoader):
            self.watch_all()
            return loader
        return WatchedLoader(loader, self)

    def watch_all(self) -> None:
        """Every DataLoader, until `stop`. Those of which nothing is computed do no harm: content tells batches."""
        self.is_used = True
        if self._undo is None:
            self._undo = _instead_of_next(self.taken)

    def stop(self) -> None:
        """Keeps nothing from here on; loaders go on."""
        self._is_over = True
        self._taken.clear()
        if self._undo is not None:
            self._undo()
            self._undo = None

    def told(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield self.taken(batch)

    def taken(self, batch: Any) -> Any:
        """The batch, which is noted."""
        if not self._is_over:
            self._taken.append(_as_it_is(batch))
        return batch

    def take(self, arguments: Any, named: Any) -> Any:
        """The batch of which most tensors are among the inputs, the oldest of several; where none is, since inputs are
        computed from it, the only one. None where nothing is watched. Raises AuditError where that leaves a choice.
        """
        if not self.is_used:
            return None
        _, inputs = pack([list(arguments), dict(named)], "an input")
        shared = [_shared(pack(batch, "the batch")[1], inputs) for batch in self._taken]
        if len(shared) == 1 or any(shared):
            place = shared.index(max(shared))
            found = self._taken[place]
            del self._taken[place]
            return found
        if not self._taken:
            raise AuditError(
                "the module was called with gradients more often than the watched loader gave batches: the audit takes "
                "one forward for each batch, so watch the loader that the loop goes through, and call the module once"
            )
        raise AuditError(
            f"{len(self._taken)} batches were taken from the watched loader and none has a tensor in common with what "
            "the module was called with: watch the loader whose batches the loop computes one by one"
        )


class WatchedLoader:
    """A loader that is gone through as before, and says what it gave."""

    def __init__(self, loader: Any, watched: Watched) -> None:
        self._loader = loader
        self._watched = watched

    def __iter__(self) -> Iterator[Any]:
        return self._watched.told(iter(self._loader))  # made now: a loader draws its seed then

    def __next__(self) -> Any:
        """Of a loader that is an iterator itself."""
        return self._watched.taken(next(self._loader))

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of one that copy is still making
            raise AttributeError(name)
        return getattr(self._loader, name)


def _instead_of_next(noted: Callable[[Any], Any]) -> Callable[[], None]:
    """Every batch of every DataLoader goes through `noted`, until the function that is returned is called."""
    original = _BaseDataLoaderIter.__next__
    is_over = False

    def following(batches: Any) -> Any:
        batch = original(batches)
        return batch if is_over else noted(batch)

    def undo() -> None:
        nonlocal is_over
        is_over = True
        if _BaseDataLoaderIter.__next__ is following:
            _BaseDataLoaderIter.__next__ = original

    _BaseDataLoaderIter.__next__ = following
    return undo


def _as_it_is(batch: Any) -> Any:
    """With the same tensors: a loop may take something out of a dict, or put something else into a list."""
    try:
        return unpack(*pack(batch, "the batch"), lambda tensor: tensor)
    except AuditError:  # is said of the forward that computes this batch, if one does
        return batch


def _shared(batch: list[torch.Tensor], inputs: list[torch.Tensor]) -> int:
    return sum(any(_same(one, other) for other in inputs) for one in batch if one.numel())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one, other.to(one.device)))
