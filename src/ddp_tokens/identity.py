"""What two runs must have in common to be one path, and what a user may let differ. Plain values, no torch.

A checkpoint holds the identity of its run: settings, digests of data, order, initial weights and code, versions. One
that went on although something differed says so: `inexact` and `repartitioned` list when, and from what to what.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_tokens.checkpoint_files import COMMON, verify
from ddp_tokens.errors import CheckpointError, ConfigError, EvidenceError
from ddp_tokens.files import read_json

ONLY_BITS = ("threads_per_rank", "torch", "python")  # another value gives the same run, apart from rounding
INEXACT, REPARTITIONED = "inexact", "repartitioned"
PAST = {INEXACT: "--allow-inexact", REPARTITIONED: "--allow-repartition"}


@dataclass(frozen=True)
class Allowed:
    """`inexact`: a difference that only threatens bit-equality. `repartition`: another number of ranks."""

    inexact: bool = False
    repartition: bool = False


NOTHING = Allowed()


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        PAST[INEXACT],
        action="store_true",
        help="with --resume: go on with other threads, torch or Python; the run records that it is not exact",
    )
    parser.add_argument(
        PAST[REPARTITIONED],
        action="store_true",
        help="with --resume and --world-size W: deal the remaining windows to W ranks; the run is not exact",
    )


def allowed_by(own: argparse.Namespace) -> Allowed:
    """Raises ConfigError where a run that starts anew is given leave to differ from what it has not got."""
    allowed = Allowed(own.allow_inexact, own.allow_repartition)
    if own.resume is None and allowed != NOTHING:
        flag = PAST[INEXACT] if own.allow_inexact else PAST[REPARTITIONED]
        raise ConfigError(f"{flag} goes with --resume PATH: a run that starts anew has nothing to differ from")
    return allowed


def continued(
    directory: Path | str,
    written: Mapping[str, Any],
    now: Mapping[str, Any],
    step: int,
    allowed: Allowed = NOTHING,
) -> dict[str, Any]:
    """The identity under which a run goes on from a checkpoint of update `step`.

    Raises CheckpointError, naming the first setting or file that differs and is not allowed to, in the order of `now`.
    """
    permitted = {
        **dict.fromkeys(ONLY_BITS, allowed.inexact),
        "world_size": allowed.repartition,
        INEXACT: allowed.inexact,
        REPARTITIONED: allowed.repartition,
    }
    differing = [name for name in dict.fromkeys((*now, *written)) if written.get(name) != now.get(name)]
    for name in differing:
        if not permitted.get(name):
            raise CheckpointError(_sentence(directory, name, written, now, allowed))
    bits = {name: _change(name, written, now) for name in differing if name in ONLY_BITS}
    dealt = {name: _change(name, written, now) for name in differing if name == "world_size"}
    past = {
        name: past_of(written, name) + ([{"step": step} | changes] if changes else [])
        for name, changes in ((INEXACT, bits), (REPARTITIONED, dealt))
    }
    return dict(now) | {name: entries for name, entries in past.items() if entries}


def past_of(identity: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The entries of `inexact` or `repartitioned`, oldest first."""
    return list(identity.get(name, []))


def damaged_past(identity: Mapping[str, Any]) -> str | None:
    """The first of `inexact` and `repartitioned` that is not as `continued` makes it."""
    for name in PAST:
        entries = identity.get(name, [])
        if not isinstance(entries, list) or not all(map(_is_entry, entries)):
            return name
    return None


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or type(entry.get("step")) is not int:
        return False
    changes = [change for field, change in entry.items() if field != "step"]
    return bool(changes) and all(isinstance(change, dict) and set(change) == {"from", "to"} for change in changes)


def first_update_of_rank_histories(identity: Mapping[str, Any]) -> int:
    """What a rank did before the windows were dealt anew is no history of the rank that now has its number."""
    return max((entry["step"] for entry in past_of(identity, REPARTITIONED)), default=0) + 1


def told(identity: Mapping[str, Any]) -> list[str]:
    """What a reader of the run must know, one line for each time that it went on differently."""
    return [
        f"{name} since update {entry['step']}: "
        + ", ".join(f"{field} {c['from']} -> {c['to']}" for field, c in sorted(entry.items()) if field != "step")
        for name in PAST
        for entry in past_of(identity, name)
    ]


def _change(name: str, written: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    return {"from": written.get(name), "to": now.get(name)}


def _sentence(
    directory: Path | str, name: str, written: Mapping[str, Any], now: Mapping[str, Any], allowed: Allowed
) -> str:
    if name in PAST:
        return f"{directory} is of a run that is {'; '.join(told({name: written.get(name)}))}: add {PAST[name]}"
    what = f"{directory} was written with {name} {written.get(name)}, this run has {now.get(name)}"
    if name in ONLY_BITS:
        return f"{what}, which can change bits: resume with the same {name}, or add {PAST[INEXACT]}"
    if name == "world_size":
        return f"{what}: start {written.get(name)} ranks, or add {PAST[REPARTITIONED]}"
    if name == "plan.json" and allowed.repartition:
        return f"{what}: prepare with the world_size that the first plan was made for; its windows are dealt from there"
    return f"{what}: resume with the same settings, or start anew"


def newest_usable(own: Path, identity: Mapping[str, Any], before: int) -> Path | None:
    """The whole checkpoint of the latest update below `before` that a run of this identity could resume: in its own
    folder of working checkpoints, from which it goes on by itself, or else in any other folder beside it.

    Hidden folders count too: RUN/step-NNNN and .RUN.KEY/step-NNNN.
    """

    def order(path: Path) -> tuple[bool, int, str]:
        return path.parent == own, len(path.name), path.name

    for directory in sorted(own.parent.glob("*/step-*"), key=order, reverse=True):
        try:
            step = verify(directory)["step"]
            if step < before:
                continued(directory, read_json(directory / COMMON)["identity"], identity, step, NOTHING)
                return directory
        except (CheckpointError, EvidenceError, OSError, KeyError):
            continue
    return None
