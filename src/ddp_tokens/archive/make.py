"""Make results/archive/EXP.zip from what was built.

The same results give the same bytes, apart from machine/, the pages that tell of the machine, and SHA256SUMS.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ddp_tokens.archive.collect import Files, machine_files, own_inputs, result_files
from ddp_tokens.archive.contents import Contents, json_of
from ddp_tokens.archive.crate import crate_metadata
from ddp_tokens.archive.entries import LARGEST_READ, MIB, READ_WHOLE
from ddp_tokens.archive.layout import (
    CRATE,
    DIFFERENCE,
    DOCUMENT,
    MACHINE,
    PROVENANCE,
    SOURCE,
    SUMS,
    Document,
    comparison_digest,
    results_of,
    sums,
)
from ddp_tokens.archive.names import problem_of
from ddp_tokens.archive.own_workload import workload_inputs
from ddp_tokens.archive.pages import pages
from ddp_tokens.archive.provenance import RECORDS
from ddp_tokens.archive.source import SourceState, source_state
from ddp_tokens.archive.told import shown
from ddp_tokens.archive.writing import write_zip
from ddp_tokens.config import Experiment
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import sha256, sha256_of_bytes, to_json

TOLD_BY_HAND = "made by hand"
READ_BY_PAGES = ("summary.json", "evaluation.json", "lock.json", "controls.json", "controls.png", "controls.svg")
CITED = ("license", "authors", "date-released")
CITATION, LICENCE = "CITATION.cff", "LICENSE"


@dataclass(frozen=True)
class Project:
    """`root`: with CITATION.cff, LICENSE and .snakemake. `results`: its results folder."""

    root: Path
    results: Path


def make_archive(
    path: Path, project: Project, experiment: Experiment, controls: Experiment, limit_mib: int
) -> Document:
    """Raises ArchiveError when something that belongs into it is missing."""
    citation = _citation(project.root)
    state = source_state(project.root)
    compared = result_files(project.results, experiment, controls)
    machine = machine_files(project.results, experiment, project.root / RECORDS, compared)
    inside, outside = own_inputs(experiment, state.files)
    of_work, work_outside = workload_inputs(experiment, state.files)
    contents = compared | machine | inside | of_work | _source(project.root, state)
    contents |= {name: project.root / name for name in (CITATION, LICENCE)}
    omitted = _too_large(contents, limit_mib) | _elsewhere(outside | work_outside)
    document = Document(
        experiment=experiment.name,
        comparison_digest=comparison_digest({name: _sha256(compared, name) for name in compared}),
        as_expected=json_of(compared, f"{results_of(experiment.name)}/summary.json")["as_expected"],
        version=_version(project.root),
        source={"commit": state.commit, "date": state.date, "dirty": state.dirty, "untracked": list(state.untracked)},
        omitted=omitted,
    )
    kept = {name: source for name, source in contents.items() if name not in omitted}
    _require_readable(kept)
    write_zip(path, _with_pages(kept, document, experiment, citation))
    return document


def _with_pages(contents: Files, document: Document, experiment: Experiment, citation: Mapping[str, Any]) -> Contents:
    whole: Files = {**contents, DOCUMENT: to_json(document.as_json()).encode()}
    whole |= pages(contents, document, experiment, citation)
    whole[CRATE] = crate_metadata([*whole, SUMS], document, citation).encode()
    whole[SUMS] = sums({name: _sha256(whole, name) for name in whole}).encode()
    return whole


def _source(root: Path, state: SourceState) -> Files:
    files: Files = {f"{SOURCE}/{name}": root / name for name in state.files}
    return files | ({DIFFERENCE: state.difference} if state.difference else {})


def _too_large(contents: Files, limit_mib: int) -> dict[str, dict[str, Any]]:
    """Path -> bytes, digest and the rule that makes it. Nothing is too large that a page is made from."""
    rules = {output: of["rule"] for output, of in json_of(contents, PROVENANCE).items()}
    large = {
        name: path
        for name, path in contents.items()
        if isinstance(path, Path) and path.stat().st_size > _limit(name, limit_mib) and not _is_read_by_pages(name)
    }
    return {
        name: {"bytes": path.stat().st_size, "sha256": sha256(path), "made_by": _made_by(name, rules)}
        for name, path in sorted(large.items())
    }


def _limit(name: str, limit_mib: int) -> int:
    """In bytes: who reads an archive parses some kinds of files as a whole, and refuses what would fill the memory."""
    return min(limit_mib * MIB, LARGEST_READ) if name.endswith(READ_WHOLE) else limit_mib * MIB


def _is_read_by_pages(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parts[0] == MACHINE or path.name in READ_BY_PAGES or path.parent.name == "figures"


def _require_readable(contents: Files) -> None:
    """Raises ArchiveError for what nobody could read again, see entries and names."""
    for name, source in contents.items():
        problem = problem_of(name)
        if problem:
            raise ArchiveError(f"{shown(name)} {problem}, so that no archive can hold it: give the file another name")
        if isinstance(source, Path) and source.stat().st_size > LARGEST_READ and name.endswith(READ_WHOLE):
            raise ArchiveError(
                f"{source} is larger than {LARGEST_READ // MIB} MiB, and pages are made from it: no archive can hold it"
            )


def _made_by(name: str, rules: Mapping[str, str]) -> str:
    outputs = [name, *(str(parent) for parent in Path(name).parents)]
    rule = next((rules[output] for output in outputs if output in rules), None)
    return f"Snakemake's rule {rule}, in a rebuild" if rule else TOLD_BY_HAND


def _elsewhere(outside: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    return {
        name: {"bytes": path.stat().st_size, "sha256": sha256(path), "made_by": f"yours: it must lie at {path}"}
        for name, path in outside.items()
    }


def _sha256(contents: Contents, name: str) -> str:
    source = contents[name]
    return sha256_of_bytes(source) if isinstance(source, bytes) else sha256(source)


def _citation(root: Path) -> Mapping[str, Any]:
    for name in (CITATION, LICENCE):
        if not (root / name).is_file():
            raise ArchiveError(
                f"{root / name} is missing: an archive must say how to cite it and what may be done with it"
            )
    try:
        citation: Mapping[str, Any] = yaml.safe_load((root / CITATION).read_text())
    except yaml.YAMLError as error:
        raise ArchiveError(f"{root / CITATION} is no valid YAML: {' '.join(str(error).split())}") from None
    lacking = [name for name in CITED if not citation.get(name)]
    if lacking:
        raise ArchiveError(f"{root / CITATION} has no {' and no '.join(lacking)}: an archive must state them")
    return citation


def _version(root: Path) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
