"""README.md and CHECKLIST.md of an archive: every statement is filled in from what the archive holds."""

import csv
import io
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddp_tokens.archive.contents import Contents, content_of, json_of
from ddp_tokens.archive.crate import describe, licences_of
from ddp_tokens.archive.entries import GIB, MIB
from ddp_tokens.archive.layout import (
    CONTROLS,
    ENVIRONMENT,
    IMPORTED,
    INPUTS,
    PROVENANCE,
    RESULTS,
    SCALING,
    SOURCE,
    WALL_TIMES,
    Document,
    results_of,
)
from ddp_tokens.checks.evaluation import PERPLEXITY, SPLITS
from ddp_tokens.config import Experiment, OwnImages, OwnRows
from ddp_tokens.report import TEMPLATES
from ddp_tokens.summary import headline, unexpected

NOT_RECORDED = "not recorded"
SHOWN_VERSIONS = ("python", "torch", "numpy", "safetensors")


def readme(contents: Contents, document: Document, experiment: Experiment) -> str:
    return _render("archive_readme.md", document, experiment, _facts(contents, document, experiment))


def checklist(contents: Contents, document: Document, experiment: Experiment, citation: Mapping[str, Any]) -> str:
    of_run = _of_run(contents, document, experiment, citation)
    return _render("archive_checklist.md", document, experiment, _facts(contents, document, experiment) | of_run)


def source_text(source: Mapping[str, Any]) -> str:
    """Which commit, and whether it is that alone."""
    if source["commit"] is None:
        return "commit not known, since git could not be asked"
    if source["dirty"]:
        return f"commit {source['commit']} with uncommitted changes, which `source.diff` and archive.json show"
    return f"commit {source['commit']}, unchanged"


def time_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def _facts(contents: Contents, document: Document, experiment: Experiment) -> dict[str, Any]:
    summary = json_of(contents, f"{results_of(document.experiment)}/summary.json")
    machine = json_of(contents, ENVIRONMENT)["machine"]
    times = wall_times(contents)
    return {
        "description": describe(document),
        "headline": headline(summary),
        "problems": unexpected(summary),
        "trained_anyway": summary["trained_anyway"],
        "windows": windows_compared(summary),
        "controls": json_of(contents, f"{RESULTS}/{CONTROLS}/controls.json")["headline"],
        "tolerances": experiment.tolerances,
        "minutes": time_text(sum(float(row["seconds"]) for row in times)),
        "processor": machine["cpu"],
        "cores": machine["cores"],
        "python_minor": ".".join(machine["python"].split(".")[:2]),
        "scaling": any(name.startswith(f"{SCALING}/") for name in contents),
        "source": source_text(document.source),
    }


def windows_compared(summary: Mapping[str, Any]) -> int:
    """Of gradient parity, whose cases are FORMULA.DTYPE.WINDOW."""
    of_parity = [verdict for verdict in summary["verdicts"] if verdict["check"] == "gradient_parity"]
    return len({verdict["case"].split(".")[-1] for verdict in of_parity})


def _of_run(
    contents: Contents, document: Document, experiment: Experiment, citation: Mapping[str, Any]
) -> dict[str, Any]:
    machine, times = json_of(contents, ENVIRONMENT)["machine"], wall_times(contents)
    folder = results_of(document.experiment)
    counts = json_of(contents, f"{folder}/corpus/lock.json")["counts"]
    size = sum(_size(contents, name) for name in contents if name.startswith(f"{RESULTS}/"))
    size += sum(of["bytes"] for name, of in document.omitted.items() if name.startswith(f"{RESULTS}/"))
    values = experiment.model_dump(mode="json")
    settings = {name: _inline(values[name]) for name in ("model", "optimizer")}
    return settings | {
        "compared": _compared(contents, folder),
        "licence": " or ".join(licences_of(citation)),
        "data": _data(document, experiment),
        "omitted_note": f", but for {len(document.omitted)} that README.md lists" if document.omitted else "",
        "provenance": len(json_of(contents, PROVENANCE)),
        "disk_mib": round(size / MIB),
        "versions": _versions(contents),
        "tests": _tests(contents),
        "parameters": number_of_values(contents, f"{folder}/initial.safetensors"),
        "rows": "; ".join(f"{split}: {of['rows']:,} rows, {of['supervised']:,} units" for split, of in counts.items()),
        "made": _inline(values["corpus"]),
        "metrics": _metrics(json_of(contents, f"{folder}/evaluation.json")),
        "memory_gib": round(machine["memory_bytes"] / GIB) if machine["memory_bytes"] else "an unknown number of",
        "gpus": "".join(f"; {gpu['name']}" for gpu in machine["gpus"]) or "; no GPU",
        "backend": experiment.resolved_backend,
        "threads": experiment.threads_per_rank,
        "wall_time": _sums(times, "seconds"),
        "cpu_time": _sums(times, "cpu_seconds"),
        "scaling_note": "`machine/scaling/manifest.json` holds what was measured; no speed is claimed beyond it"
        if any(name.startswith(f"{SCALING}/") for name in contents)
        else "not measured, and nothing is claimed",
    }


def _compared(contents: Contents, folder: str) -> str:
    """Whether the archive holds what its verdicts speak of."""
    verdicts = json_of(contents, f"{folder}/summary.json")["verdicts"]
    files = {path for verdict in verdicts for path in verdict["evidence"]}
    missing = sum(path not in contents for path in files)
    of_them = f"all but {missing} of them are" if missing else "all of them are"
    return f"the verdicts compared {len(files)} files; {of_them} included"


def wall_times(contents: Contents) -> list[dict[str, str]]:
    """Rows of wall_times.csv, see collect.wall_times."""
    return list(csv.DictReader(io.StringIO(content_of(contents, WALL_TIMES).decode())))


def number_of_values(contents: Contents, name: str) -> int | None:
    """Of all tensors of a safetensors file, by its header; None where the file was left out."""
    if name not in contents:
        return None
    with _opened(contents[name]) as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    shapes = [of["shape"] for tensor, of in header.items() if tensor != "__metadata__"]
    return sum(map(math.prod, shapes))


def _opened(source: bytes | Path) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")


def _size(contents: Contents, name: str) -> int:
    source = contents[name]
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _data(document: Document, experiment: Experiment) -> str:
    rows = f"`{results_of(document.experiment)}/corpus/` (rows and their lock)"
    if not isinstance(experiment.corpus, OwnRows | OwnImages):
        return f"{rows}; made from the seed, nothing is downloaded"
    own = f"{INPUTS}/{experiment.corpus.path.lstrip('/')}"
    left_out = [name for name in document.omitted if PurePosixPath(name).is_relative_to(own)]
    where = f"not included ({len(left_out)} files, see README.md)" if left_out else f"`{INPUTS}/` or `{SOURCE}/`"
    return f"{rows}; read from {experiment.corpus.path}: {where}"


def _versions(contents: Contents) -> str:
    if IMPORTED not in contents:
        return NOT_RECORDED
    imported = json_of(contents, IMPORTED)
    named = ", ".join(f"{name} {imported[name]}" for name in SHOWN_VERSIONS if name in imported)
    return f"{named}, and {len(imported)} in all in `{IMPORTED}`"


def _tests(contents: Contents) -> str:
    number = sum(name.startswith(f"{SOURCE}/tests/") and name.endswith(".py") for name in contents)
    return f"`source/tests/`, {number} files; `make test`" if number else "no"


def _metrics(evaluation: Mapping[str, Any]) -> str:
    scored = {split: evaluation[split] for split in SPLITS if split in evaluation}
    return "; ".join(
        f"{split}: loss {of['loss']:.5f} per {of['loss_unit']} and accuracy {of['accuracy']:.4f} per {of['unit']}"
        if "loss_unit" in of
        else f"{split}: loss {of['loss']:.5f} and accuracy {of['accuracy']:.4f} per {of['unit']}"
        + (f", perplexity {of[PERPLEXITY]:.4f}" if PERPLEXITY in of else "")
        + f", over {of['units']:,} {of['unit']}s of {of['rows']:,} rows"
        for split, of in scored.items()
    )


def _sums(times: list[dict[str, str]], column: str) -> str:
    """Per experiment: rules run side by side, so that their sum is more than the time that passes."""
    known = [row for row in times if _is_number(row[column])]
    names = dict.fromkeys(row["experiment"] for row in known)
    sums = {name: sum(float(row[column]) for row in known if row["experiment"] == name) for name in names}
    return "; ".join(f"{name}: {time_text(sums[name])} in all rules" for name in names) or NOT_RECORDED


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _inline(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _render(page: str, document: Document, experiment: Experiment, facts: Mapping[str, Any]) -> str:
    settings = {name: getattr(experiment, name) for name in type(experiment).model_fields}
    return _templates().get_template(page).render({**settings, **facts, "document": document}) + "\n"


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
