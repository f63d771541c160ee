"""Rebuild an archived experiment from its archived source, and compare what comes out with what was archived.

--into names a folder to make: the project is unpacked into it, an environment of its own is installed there from the
project's lock (which needs the network), and the whole chain runs there, controls included where the archive has
them. Nothing stays outside the folder but what pip keeps in its cache, which spares a second download. This runs the
code in the archive: rebuild what you would run.

Exit code 0 when every verdict is as archived and as expected, scores, initial weights, references and gradients are
within tolerance, no file is missing or added, and settings, corpus and plan are identical; 1 when not. After many
updates another processor or another version of a library may change more than that in weights and histories: what then
differs, and by how much, is told, and does not fail by itself.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_tokens.archive.arguments import add_archives
from ddp_tokens.archive.chain import ENVIRONMENT_LOG, LOG, Chain, with_own_environment, with_this_python
from ddp_tokens.archive.collect import OF_CONTROLS, OF_EXPERIMENT
from ddp_tokens.archive.folders import require_buildable, require_new, unpack_project
from ddp_tokens.archive.layout import CONFIG, CONTROLS, results_of
from ddp_tokens.archive.nearness import compare_scores
from ddp_tokens.archive.rebuilt import Sides, compare_files, compare_verdicts, document_of
from ddp_tokens.archive.rebuilt_text import as_text
from ddp_tokens.archive.recorded import Check, Controls, RecordedVerdict, Run, opened
from ddp_tokens.archive.told import shown
from ddp_tokens.build import INTERRUPTED
from ddp_tokens.errors import ArchiveError, EvidenceError
from ddp_tokens.files import read_json, sha256, write_json, write_text
from ddp_tokens.hardware import cores
from ddp_tokens.layout import Layout

ARCHIVED = ".archived"
DOCUMENT = "rebuild.json"
UNCONFIRMED = 1


def main(program: str, arguments: Sequence[str]) -> int:
    asked = _parsed(program, arguments)
    require_buildable(asked.into)
    require_new(asked.into)
    with opened(asked.archive, asked.limit) as run:
        try:
            return rebuild(run, asked.into, asked.cores, asked.use_this_python)
        except KeyboardInterrupt:
            print(
                f"{program}: interrupted; {asked.into} holds what was unpacked and built until now, and {LOG} or "
                f"{ENVIRONMENT_LOG} what was said: delete the folder to start again",
                file=sys.stderr,
            )
            return INTERRUPTED


def _parsed(program: str, arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_archives(parser)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="a folder to make, or an empty one")
    parser.add_argument("--cores", type=_number, default=cores(), help=f"default: all, here {cores()}")
    parser.add_argument(
        "--use-this-python", action="store_true", help="install nothing; use the packages of this Python"
    )
    return parser.parse_args(arguments)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, not {text}")
    return int(text)


def rebuild(run: Run, folder: Path, cores: int, use_this_python: bool) -> int:
    """Into `folder`, which is new. Returns the exit code."""
    _tell(f"unpack {run.archive.path} into {folder}")
    unpack_project(run, folder)
    if use_this_python:
        chain = with_this_python(folder)
    else:
        _tell("install the packages of the archived lock (minutes)")
        chain = with_own_environment(folder)
    problems = chain.build(run.experiment, run.holds_controls, cores, _tell)
    for problem in problems:
        print(f"Snakemake: {shown(problem)}")
    if problems and not Layout(folder / results_of(run.experiment)).plan.exists():
        raise ArchiveError(f"nothing could be built: {shown(problems[0])} ({folder / LOG} has all that was said)")
    _tell("compare with the archive")
    document = compared(run, chain)
    write_json(folder / DOCUMENT, document)
    print(f"\n{as_text(document)}\nwrote {folder / DOCUMENT}")
    return 0 if document["holds"] else UNCONFIRMED


def _tell(stage: str) -> None:
    print(f"  {stage}", flush=True)


def compared(run: Run, chain: Chain) -> dict[str, Any]:
    """What rebuild.json holds. Leaves archived files that differ in .archived, beside the rebuilt ones."""
    folder = chain.folder
    for name in (run.experiment, *([CONTROLS] if run.holds_controls else [])):
        write_text(folder / results_of(name) / CONFIG, chain.settings(name))
    rebuilt = {name: sha256(folder / name) for name in rebuilt_files(run, folder)}
    sides = Sides(run.results, rebuilt, frozenset(run.archive.document.omitted))
    for name in sides.differing:
        if name not in sides.omitted:
            run.archive.extract(folder / ARCHIVED, name)
    files = compare_files(sides, folder / ARCHIVED, folder)
    verdicts = compare_verdicts(run.verdicts(), rebuilt_verdicts(folder, run.experiment))
    scores = compare_scores(run.mapping(_evaluation(run)), _rebuilt_scores(folder / _evaluation(run)))
    return document_of(run.experiment, sides, files, verdicts, scores)


def rebuilt_files(run: Run, folder: Path) -> list[str]:
    """What an archive of what was built again would hold of results, and what else the archive holds of them."""
    parts = [f"{results_of(run.experiment)}/{part}" for part in (*OF_EXPERIMENT, CONFIG)]
    if run.holds_controls:
        parts += [f"{results_of(CONTROLS)}/{part}" for part in (*OF_CONTROLS, CONFIG)]
    below = [path for part in parts for path in (folder / part, *(folder / part).rglob("*"))]
    names = [path.relative_to(folder) for path in (*below, *(folder / name for name in run.results)) if path.is_file()]
    return sorted({str(name) for name in names if not any(part.startswith(".") for part in name.parts)})


def _evaluation(run: Run) -> str:
    return str(Layout(Path(results_of(run.experiment))).evaluation)


def _rebuilt_scores(path: Path) -> Mapping[str, Any]:
    """Empty where there is no such file, or something else in it."""
    try:
        found = read_json(path)
    except EvidenceError:
        return {}
    return found if isinstance(found, dict) else {}


def rebuilt_verdicts(folder: Path, experiment: str) -> list[RecordedVerdict]:
    """Those of all checks and controls that were reached."""
    found: list[RecordedVerdict] = []
    for path in sorted(Layout(folder / results_of(experiment)).check("any").parent.glob("*.json")):
        found += _verdicts(Check, path)
    controls = folder / results_of(CONTROLS) / "controls.json"
    return found + (_verdicts(Controls, controls) if controls.is_file() else [])


def _verdicts(kind: type[Check] | type[Controls], path: Path) -> list[RecordedVerdict]:
    """None where the rebuilt file holds something else."""
    try:
        return list(kind.model_validate(read_json(path)).as_verdicts())
    except (ValidationError, EvidenceError):
        return []
