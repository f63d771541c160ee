"""What an audit found, for a program and for a person. The same on every rank."""

import logging
import math
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddp_tokens.audit.meanings import meaning_of
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS
from ddp_tokens.errors import AuditError
from ddp_tokens.files import write_json

LOGGER = logging.getLogger(__name__)
WIDTH = 100


class Report:
    """`windows`: a JSON value each, with `window`, `verdict`, `seen`, `notes` and `seconds`."""

    def __init__(self, watch: Callable[[Any], Any], asked: int) -> None:
        self.windows: list[dict[str, Any]] = []
        self.is_main = True
        self._watch = watch
        self._asked = asked

    def watch(self, loader: Any) -> Any:
        """The same loader, which now says what it gives: where labels are no input of the module. A DataLoader stays
        what it is; of anything else, watch what the loop goes through, batch by batch.
        """
        return self._watch(loader)

    @property
    def outcome(self) -> str:
        """fail where a window fails; pass where one passes and none fails; else inconclusive."""
        outcomes = [window["verdict"]["outcome"] for window in self.windows]
        return FAIL if FAIL in outcomes else PASS if PASS in outcomes else INCONCLUSIVE

    @property
    def sentence(self) -> str:
        if not self.windows:
            return "inconclusive: no window was audited"
        telling = next(one for one in self.windows if one["verdict"]["outcome"] == self.outcome)
        verdict, number = telling["verdict"], telling["window"]
        if self.outcome == PASS:
            passed = sum(one["verdict"]["outcome"] == PASS for one in self.windows)
            of_all = f"{passed} of {len(self.windows)} windows"
            if telling["seen"]["world_size"] == 1:
                of_all += ", on one rank, which says nothing of how ranks are weighed"
            return f"pass{self._noted()}: the gradient is that of the mean over all supervised units ({of_all})"
        if self.outcome == INCONCLUSIVE:
            return f"inconclusive: window {number}: {verdict['criterion'].split('; ', 1)[-1]}"
        parameter = verdict["observed"]["parameter"]
        where = f"window {number}, parameter {parameter}" if parameter else f"window {number}"
        what = f"{_size(verdict)} in {where}"
        if _ratio(verdict) <= 1:
            what = f"the gradient is within its tolerance, and yet in window {number}"
        named = " or ".join(verdict["diagnosis"]) or "no known mistake explains it"
        meaning = meaning_of(verdict["diagnosis"])
        return f"fail: {what}: {named}{f' ({meaning})' if meaning else ''}"

    def _noted(self) -> str:
        """What is noted says what a pass does not cover, or leaves out."""
        number = len({note for window in self.windows for note in window["notes"]})
        return "" if number == 0 else ", with 1 note" if number == 1 else f", with {number} notes"

    def document(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "sentence": self.sentence,
            "world_size": self.windows[0]["seen"]["world_size"] if self.windows else None,
            "windows": self.windows,
        }

    def text(self) -> str:
        """For a person: lines of up to WIDTH columns, but for longer words."""
        lines = [self.sentence]
        for one in self.windows:
            lines += ["", *_told(one)]
        if len(self.windows) < self._asked:
            lines += ["", f"{len(self.windows)} of {self._asked} windows were audited: the loop made no more updates"]
        return "\n".join(map(_wrapped, lines))

    def save(self, path: Path | str) -> None:
        """document() as JSON, by rank 0."""
        if self.is_main:
            write_json(path, self.document())

    def raise_if_wrong(self) -> None:
        """Raises AuditError, on every rank, where a window fails; a log message warns where nothing could be judged."""
        if self.outcome == FAIL:
            raise AuditError(f"the gradient that the optimizer applies is not that of the objective: {self.sentence}")
        if self.outcome == INCONCLUSIVE and self.is_main:
            LOGGER.warning("the audit is %s", self.sentence)


def _ratio(verdict: Mapping[str, Any]) -> float:
    """The error in tolerances; infinite where there is no such number."""
    error, tolerance = verdict["observed"]["error"], verdict["observed"]["tolerance"]
    return error / tolerance if isinstance(error, float) and tolerance else math.inf


def _size(verdict: Mapping[str, Any]) -> str:
    ratio = _ratio(verdict)
    if math.isfinite(ratio):
        return f"the gradient is off by {f'{ratio:,.0f}' if ratio >= 100 else f'{ratio:.3g}'} tolerances"
    is_finite = not isinstance(verdict["observed"]["error"], str)
    return "the gradient is another one" if is_finite else "the gradient is not finite"


def _wrapped(line: str) -> str:
    """What continues a line stands further in."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return "\n".join(
        textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    )


def _told(one: Mapping[str, Any]) -> list[str]:
    verdict, seen, seconds = one["verdict"], one["seen"], one["seconds"]
    observed = verdict["observed"]
    lines = [
        f"window {one['window']}: {verdict['outcome']}",
        f"  ranks {seen['world_size']}, microbatches per rank {_list(seen['microbatches'])}",
        f"  supervised units per rank and microbatch {_list(seen['units'])}{_of_positions(seen)}",
        f"  collectives in each microbatch's backward {_list(seen['collectives'])}",
    ]
    if isinstance(observed["error"], float) and observed["tolerance"] is not None:
        lines.append(
            f"  error {observed['error']:.3g}, tolerance {observed['tolerance']:.3g}, in parameter "
            f"{observed['parameter']}"
        )
    if observed["power"] is not None:
        power = observed["power"] if isinstance(observed["power"], str) else f"{observed['power']:,.0f}"
        lines.append(f"  the nearest wrong formula, {observed['nearest_formula']}, would be {power} tolerances away")
    if verdict["diagnosis"]:
        residual = f", residual {observed['residual']:.2g}" if isinstance(observed.get("residual"), float) else ""
        meaning = meaning_of(verdict["diagnosis"])
        lines.append(f"  it is {' or '.join(verdict['diagnosis'])}{residual}{f': {meaning}' if meaning else ''}")
    lines.append(f"  judged by: {verdict['criterion']}")
    lines += [f"  note: {note}" for note in one["notes"]]
    lines.append(f"  the window took {seconds['window']:.2f} s, its audit {seconds['audit']:.2f} s")
    return lines


def _of_positions(seen: Mapping[str, Any]) -> str:
    """Where some positions have a label that does not count, or are padding."""
    total = sum(map(sum, seen["positions"]))
    return f", of {total:,} positions with padding" if total > sum(map(sum, seen["units"])) else ""


def _list(values: Any) -> str:
    return str(values).replace("None", "none")
