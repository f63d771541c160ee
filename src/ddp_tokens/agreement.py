"""Before ranks work together: all run the same code, settings and versions, on the same files, in one folder.

Ranks of several hosts have a checkout, an environment and a view of the disk each. What differs would show late or
never: as a run that nobody can repeat, or as ranks that wait for each other for ever. So all ranks refuse to begin.
"""

import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy
import safetensors
import torch

from ddp_tokens.config import Experiment
from ddp_tokens.disagreement import Document, disagreement, parse_document, who
from ddp_tokens.distributed import bytes_of_ranks, sum_over_ranks, texts_of_ranks, together
from ddp_tokens.errors import LaunchError, UserError
from ddp_tokens.files import from_json, sha256, to_json
from ddp_tokens.inputs import Prepared, read_prepared, require_initial
from ddp_tokens.layout import Layout
from ddp_tokens.options import sentence
from ddp_tokens.steps import LOCK_FILE, PROJECT_ROOT, code_of, dump
from ddp_tokens.world import World

# A new name on a network file system can be there a moment later for others than for its writer.
SEEN_WITHIN_S = 5.0
LOOK_EVERY_S = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class File:
    """As this host calls it."""

    path: Path
    sha256: str | None


class Attempt(Generic[T]):
    """What `read` returns, and the files that it was read from; or the error for users that it ended with, kept until
    all ranks can be told.
    """

    def __init__(self, read: Callable[[], tuple[T, Mapping[str, File]]]) -> None:
        self._error: UserError | OSError | None = None
        self.value: T | None = None
        self.files: Mapping[str, File] = {}
        try:
            self.value, self.files = read()
        except (UserError, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise
            self._error = error

    @property
    def problem(self) -> str | None:
        return None if self._error is None else sentence(self._error)

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        assert self.value is not None
        return self.value


def describe(
    program: str, step: str, experiment: Experiment, attempt: Attempt[Any], arguments: Mapping[str, Any]
) -> Document:
    """`experiment`: as the step sees it. `arguments`: those of the command that are no settings."""
    lock = {str(LOCK_FILE.relative_to(PROJECT_ROOT)): sha256(LOCK_FILE)} if LOCK_FILE.is_file() else {}
    return Document(
        program=program,
        sources=code_of(experiment, step) | lock,
        versions=versions(),
        arguments=arguments,
        settings=dict(flattened(dump(experiment))),
        host=socket.gethostname(),
        problem=attempt.problem,
        files={name: file.sha256 for name, file in attempt.files.items()},
        paths={name: str(file.path) for name, file in attempt.files.items()},
    )


def versions() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "NumPy": numpy.__version__,
        "safetensors": safetensors.__version__,
    }


def flattened(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """By dotted name: {"optimizer": {"lr": 0.1}} is optimizer.lr, 0.1."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{name}.")
        else:
            yield above + name, value


def read_inputs(experiment: Experiment, at: Layout) -> tuple[Prepared, dict[str, File]]:
    """What a program reads that only starts from prepared files and initial weights."""
    prepared = read_prepared(experiment, at)
    require_initial(at.initial)
    return prepared, input_files(at, {at.rows.name: prepared.lock["corpus_sha256"]})


def input_files(at: Layout, known: Mapping[str, Any]) -> dict[str, File]:
    """What prepare and reference have made. `known`: digests that need not be computed again, by the file's name."""
    paths = (at.rows, at.lock, at.plan, at.initial)
    return {path.name: File(path, known.get(path.name) or sha256(path)) for path in paths}


def require_agreement(world: World, at: Layout, document: Document) -> None:
    """Every rank calls this, as the first collective. Raises LaunchError with the same sentence on all ranks when they
    are not all alike, or do not all see the experiment's folder. A problem that all have alike is left to the caller.
    """
    # Digests are compared first: they are all that there is to exchange where ranks agree.
    own = document.digest + secrets.token_hex(8)
    found = bytes_of_ranks(own.encode(), world.device, "digests of what each rank runs")
    digests = {of_rank[: len(document.digest)] for of_rank in found}
    if len(digests) > 1:
        texts = texts_of_ranks(document.text, world.device, "descriptions of what each rank runs")
        raise LaunchError(str(disagreement([parse_document(text) for text in texts])))
    if document.problem is None:
        token = found[0][len(document.digest) :].decode()
        _require_shared(world, at, document.host, token)


def _require_shared(world: World, at: Layout, host: str, token: str) -> None:
    """`token`: rank 0's, as all know it."""
    path = at.seen_by_all(token)
    with _written_by_rank_0(path, world):
        blind = [0.0] * world.size
        blind[world.rank] = float(not _is_seen(path))
        blind = sum_over_ranks(blind, world.device, "check that all ranks see one folder")
    if not any(blind):
        return
    views = [from_json(text) for text in texts_of_ranks(to_json([host, str(at.root)]), world.device, "hosts")]
    hosts, (_, folder) = [view[0] for view in views], views[0]
    first = next(rank for rank, is_blind in enumerate(blind) if is_blind)
    ranks = [rank for rank, is_blind in enumerate(blind) if is_blind and hosts[rank] == hosts[first]]
    verb = ("does", "do")[len(ranks) > 1]
    raise LaunchError(
        f"{who(ranks, hosts)} {verb} not see what {who([0], hosts)} writes to {folder}: "
        "put the results folder on a file system that all hosts share"
    )


@contextmanager
def _written_by_rank_0(path: Path, world: World) -> Iterator[None]:
    """The file is there before any rank enters the block, and gone once all have left it."""
    try:
        with together(f"write to {path.parent}", world):
            if world.is_main:
                path.touch()
        yield
    finally:
        if world.is_main:
            path.unlink(missing_ok=True)


def _is_seen(path: Path) -> bool:
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
