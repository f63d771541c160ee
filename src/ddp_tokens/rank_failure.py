"""When a rank fails or hangs: which one it was, where, and that no other is left behind. No torch."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread

from ddp_tokens.errors import RankFailedError, UserError
from ddp_tokens.identity import newest_usable
from ddp_tokens.machine import name_of
from ddp_tokens.options import USER_ERROR
from ddp_tokens.progress import Place, WrittenProgress, is_gone, read_places
from ddp_tokens.reach import ENDED, UNREACHABLE, address_of, listen_towards, reach
from ddp_tokens.world import World

LOOK_EVERY_S = 0.05
# The kernel closes a killed process's connections before it says that the process has ended.
SETTLED_AFTER_S = 2.0
GUARD_EVERY_S = 1.0
# Longer than a rank needs that can still speak for itself.
ENDED_AFTER_S = 5.0
MARKS_OF_COMMUNICATION = ("gloo", "nccl", "connection", "timeout", "timed out")
# Names of exceptions by which a rank is told to stop, by its launcher or by hand; no failure of its own.
STOPPED = ("SignalException", "KeyboardInterrupt")


@dataclass(frozen=True)
class Failure:
    rank: int
    what: str
    place: Place | None


def ended(own: Place, places: Mapping[int, Place]) -> Failure | None:
    """The other rank that raised, or is gone without a word, or that another one blames."""
    by_time = sorted(places.values(), key=lambda place: place.since)
    for place in by_time:
        if place.raised is not None and place.blames is None and not place.raised.startswith(STOPPED):
            return Failure(place.rank, f"raised {place.raised}", place)
    for place in by_time:
        if place.raised is None and is_gone(place):
            return Failure(place.rank, "was killed", place)
    for place in by_time:
        if place.blames == own.rank:
            return Failure(place.rank, f"gave up waiting for rank {own.rank}", place)
        if place.blames is not None:
            return Failure(place.blames, "does not go on", places.get(place.blames))
    return None


def lost(own: Place, places: Mapping[int, Place], what: str) -> Failure | None:
    """The first rank on another machine that is UNREACHABLE, or that has ENDED without a word, by trying to reach it.

    One rank of a machine that does not answer stands for all of them.
    """
    silent: set[str] = set()
    for place in sorted(places.values(), key=lambda place: place.rank):
        if place.machine == own.machine or place.address is None or place.machine in silent:
            continue
        found = reach(place.address)
        if found == UNREACHABLE:
            silent.add(place.machine)
        if found == what == UNREACHABLE:
            return Failure(place.rank, "cannot be reached; it was", place)
        if found == what == ENDED and place.raised is None:
            return Failure(place.rank, "was killed", place)
    return None


def stopped(places: Mapping[int, Place]) -> Failure | None:
    """A rank that was told to stop: what ends the others, when nothing else has."""
    told = (place for place in places.values() if place.raised is not None)
    return next((Failure(place.rank, f"was stopped ({place.raised})", place) for place in told), None)


def waited_for(own: Place, places: Mapping[int, Place], size: int) -> Failure | None:
    """The rank that has not come at all, or has entered the fewest collectives, or is in another one than `own`; None
    when all are in the same one.
    """
    missing = sorted(set(range(size)) - {own.rank, *places})
    if missing:
        return Failure(missing[0], "is not there", None)
    behind = min(places.values(), key=lambda place: place.entered, default=own)
    if behind.entered < own.entered:
        return Failure(behind.rank, "does not go on", behind)
    beside = (place for place in places.values() if place.inside and place.entered == own.entered)
    elsewhere = (place for place in beside if place.collective != own.collective)
    return next((Failure(place.rank, "is in another collective", place) for place in elsewhere), None)


def speaks_of_communication(error: BaseException) -> bool:
    """torch raises plain RuntimeErrors for gloo's, of many texts, as autograd does for what is wrong in a backward."""
    return any(mark in str(error).lower() for mark in MARKS_OF_COMMUNICATION)


def find_failure(own: Place, error: RuntimeError, look: Callable[[], Mapping[int, Place]], size: int) -> Failure | None:
    """Why the collective that `own` is in has failed; None where `error` seems to be this rank's own.

    Looks again for a while: the others may be about to say so. Where a host is cut off, its ranks blame this one.
    """
    deadline = time.monotonic() + SETTLED_AFTER_S
    cut_off = lost(own, look(), UNREACHABLE)
    if cut_off:
        return cut_off
    while True:
        places = look()
        failure = ended(own, places)
        if failure:
            return failure
        if time.monotonic() > deadline:
            of_communication = speaks_of_communication(error)
            return (
                lost(own, places, ENDED)
                or stopped(places)
                or (waited_for(own, places, size) if of_communication else None)
            )
        time.sleep(LOOK_EVERY_S)


def described(failure: Failure, own: Place, now: float) -> str:
    """The rank, its update and microbatch, its last collective, and what this rank was doing."""
    who, me = f"rank {failure.rank}", f"rank {own.rank}"
    if failure.place is not None and failure.place.machine != own.machine:
        who, me = f"{who} on host {name_of(failure.place.machine)}", f"{me} on host {name_of(own.machine)}"
    waits = f"while {me} was in the {own.collective}" if own.inside else f"which ends {me}"
    return f"{who} {failure.what} {_where(failure.place, now)}, {waits}"


def resumable(checkpoint: Path | None) -> str:
    return (
        f"the newest whole checkpoint is {checkpoint}" if checkpoint else "there is no whole checkpoint to resume from"
    )


def _where(place: Place | None, now: float) -> str:
    if place is None:
        return "(it never started, or ended before it could say where it is)"
    at = "before its first update" if place.step is None else f"in update {place.step}"
    if place.microbatch is not None:
        at += f", microbatch {place.microbatch}"
    last = f"the last collective it entered is the {place.collective}" if place.entered else "it entered no collective"
    if place.entered:
        last += ", where it still was" if place.inside else ", which came back"
    return f"{at} ({last}; last sign of life {max(0.0, now - place.since):.0f} s ago)"


@dataclass(frozen=True)
class Watch:
    """Rank `world.rank`'s view of the others. `checkpoint` finds what can be resumed; None where nothing ever can."""

    folder: Path
    world: World
    launch: str
    master: str
    program: str
    checkpoint: Callable[[], Path | None] | None = None

    def places(self) -> dict[int, Place]:
        return read_places(self.folder, self.world, self.launch)

    def sentence(self, failure: Failure, own: Place) -> str:
        return "; ".join([described(failure, own, time.time()), *self.what_to_resume()])

    def what_to_resume(self) -> list[str]:
        return [] if self.checkpoint is None else [resumable(self.checkpoint())]


@contextmanager
def watched(watch: Watch) -> Iterator[WrittenProgress]:
    """Tell the others where this rank is, and end it `ENDED_AFTER_S` seconds after one of them has failed if it has not
    ended by itself: it may be asleep, or busy. Around the process group; `explaining` goes inside.
    """
    with listening(watch) as address:
        progress = WrittenProgress(watch.folder, watch.world.rank, watch.launch, address)
        over = Event()
        guard = Thread(target=_end_with_the_others, args=(watch, progress, over), daemon=True)
        guard.start()
        done = False
        try:
            with explaining(watch, progress):
                yield progress
            done = True
        finally:
            over.set()
            guard.join()
            progress.close(remove=done)


@contextmanager
def listening(watch: Watch) -> Iterator[str | None]:
    """Where ranks of other hosts can find out whether this one is there; None where there are no others."""
    listens = listen_towards(watch.master) if watch.world.spans_hosts else None
    with listens or nullcontext():
        yield address_of(listens) if listens else None


@contextmanager
def explaining(watch: Watch, progress: WrittenProgress) -> Iterator[None]:
    """Say why the block failed, before this rank leaves the process group and the others look for the reason.

    A collective that fails because of another rank becomes a RankFailedError that names it. What this rank raises by
    itself stays as it is; where it is no sentence for users, notes say where it was.
    """
    try:
        yield
    except Exception as error:
        if progress.place.raised is not None:
            raise
        failure = _caused_by_another(watch, progress, error)
        if failure:
            progress.failed(f"RankFailedError: {failure}", failure.rank)
            traceback.clear_frames(error.__traceback__)  # as process_group does: the cause would keep the model
            raise failure from error
        progress.failed(f"{type(error).__name__}: {error}")
        if not isinstance(error, UserError):
            error.add_note(f"this was rank {watch.world.rank} {_where(progress.place, time.time())}")
            for note in watch.what_to_resume():
                error.add_note(note)
        raise


def _caused_by_another(watch: Watch, progress: WrittenProgress, error: Exception) -> RankFailedError | None:
    """Why this rank's collective failed; or, when a launcher stops this rank, which one it stops it for."""
    # This rank is about to end by itself; let it finish its sentence when the launcher has noticed too.
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    own = progress.place
    if type(error).__name__ in STOPPED:
        failure = ended(own, watch.places())
    elif own.inside and isinstance(error, RuntimeError):
        failure = find_failure(own, error, watch.places, watch.world.size)
    else:
        return None
    return RankFailedError(watch.sentence(failure, own), failure.rank) if failure else None


def _end_with_the_others(watch: Watch, progress: WrittenProgress, over: Event) -> None:
    """In a thread of its own, which runs while the main one sleeps, computes or waits in a collective."""
    noticed = None
    while not over.wait(GUARD_EVERY_S):
        places = watch.places()
        failure = ended(progress.place, places) or stopped(places)
        if failure is None:
            continue
        noticed = noticed or time.monotonic()
        if time.monotonic() - noticed >= ENDED_AFTER_S:
            failure = lost(progress.place, places, UNREACHABLE) or failure
            text = watch.sentence(failure, progress.place)
            sys.stderr.write(f"{watch.program}, rank {watch.world.rank}: {text}\n")
            sys.stderr.flush()
            os._exit(USER_ERROR)


def checkpoint_finder(own: Path, identity: Mapping[str, object], before: int) -> Callable[[], Path | None]:
    return lambda: newest_usable(own, identity, before)
