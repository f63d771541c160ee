"""Two runs side by side, as one plain document. Nothing here reads a file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_tokens.archive.groups import group_of, in_order
from ddp_tokens.archive.recorded import RecordedVerdict
from ddp_tokens.checks.evaluation import PERPLEXITY, SPLITS
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.report import DECIDING
from ddp_tokens.summary import KEY_NUMBERS

Values = Mapping[str, Any]
ACCURACY = "accuracy"
SCORES = ("loss", ACCURACY, PERPLEXITY)
# What is another each time, wherever it stands among the facts of a machine.
VARYING = ("free", "available", "left", "pid", "uuid", "host", "said")
# Of machine.packages: versions stand in imported.json. Of machine.dual and results: where something was tried.
LEFT_ASIDE = ("packages", "dual", "results", "results_refused", "weights_bytes")


@dataclass(frozen=True)
class Side:
    """One of the two. `files`: short name -> SHA-256. `controls`: their headline, None where there are none."""

    name: str
    experiment: str
    comparison_digest: str
    as_expected: bool
    settings: Values = field(default_factory=dict)
    verdicts: Sequence[RecordedVerdict] = ()
    evaluation: Values = field(default_factory=dict)
    controls: str | None = None
    control_verdicts: Sequence[RecordedVerdict] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    machine: Values = field(default_factory=dict)
    imported: Values = field(default_factory=dict)
    source: Values = field(default_factory=dict)


def compare(before: Side, after: Side) -> dict[str, Any]:
    """What compare.json holds. Of what is in one of the two only, `before` or `after` is left out."""
    return {
        "before": _named(before),
        "after": _named(after),
        "same_experiment": before.experiment == after.experiment,
        "same_results": before.comparison_digest == after.comparison_digest,
        "settings": differences(flat(before.settings), flat(after.settings)),
        "verdicts": _verdicts(before.verdicts, after.verdicts),
        "numbers": _numbers(before.verdicts, after.verdicts),
        "scores": scores(before.evaluation, after.evaluation),
        "controls": {
            "before": before.controls,
            "after": after.controls,
            "verdicts": _verdicts(before.control_verdicts, after.control_verdicts),
            "numbers": _numbers(before.control_verdicts, after.control_verdicts),
        },
        "files": _files(before.files, after.files),
        "environment": differences(_environment(before), _environment(after)),
        "source": differences(flat(before.source), flat(after.source)),
    }


def _named(side: Side) -> dict[str, Any]:
    names = ("name", "experiment", "comparison_digest", "as_expected")
    return {name: getattr(side, name) for name in names}


def flat(values: Values, above: str = "") -> dict[str, Any]:
    """optimizer.lr -> 0.1, and gpus.0.name of a list of mappings; other lists are values."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{above}{name}.")
        else:
            flattened[f"{above}{name}"] = value
    return flattened


def differences(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Each name whose values differ, in the order of `before`, then of `after`."""
    found = []
    for name in dict.fromkeys((*before, *after)):
        values = _present(before, after, name)
        if len(values) < 2 or values["before"] != values["after"]:
            found.append({"name": name} | values)
    return found


def _present(before: Any, after: Any, name: Any) -> dict[str, Any]:
    """What each side that knows the name has under it."""
    sides = {"before": before, "after": after}
    return {side: of[name] for side, of in sides.items() if isinstance(of, Mapping) and name in of}


Key = tuple[str, str]  # check and case


def _by_case(verdicts: Iterable[RecordedVerdict]) -> dict[Key, RecordedVerdict]:
    return {(verdict.check, verdict.case): verdict for verdict in verdicts}


def _verdicts(before: Iterable[RecordedVerdict], after: Iterable[RecordedVerdict]) -> list[dict[str, Any]]:
    judged = [{key: concluded(verdict) for key, verdict in _by_case(side).items()} for side in (before, after)]
    return [
        {"check": difference["name"][0], "case": difference["name"][1]} | _without_name(difference)
        for difference in differences(*judged)
    ]


def concluded(verdict: Verdict) -> dict[str, Any]:
    return {"outcome": verdict.outcome, "expected": verdict.expected, "diagnosis": list(verdict.diagnosis)}


def _numbers(before: Iterable[RecordedVerdict], after: Iterable[RecordedVerdict]) -> list[dict[str, Any]]:
    """Of the cases that both judge."""
    first, second = _by_case(before), _by_case(after)
    return [
        {"check": key[0], "case": key[1]} | difference
        for key in first
        if key in second
        for difference in differences(_key_numbers(first[key]), _key_numbers(second[key]))
    ]


def _key_numbers(verdict: RecordedVerdict) -> dict[str, Any]:
    return {name: verdict.observed[name] for name in (*DECIDING, *KEY_NUMBERS) if name in verdict.observed}


def scores(before: Values, after: Values) -> list[dict[str, Any]]:
    """All of two evaluations, whether or not they differ."""
    return [
        {"split": split, "name": score} | values
        for split in SPLITS
        for score in SCORES
        if (values := _present(before.get(split), after.get(split), score))
    ]


def _files(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "identical": [name for name in before if after.get(name) == before[name]],
        "differing": [name for name in before if name in after and after[name] != before[name]],
        "only_before": [name for name in before if name not in after],
        "only_after": [name for name in after if name not in before],
    }
    groups = {kind: [group_of(name) for name in of_kind] for kind, of_kind in names.items()}
    folders = [
        {"folder": folder} | {kind: of_kind.count(folder) for kind, of_kind in groups.items()}
        for folder in in_order(group for of_kind in groups.values() for group in of_kind)
    ]
    return {"folders": folders} | {kind: sorted(names[kind]) for kind in names if kind != "identical"}


def _environment(side: Side) -> dict[str, Any]:
    facts = flat({name: value for name, value in side.machine.items() if name not in LEFT_ASIDE})
    return dict(side.imported) | {name: value for name, value in facts.items() if not _varies(name)}


def _varies(name: str) -> bool:
    return any(word in VARYING for part in name.split(".") for word in part.split("_"))


def _without_name(difference: Values) -> dict[str, Any]:
    return {name: value for name, value in difference.items() if name != "name"}
