"""What was built again beside what was archived, as one plain document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_tokens.archive.comparison import concluded
from ddp_tokens.archive.groups import group_of, in_order, short_name
from ddp_tokens.archive.layout import comparison_digest
from ddp_tokens.archive.nearness import NUMBERS, SCORES, TENSORS, holds_verdicts, is_exact, must_hold, unlike
from ddp_tokens.archive.recorded import RecordedVerdict

IDENTICAL, WITHIN, DIFFERS, MISSING, ADDED = "identical", "within tolerance", "differs", "missing", "added"
STATES = (IDENTICAL, WITHIN, DIFFERS, MISSING, ADDED)
DRAWN = (".png", ".svg", ".pdf")  # from what is compared itself
FOLLOWING = (".json", ".jsonl")  # may hold digests of other files
NOT_HELD = "the archive holds only its digest"


@dataclass(frozen=True)
class Sides:
    """Path below the project -> SHA-256, archived and rebuilt: of all that an archive holds, and one of it would.

    `omitted`: what the archive holds no more of than the digest.
    """

    archived: Mapping[str, str]
    rebuilt: Mapping[str, str]
    omitted: frozenset[str] = frozenset()

    @property
    def differing(self) -> list[str]:
        return [name for name in self.archived if self.rebuilt.get(name, self.archived[name]) != self.archived[name]]


@dataclass(frozen=True)
class Compared:
    """A file. `why`: how it differs, where it does."""

    name: str
    state: str
    why: str | None = None

    @property
    def is_kept(self) -> bool:
        """Not where only one side has it, or it differs although no machine makes such a difference there.

        Of a digest alone nobody can tell whether rounding is all that differs.
        """
        if self.state == DIFFERS:
            return not is_exact(self.name) if self.why == NOT_HELD else not must_hold(self.name)
        return self.state in (IDENTICAL, WITHIN)


def compare_files(sides: Sides, archive: Path, project: Path) -> list[Compared]:
    """`archive`: a folder with the archived files that differ and are held; `project`: with the rebuilt ones.

    A digest in a file may differ when that of which it is does, and is within tolerance: so what holds digests is
    looked at again until nothing changes.
    """
    whys: dict[str, str | None] = {name: NOT_HELD for name in sides.differing if name in sides.omitted}
    alike = {name for name in sides.archived if sides.rebuilt.get(name) == sides.archived[name]}
    owners = _owners(sides.archived)
    owned = set(sides.rebuilt.values())

    def follows(archived: str, rebuilt: str) -> bool:
        if archived not in owners and rebuilt not in owned:
            return True  # of something in memory; what there is of it on disk is compared by itself
        return any(sides.rebuilt.get(name) == rebuilt and name in alike for name in owners.get(archived, ()))

    waiting = [name for name in sides.differing if name not in sides.omitted]
    while waiting:
        whys |= {name: unlike(name, archive / name, project / name, follows) for name in waiting}
        found = {name for name in waiting if whys[name] is None}
        alike |= found
        waiting = [name for name in waiting if found and name not in found and _may_follow(name)]
    return [_compared(name, sides, whys) for name in sorted({*sides.archived, *sides.rebuilt})]


def _owners(digests: Mapping[str, str]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for name, digest in digests.items():
        owners.setdefault(digest, []).append(name)
    return owners


def _may_follow(name: str) -> bool:
    return name.endswith(FOLLOWING) and not holds_verdicts(name) and not is_exact(name)


def _compared(name: str, sides: Sides, whys: Mapping[str, str | None]) -> Compared:
    if name not in sides.rebuilt:
        return Compared(name, MISSING)
    if name not in sides.archived:
        return Compared(name, ADDED)
    if name not in whys:
        return Compared(name, IDENTICAL)
    return Compared(name, WITHIN if whys[name] is None else DIFFERS, whys[name])


def compare_verdicts(archived: Iterable[RecordedVerdict], rebuilt: Iterable[RecordedVerdict]) -> list[dict[str, Any]]:
    """Each case that one of them judges. `problem`: None where it is as archived and as expected."""
    first, second = ({(verdict.check, verdict.case): verdict for verdict in side} for side in (archived, rebuilt))
    return [
        {
            "check": key[0],
            "case": key[1],
            "archived": concluded(first[key]) if key in first else None,
            "rebuilt": concluded(second[key]) if key in second else None,
            "problem": _problem(first.get(key), second.get(key)),
        }
        for key in dict.fromkeys((*first, *second))
    ]


def _problem(archived: RecordedVerdict | None, rebuilt: RecordedVerdict | None) -> str | None:
    if rebuilt is None:
        return "was not reached again"
    if archived is None:
        return "is not in the archive"
    if concluded(archived) != concluded(rebuilt):
        return f"was {_told(archived)}, rebuilt {_told(rebuilt)}"
    return f"{rebuilt.problem}, as archived" if rebuilt.problem else None


def _told(verdict: RecordedVerdict) -> str:
    named = f" ({' or '.join(verdict.diagnosis)})" if verdict.diagnosis else ""
    return f"{verdict.outcome}{named}, expected {verdict.expected}"


def document_of(
    experiment: str,
    sides: Sides,
    files: Sequence[Compared],
    verdicts: Sequence[Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What rebuild.json holds. `holds`: whether all that is promised is so; bit-equality is not among it.

    `farther`: files that differ by more than the tolerance, which after many updates another processor may bring about;
    figures last.
    """
    groups = {of.name: group_of(short_name(of.name, experiment)) for of in files}
    digests = [comparison_digest(side) for side in (sides.archived, sides.rebuilt)]
    unkept = [of.name for of in files if not of.is_kept]
    farther = [of.name for of in files if of.is_kept and of.state == DIFFERS]
    problems = [row for row in (*verdicts, *scores) if row["problem"]]
    return {
        "experiment": experiment,
        "archived_digest": digests[0],
        "rebuilt_digest": digests[1],
        "same_results": digests[0] == digests[1],
        "tolerances": {"tensors": TENSORS, "numbers": NUMBERS, "scores": SCORES},
        "folders": [
            {"folder": group} | {state: _count(files, groups, group, state) for state in STATES}
            for group in in_order(groups.values())
        ],
        "files": [{"name": of.name, "state": of.state, "why": of.why} for of in files if of.state != IDENTICAL],
        "verdicts": list(verdicts),
        "scores": list(scores),
        "unkept": unkept,
        "farther": sorted(farther, key=lambda name: name.endswith(DRAWN)),
        "holds": bool(verdicts) and not unkept and not problems,
    }


def _count(files: Iterable[Compared], groups: Mapping[str, str], group: str, state: str) -> int:
    return sum(groups[of.name] == group and of.state == state for of in files)
