"""Every verdict of an archive computed again, from the files that it was reached on. No torch.

`folder`: where results/ of the archive was unpacked. Somebody else may have made what is in it: whatever is wrong with
it is a problem that is told, and what the files say of themselves is not believed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ddp_tokens.archive.differing import differences
from ddp_tokens.archive.layout import CONFIG, CONTROLS, results_of
from ddp_tokens.archive.plain import read_plain_yaml
from ddp_tokens.archive.told import more, plural
from ddp_tokens.checks.verdict import Verdict, read_verdicts
from ddp_tokens.config import Experiment
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.controls import table as controls_table
from ddp_tokens.errors import ConfigError, UserError
from ddp_tokens.files import read_json, to_json
from ddp_tokens.judging import JUDGES
from ddp_tokens.layout import Layout
from ddp_tokens.published import compare_with_published
from ddp_tokens.summary import read_checks, summarize, table, unexpected

MOST_DIFFERENCES = 5
MOST_RANKS = 10_000  # a check may go through them one by one before it misses their files


@dataclass
class Judgement:
    """Of one check, of the controls, or of what sums them up. `told`: what was found, in one line.

    `verdicts`: as they are now. `only_reread`: some of what it was reached on is not in the archive.
    """

    name: str
    told: str = ""
    problems: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    only_reread: bool = False


@dataclass(frozen=True)
class _Archive:
    sha256: Mapping[str, str]
    omitted: frozenset[str]


def rejudge(folder: Path, experiment: str, sha256: Mapping[str, str], omitted: Iterable[str]) -> list[Judgement]:
    """`sha256`: path -> digest, of all files of the archive and of those that were left out of it, `omitted`."""
    archive = _Archive(sha256, frozenset(omitted))
    with chdir(folder):
        at = Layout(Path(results_of(experiment)))
        settings = Judgement(str(at.root / CONFIG))
        configs: list[Experiment] = []
        _tell_errors(settings, lambda: configs.append(settings_of(at.root, experiment)))
        if not configs:
            return [settings]
        judged = [_of_check(name, configs[0], at, archive) for name in JUDGES]
        judged.append(_of_summary(configs[0], at, judged))
        if any(path.startswith(f"{results_of(CONTROLS)}/") for path in sha256):
            judged.append(_of_controls(Layout(Path(results_of(CONTROLS))), archive))
        return judged


def _tell_errors(judgement: Judgement, compute: Callable[[], None]) -> None:
    """As a problem. The files are whole, and not necessarily what a check expects: it may then end with any error."""
    try:
        compute()
    except (UserError, OSError) as error:
        judgement.problems.append(f"cannot be computed again: {error}")
    except Exception as error:
        judgement.problems.append(f"cannot be computed again: {type(error).__name__} ({_short(str(error))})")


def settings_of(root: Path, name: str) -> Experiment:
    """Raises ConfigError, also where reading the file would lead out of the archive or fill the memory."""
    path = root / CONFIG
    values = read_plain_yaml(path)
    if "base" in values:
        raise ConfigError(f"{path} leads to another file: field 'base' is not for archives")
    if values.get("name", name) != name:
        raise ConfigError(f"{path}: field 'name' is {values['name']!r}, not {name}")
    experiment = load_experiment(path, {"name": name}, is_archived=True)
    if experiment.world_size > MOST_RANKS:
        raise ConfigError(f"{path}: field 'world_size' is {experiment.world_size}, of which no archive holds files")
    return experiment


def _of_check(name: str, experiment: Experiment, at: Layout, archive: _Archive) -> Judgement:
    judgement, path = Judgement(name), at.check(name)

    def judge() -> None:
        document, judgement.verdicts = read_json(path), _well_formed(read_verdicts(path)[1])
        missing = archive.omitted & {name for verdict in judgement.verdicts for name in verdict.evidence}
        if missing:
            _reread(judgement, archive, sorted(missing))
            return
        judgement.verdicts = JUDGES[name](experiment, at)
        recomputed = {"check": name, "verdicts": [asdict(verdict) for verdict in judgement.verdicts]}
        _compare(judgement, document, recomputed)

    _tell_errors(judgement, judge)
    return judgement


def _of_controls(at: Layout, archive: _Archive) -> Judgement:
    judgement, path = Judgement(CONTROLS), at.root / "controls.json"

    def judge() -> None:
        document, archived = read_json(path), controls_table.read_judged(path)
        judgement.verdicts = _well_formed([one.verdict for one in archived])
        _same_text(judgement, at.root / "controls.csv", controls_table.csv(archived))
        missing = sorted(path for path in archive.omitted if path.startswith(f"{at.root}/"))
        if missing:
            _reread(judgement, archive, missing)
            return
        found = controls_table.judge_all(settings_of(at.root, CONTROLS), at)
        judgement.verdicts = [one.verdict for one in found]
        _compare(judgement, document, controls_table.document(found))

    _tell_errors(judgement, judge)
    return judgement


def _well_formed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Raises ValueError where a field is of another type, as that of a file that was not written here may be."""
    return TypeAdapter(list[Verdict]).validate_python([asdict(verdict) for verdict in verdicts])


def _of_summary(experiment: Experiment, at: Layout, judged: Sequence[Judgement]) -> Judgement:
    """From the verdicts as the archive states them: each of those is compared by itself."""
    judgement = Judgement("summary")
    present = sorted(path.stem for path in at.check("any").parent.glob("*.json"))
    judgement.problems += [f"{name} is no check that is known here" for name in present if name not in JUDGES]

    def summarize_again() -> None:
        checks, evaluation = read_checks(at.check(name) for name in JUDGES), read_json(at.evaluation)
        published = [asdict(row) for row in compare_with_published(experiment, checks, evaluation)]
        summary = summarize(experiment, checks, evaluation, published)
        judgement.problems += _first(differences(read_json(at.summary), _as_read(summary), "summary.json"))
        _same_text(judgement, at.summary.with_suffix(".csv"), table(checks))

    _tell_errors(judgement, summarize_again)
    number = sum(len(of_check.verdicts) for of_check in judged)
    judgement.told = f"summary.json and summary.csv hold these {number} verdicts"
    return judgement


def unexpected_in(judgements: Sequence[Judgement]) -> list[str]:
    """A phrase for each verdict, as it is now, that is not as expected, and for each check without any."""
    checks = {of.name: of.verdicts for of in judgements if of.name in JUDGES or of.name == CONTROLS}
    verdicts = [
        {"check": name, "case": verdict.case, "problem": verdict.problem, "diagnosis": verdict.diagnosis}
        for name, of_check in checks.items()
        for verdict in of_check
    ]
    return unexpected({"checks": {name: len(of_check) for name, of_check in checks.items()}, "verdicts": verdicts})


def _reread(judgement: Judgement, archive: _Archive, missing: Sequence[str]) -> None:
    judgement.only_reread = True
    files = f"{missing[0]}{more(len(missing) - 1)}"
    judgement.told = f"{plural(len(judgement.verdicts), 'verdict')}, only reread: {files} was left out as too large"
    for verdict in judgement.verdicts:
        for path, digest in verdict.evidence.items():
            stated = archive.sha256.get(path, "missing")
            if stated != digest:
                judgement.problems.append(f"{verdict.case}: evidence.{path} is {digest}, the archive's is {stated}")


def _compare(judgement: Judgement, document: Any, recomputed: Mapping[str, Any]) -> None:
    """Differences in a verdict are named by its case, as it was computed again."""
    judgement.told = f"{plural(len(judgement.verdicts), 'verdict')}, computed again, as stated"
    found = _as_read(recomputed)
    stated = document.get("verdicts") if isinstance(document, dict) else None
    if isinstance(stated, list) and len(stated) == len(found["verdicts"]):
        for verdict, *pair in zip(judgement.verdicts, stated, found["verdicts"], strict=True):
            judgement.problems += [f"{verdict.case}: {difference}" for difference in _first(differences(*pair))]
        document, found = document | {"verdicts": []}, found | {"verdicts": []}
    judgement.problems += _first(differences(document, found))


def _same_text(judgement: Judgement, path: Path, text: str) -> None:
    if path.read_bytes() != text.encode():
        judgement.problems.append(f"{path.name} is not the table of these verdicts")


def _first(found: Iterable[str]) -> list[str]:
    every = sorted(found, key=lambda text: not text.startswith("outcome"))
    others = more(len(every) - MOST_DIFFERENCES, "{} more differences")
    return every[:MOST_DIFFERENCES] + [others] * bool(others)


def _as_read(document: Mapping[str, Any]) -> Any:
    return json.loads(to_json(document))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}..."
