"""Which files of an experiment go into its archive, and under which names."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ddp_tokens.acquire import source_files_of
from ddp_tokens.archive.layout import (
    CONFIG,
    CONTROLS,
    ENVIRONMENT,
    IMPORTED,
    INPUTS,
    PROVENANCE,
    RESULTS,
    SCALING,
    WALL_TIMES,
    results_of,
)
from ddp_tokens.archive.own_workload import require_rebuildable
from ddp_tokens.archive.provenance import provenance
from ddp_tokens.config import Experiment, OwnImages, OwnRows
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import read_json, to_json
from ddp_tokens.imported import imported_file
from ddp_tokens.layout import RUNS, Layout
from ddp_tokens.report import settings_yaml

OF_EXPERIMENT = (
    *("corpus", "plan.json", "initial.safetensors", "reference", "gradients", "window", "zero_window"),
    *(f"runs/{run}" for run in RUNS),
    *("checks", "evaluation.json", "figures", "summary.csv", "summary.json"),
)
OF_CONTROLS = (
    *("cases", "trained", "ranks", "controls.csv", "controls.json"),
    *("controls.png", "controls.svg", "controls.pdf"),
)
NOT_OF_SCALING = ("ranks",)  # weights, to be thrown away
OF_THIS_HOST = ("host", "pid", "uuid")
TRAINED = "continuous"
OWN_BENCHMARK = "pack.tsv"  # of an earlier archive: this one cannot know its own
Files = dict[str, bytes | Path]


def result_files(results: Path, experiment: Experiment, controls: Experiment) -> Files:
    """What the comparison digest covers: of the experiment and of the controls, with all settings of both.

    Raises ArchiveError for what is missing.
    """
    found: Files = {}
    for of, parts in ((experiment, OF_EXPERIMENT), (controls, OF_CONTROLS)):
        folder = results / of.name
        for part in parts:
            files = list(_below(folder / part))
            if not files:
                raise ArchiveError(f"{folder / part} is missing: build {RESULTS}/archive/{experiment.name}.zip again")
            found |= {f"{results_of(of.name)}/{path.relative_to(folder)}": path for path in files}
        found[f"{results_of(of.name)}/{CONFIG}"] = config_file(of).encode()
    return found


def config_file(experiment: Experiment) -> str:
    """All settings, as a file from which the same experiment is read: there, `steps` must follow from `epochs`."""
    given = experiment if experiment.epochs is None else experiment.model_copy()
    if given is not experiment:
        del given.__dict__["steps"]
    return settings_yaml(given)


def machine_files(results: Path, experiment: Experiment, records: Path, names: Iterable[str]) -> Files:
    """What differs each time. `records`: Snakemake's, see provenance. `names`: of the files that it is told for."""
    at = Layout(results / experiment.name)
    folders = [results / name for name in (experiment.name, CONTROLS)]
    imported = imported_file(at.rank_logs(TRAINED))
    found: Files = {
        ENVIRONMENT: to_json(without_host(read_json(at.environment))).encode(),
        WALL_TIMES: wall_times(folders).encode(),
        PROVENANCE: to_json(provenance(records, names)).encode(),
    }
    if imported.is_file():  # logs may have been cleaned up
        found[IMPORTED] = imported
    if (at.scaling / "manifest.json").is_file():
        files = [path for path in _below(at.scaling) if path.relative_to(at.scaling).parts[0] not in NOT_OF_SCALING]
        found |= {f"{SCALING}/{path.relative_to(at.scaling)}": path for path in files}
    return found


def without_host(value: Any) -> Any:
    """A JSON value without names of hosts and processes: a machine is told by what it has."""
    if isinstance(value, dict):
        return {name: without_host(held) for name, held in value.items() if name not in OF_THIS_HOST}
    return [without_host(held) for held in value] if isinstance(value, list) else value


def wall_times(folders: Iterable[Path]) -> str:
    """CSV, a row for each rule, from Snakemake's benchmarks: seconds by the clock and of CPU, and the most memory."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("experiment", "rule", "seconds", "cpu_seconds", "max_rss_mib"))
    for folder in folders:
        for path in sorted(set((folder / "benchmarks").glob("*.tsv")) - {folder / "benchmarks" / OWN_BENCHMARK}):
            with open(path, newline="") as stream:
                rows = list(csv.DictReader(stream, delimiter="\t"))
            for row in rows:
                writer.writerow((folder.name, path.stem, row["s"], row["cpu_time"], row["max_rss"]))
    return table.getvalue()


def require_archivable(experiment: Experiment) -> None:
    """Raises ArchiveError for own data whose path leads out of the folder by `..`, and for such a workload."""
    require_rebuildable(experiment)
    corpus = experiment.corpus
    if isinstance(corpus, OwnRows | OwnImages) and ".." in Path(corpus.path).parts:
        raise ArchiveError(
            f"{experiment.name}: field corpus.path, {corpus.path}, leads out of the project's folder, where a rebuild "
            "would not find it: give the whole path, or put it into the folder"
        )


def own_inputs(experiment: Experiment, source: Iterable[str]) -> tuple[Files, dict[str, Path]]:
    """Own rows or images that the experiment reads and that are no part of the source: those in the project's folder,
    as name in the archive -> file, and those outside it, which a rebuild must find where they were.
    """
    if not isinstance(experiment.corpus, OwnRows | OwnImages):
        return {}, {}
    require_archivable(experiment)
    files, known = source_files_of(experiment.corpus), set(source)
    inside = {str(path): path for path in files if not path.is_absolute()}
    outside = {f"{INPUTS}/{str(path).lstrip('/')}": path for path in files if str(path) not in inside}
    return {f"{INPUTS}/{name}": path for name, path in inside.items() if name not in known}, outside


def _below(path: Path) -> Iterator[Path]:
    """The file, or all files of the folder; what is hidden belongs to Snakemake, or to a run that is not done."""
    if path.is_file():
        yield path
    for file in sorted(path.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield file
