"""Windows of whole documents, so that the mean of a document is made in one update. Pure, no torch."""

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TypeVar

from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.errors import PlanError
from ddp_tokens.plan import PLAN_SEED_OFFSET, Window, windows_of

Shares = list[Sequence[int]]
Name = TypeVar("Name", int, str)


def make_document_plan(
    rows: TrainingRows, *, seed: int, steps: int, world_size: int, accumulation: int, batch: int
) -> Iterator[Window]:
    """Documents come in a new random order in each epoch. A window takes as many as have world_size * accumulation *
    batch rows together, or one that has more; its rows are dealt to the ranks in turn, so that these may differ by a
    row, and then in their number of microbatches. The last window of an epoch holds what is left.

    Raises PlanError at a row without a document, and at a window without a supervised unit.
    """
    of_documents = rows_of_documents(rows)
    epochs = (_taken(of_documents, random.Random(f"{seed + PLAN_SEED_OFFSET}, epoch {epoch}")) for epoch in count())
    most = world_size * accumulation * batch
    shares = (_dealt(own, world_size) for documents in epochs for own in _filled(documents, most))
    return windows_of(islice(shares, steps), rows, batch)


def rows_of_documents(rows: TrainingRows) -> list["array[int]"]:
    """By document, in the order in which they first appear, the indices of its rows."""
    if len(rows.document_of) != len(rows):
        raise PlanError(
            "sharding by_document needs a field document in every row, and there are rows without one: add it, or "
            "take another sharding"
        )
    found = [array("I") for _ in rows.documents]
    for index, document in enumerate(rows.document_of):
        found[document].append(index)
    return found


def whole_documents(shares: Iterable[Sequence[Sequence[int]]], rows: TrainingRows) -> Iterator[Sequence[Sequence[int]]]:
    """The windows as they are. Raises PlanError, naming the document, at one that holds a part of a document, or a row
    of it twice: the document's mean would be made of other rows than it has.
    """
    sizes, names = Counter(rows.document_of), list(rows.documents)
    for number, of_ranks in enumerate(shares, start=1):
        held = Counter(rows.document_of[index] for own in of_ranks for index in own)
        _require_whole(number, held, sizes, names.__getitem__, "unit document")
        yield of_ranks


def require_whole_documents(plan: Iterable[Window], document_of: Mapping[str, str]) -> None:
    """For a term per document. `document_of`: by id, of all training rows. Raises PlanError as above."""
    sizes = Counter(document_of.values())
    for number, window in enumerate(plan, start=1):
        held = Counter(document_of[row_id] for of_rank in window for microbatch in of_rank for row_id in microbatch)
        _require_whole(number, held, sizes, str, "a term per document")


def _require_whole(
    number: int, held: Mapping[Name, int], sizes: Mapping[Name, int], called: Callable[[Name], str], why: str
) -> None:
    split = next((document for document in held if held[document] != sizes[document]), None)
    if split is not None:
        raise PlanError(
            f"window {number} holds {held[split]} of the {sizes[split]} rows of document '{called(split)}', and with "
            f"{why} all rows of a document belong into one window: set sharding to by_document"
        )


def _taken(of_documents: Sequence["array[int]"], rng: random.Random) -> Iterator["array[int]"]:
    order = list(range(len(of_documents)))
    rng.shuffle(order)
    return (of_documents[document] for document in order)


def _filled(documents: Iterable["array[int]"], most: int) -> Iterator["array[int]"]:
    window = array("I")
    for document in documents:
        if window and len(window) + len(document) > most:
            yield window
            window = array("I")
        window = window + document
    yield window


def _dealt(own: "array[int]", world_size: int) -> Shares:
    return [own[rank::world_size] for rank in range(world_size)]
