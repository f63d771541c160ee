"""The batches of a rank, window by window as the plan says, made by the rank itself or ahead by worker processes.

What a batch holds depends on the plan, the rows, the seed and its place in the run, never on who makes it or when: so a
run may be interrupted, and resumed with another number of workers, anywhere.
"""

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Generator
from torch.utils.data import DataLoader, Dataset

from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import LoadingError, UserError
from ddp_tokens.own_work import raised_by_own_work
from ddp_tokens.plan import Plan, microbatches_of
from ddp_tokens.watching import end_with
from ddp_tokens.workloads import Workload, augmenter
from ddp_tokens.world import World

NONE = "none"
FOR_THE_RANK = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class Loading:
    """`workers`: processes. `seed`: of augmentation on rank 0; rank r has `seed` + r. `timeout_s`: seconds that a rank
    waits for a batch of its workers; 0: for ever.
    """

    workers: int = 0
    augmentation: str = NONE
    seed: int = 0
    timeout_s: int = 0


@dataclass(frozen=True)
class Batches(Dataset[Any]):
    """Batch of (update, microbatch): the update counts from 1, the microbatch from 0."""

    workload: Workload
    plan: Plan
    rows: Mapping[str, Row]
    world: World
    loading: Loading

    def __getitem__(self, place: tuple[int, int]) -> Any:
        """A UserError is returned, not raised: torch would put the traceback of the worker into its text. Likewise what
        a user's own file raises in a worker.
        """
        try:
            return self.batch(*place)
        except UserError as error:
            return error
        except Exception as error:
            theirs = raised_by_own_work(error)
            if theirs is None:
                raise
            return theirs

    def batch(self, step: int, microbatch: int) -> Any:
        """On the CPU."""
        rows = microbatches_of(self.plan[step - 1], self.world.rank, self.rows)[microbatch]
        batch = self.workload.collate(rows)
        if self.loading.augmentation == NONE:
            return batch
        generator = numpy.random.default_rng([self.loading.seed + self.world.rank, step, microbatch])
        return augmenter(self.workload).augment(batch, self.loading.augmentation, generator)


def windows_of_rank(batches: Batches, first: int, until: int) -> Iterator[list[Any]]:
    """For each of the updates `first` to `until`, this rank's batches on its device. Workers end when it does.

    Raises LoadingError when a worker dies, or gives no batch in `timeout_s` seconds.
    """
    window_of = {step: batches.plan[step - 1][batches.world.rank] for step in range(first, until + 1)}
    places = [(step, index) for step, microbatches in window_of.items() for index in range(len(microbatches))]
    made = _made(batches, places)
    try:
        for step, microbatches in window_of.items():
            yield [_usable(_next(made, batches, step), batches.world) for _ in microbatches]
    finally:
        del made  # with it go the workers; the traceback of an error would keep both


def _made(batches: Batches, places: Sequence[tuple[int, int]]) -> Iterator[Any]:
    workers = batches.loading.workers
    with warnings.catch_warnings():
        if not batches.world.is_main:
            warnings.filterwarnings(
                "ignore", "This DataLoader will create"
            )  # more workers than cores: one rank says it
        loader = DataLoader(
            batches,
            batch_size=None,
            sampler=places,
            collate_fn=_as_it_is,
            num_workers=workers,
            timeout=batches.loading.timeout_s if workers else 0,
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=_obey_only_the_rank,
            pin_memory=batches.world.device.startswith("cuda"),
            generator=Generator(),  # a generator of its own: a draw from torch's would change the run
        )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*FOR_THE_RANK, signal.SIGTERM])
    try:
        return iter(loader)  # forks the workers, which so never have a moment in which a signal ends them
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _next(made: Iterator[Any], batches: Batches, step: int) -> Any:
    """A worker that finds no shared memory for a batch prints why and goes on, and its batch never comes."""
    try:
        return next(made)
    except (RuntimeError, ConnectionError, EOFError) as error:
        of_batch = str(error).startswith("Caught")  # what a worker raised, with its traceback
        of_rank = isinstance(error, RuntimeError) and not str(error).startswith("DataLoader")
        if not batches.loading.workers or of_batch or of_rank:
            raise
        raise LoadingError(_why_none(str(error), batches, step)) from error


def _why_none(told: str, batches: Batches, step: int) -> str:
    rank = batches.world.rank
    if "timed out" in told:
        return (
            f"rank {rank} got no batch of update {step} from its workers in {batches.loading.timeout_s} s: where 'No "
            "space left on device' stands above, /dev/shm is too small (`df -h /dev/shm`; of a container, --shm-size); "
            "otherwise raise timeout_s, or set workers to 0"
        )
    return (
        f"rank {rank} lost a worker before it had all batches of update {step} ({' '.join(told.split())}): where the "
        "kernel's log (`dmesg`) says that memory was short, lower workers or batch"
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _usable(batch: Any, world: World) -> Any:
    if isinstance(batch, UserError):
        raise batch
    return batch if world.device == "cpu" else batch.to(world.device, non_blocking=True)


def _obey_only_the_rank(worker: int) -> None:
    """A wish to stop reaches the whole process group; the rank ends its window first, and needs its batches for it."""
    rank = os.getppid()
    for number in FOR_THE_RANK:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_when_told, args=(rank,), name="obeying", daemon=True).start()
    end_with([rank])


def _end_when_told(rank: int) -> None:
    """By SIGTERM Python ends the workers of a rank that exits with an error, and waits for them."""
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != rank:
        pass
    os._exit(0)
