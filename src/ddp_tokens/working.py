"""Working checkpoints: what an interrupted run continues from. They lie beside its outputs until it has delivered.

runs/.RUN.KEY/
  start/          what each rank held before the run's first update, as it will be delivered, and a manifest
  step-NNNN/      checkpoints, the last few
runs/.RUN.lock    held by every rank while it runs

KEY is a digest of all that makes the run what it is, so no other run, code or setting ever continues from it.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ddp_tokens.checkpoint import TrainingState, save
from ddp_tokens.checkpoint_files import MANIFEST, verify
from ddp_tokens.distributed import barrier, largest_over_ranks, sum_over_ranks
from ddp_tokens.errors import CheckpointError, EvidenceError, LaunchError, UserError
from ddp_tokens.files import read_json, sha256, sha256_of_json, sync_directory, write_json
from ddp_tokens.layout import checkpoint_name, checkpoints_in
from ddp_tokens.locks import holders, lock_alone, lock_shared, share
from ddp_tokens.start import StartRecord, read_start, write_start
from ddp_tokens.world import World

START = "start"
NOTHING = -1
KEY_LETTERS = 16
WAIT_S = 15.0
log = logging.getLogger(__name__)


def digest_of_manifest(checkpoint: Path) -> str | None:
    manifest = checkpoint / MANIFEST
    return sha256(manifest) if manifest.is_file() else None


def working_key(
    run: str, until: int, identity: Mapping[str, Any], world: World, code: Mapping[str, str], resumed: Path | None
) -> str:
    """A short digest of the run's name, last update, identity, ranks, sources, and the checkpoint that it resumes."""
    start = digest_of_manifest(resumed) if resumed else None
    whole = [run, until, dict(identity), world.size, dict(code), start]
    return sha256_of_json(whole)[:KEY_LETTERS]


@dataclass(frozen=True)
class Working:
    """`folder`: runs/.RUN.KEY. `every`: updates between checkpoints, 0 for none. `keep`: how many stay."""

    folder: Path
    every: int
    keep: int
    identity: Mapping[str, Any]
    world: World

    def find(self) -> Path | None:
        """Every rank calls this. The newest checkpoint that is whole, as rank 0 finds it; damaged ones are named."""
        mine = self._newest_step() if self.world.is_main else NOTHING
        step = largest_over_ranks(mine, self.world.device)
        return None if step == NOTHING else self.folder / checkpoint_name(step)

    def keep_start(self, start: StartRecord) -> None:
        """Every rank calls this, before the run's first update."""
        write_start(self.folder / START, start, self.world.rank)
        barrier()
        if self.world.is_main:
            files = sorted(path for path in (self.folder / START).iterdir() if path.name != MANIFEST)
            write_json(self.folder / START / MANIFEST, {path.name: sha256(path) for path in files})
            sync_directory(self.folder / START)

    def first_start(self) -> StartRecord:
        """What this rank held when the run was started first."""
        return read_start(self.folder / START, self.world.rank)

    def is_due(self, step: int, until: int) -> bool:
        return self.every > 0 and step % self.every == 0 and step < until

    def save(self, state: TrainingState) -> Path:
        """Every rank calls this. The newest `keep` checkpoints stay, and none of a later update."""
        checkpoint = self.folder / checkpoint_name(state.step)
        save(checkpoint, state, self.identity, self.world)
        if self.world.is_main:
            found = checkpoints_in(self.folder)
            last = found.index(checkpoint)
            for stale in (*found[: max(0, last + 1 - self.keep)], *found[last + 1 :]):
                shutil.rmtree(stale, ignore_errors=True)
        return checkpoint

    def remove(self, run: str) -> None:
        """Every rank calls this, when the run has delivered. Leftovers of the run under other keys go too."""
        barrier()
        if self.world.is_main:
            for folder in self.folder.parent.glob(f".{run}.{'[0-9a-f]' * KEY_LETTERS}"):
                _remove_at_once(folder)

    def _newest_step(self) -> int:
        newest = self._newest_whole()
        if newest is None or self._start_is_whole():
            return NOTHING if newest is None else newest
        log.warning("warning: %s is damaged, so the run starts anew", self.folder / START)
        return NOTHING

    def _newest_whole(self) -> int | None:
        for checkpoint in reversed(checkpoints_in(self.folder)):
            try:
                return int(verify(checkpoint)["step"])
            except CheckpointError as error:
                log.warning("warning: a working checkpoint is skipped: %s", error)
        return None

    def _start_is_whole(self) -> bool:
        start = self.folder / START
        try:
            manifest = read_json(start / MANIFEST)
            return all(sha256(start / name) == digest for name, digest in manifest.items())
        except (EvidenceError, OSError):
            return False


def _remove_at_once(folder: Path) -> None:
    """Killed in the midst of it, this leaves nothing under the folder's name: half of it would look damaged."""
    aside = folder.with_suffix(".old")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def running_alone(path: Path, run: Path, world: World, timeout_s: int) -> Iterator[None]:
    """Every rank calls this and holds the lock file `path` inside the block, so that nobody else writes `run`.

    Ranks that an earlier start has left may need seconds to end: they are waited for. Raises LaunchError on every rank
    when they stay.
    """
    held = _enter(path, world, timeout_s)
    [entered] = sum_over_ranks([held is not None], world.device)
    try:
        if entered < world.size:
            raise LaunchError(f"{run} is being written by {holders(path)}: wait until that has ended, or end it")
        with _removed_when_all_leave(path, world):
            yield
    finally:
        if held is not None:
            held.close()


@contextmanager
def _removed_when_all_leave(path: Path, world: World) -> Iterator[None]:
    """After any other error ranks may be left that still hold the lock file, so it stays."""
    try:
        yield
        barrier()
    except UserError:
        _remove_lock(path, world)
        raise
    _remove_lock(path, world)


def _remove_lock(path: Path, world: World) -> None:
    if world.is_main:
        path.unlink(missing_ok=True)


def _enter(path: Path, world: World, timeout_s: int) -> IO[str] | None:
    """Rank 0 first takes the lock for itself, which ranks of an earlier start prevent, and then lets the others in."""
    held = None
    if world.is_main:
        held = lock_alone(path, min(WAIT_S, timeout_s / 2))
        if held is not None and not share(held):
            held = None
    if not largest_over_ranks(int(held is not None), world.device):
        return None
    return held if world.is_main else lock_shared(path)
