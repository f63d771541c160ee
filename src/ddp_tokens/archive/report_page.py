"""report.html of an archive: one page that needs nothing else, from what the archive holds. No torch.

The first page is for who reads no further: what is claimed, whether it holds, and four questions with their answers.
Links go to files of the archive, and work where it was unpacked.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ddp_tokens.archive import answers, captions
from ddp_tokens.archive.contents import Contents, json_of
from ddp_tokens.archive.documents import wall_times
from ddp_tokens.archive.layout import (
    CONFIG,
    CONTROLS,
    DIFFERENCE,
    ENVIRONMENT,
    IMPORTED,
    PROVENANCE,
    RESULTS,
    SCALING,
    WALL_TIMES,
    Document,
    results_of,
)
from ddp_tokens.archive.told import plural
from ddp_tokens.checks.evaluation import PERPLEXITY, SPLITS
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import Experiment
from ddp_tokens.controls import table
from ddp_tokens.hardware import in_words
from ddp_tokens.report import (
    QUESTIONS,
    SAMPLES_SHOWN,
    highlighted,
    number_made,
    ran_with,
    render,
    score_texts,
    settings_yaml,
)
from ddp_tokens.summary import headline, unexpected

CONTROLS_FILE = f"{RESULTS}/{CONTROLS}/controls.json"
MANIFEST = f"{SCALING}/manifest.json"


def report_page(contents: Contents, document: Document, experiment: Experiment, authors: Sequence[str] = ()) -> str:
    """The same text for the same contents. `experiment`: with its settings resolved, as in results/EXP/config.yaml."""
    folder = results_of(document.experiment)
    summary = json_of(contents, f"{folder}/summary.json")
    checks = answers.checks_of(summary)
    judged = table.judged_in(json_of(contents, CONTROLS_FILE)) if CONTROLS_FILE in contents else []
    unit = unit_of(summary["evaluation"])
    return render(
        "archive",
        document.experiment,
        document=document,
        authors=authors,
        settings=experiment,
        unit=unit,
        headline=headline(summary),
        problems=unexpected(summary),
        trained_anyway=summary["trained_anyway"],
        answers=[
            answers.of_gradient(checks, unit),
            answers.of_resume(checks),
            answers.of_scores(checks, summary["evaluation"]),
            answers.of_controls(judged, table.headline(judged)),
        ],
        difference=DIFFERENCE if DIFFERENCE in contents else None,
        figures=captions.figures(captions.FIGURES, contents, experiment),
        groups=[_group(contents, document, check, verdicts) for check, verdicts in checks.items()],
        scores=_scores(summary, experiment, unit),
        controls=[table.row_of(one) | {"what": one.what, "verdict": one.verdict} for one in judged],
        scaling=_scaling(contents, experiment),
        made=_made(contents, experiment),
        omitted=[_omitted(path, of) for path, of in sorted(document.omitted.items())],
        files=_links(contents, folder),
    )


def unit_of(evaluation: Mapping[str, Any]) -> str:
    """What a supervised one is called."""
    return next((str(evaluation[split]["unit"]) for split in SPLITS if split in evaluation), "unit")


def _group(contents: Contents, document: Document, check: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    path = f"{results_of(document.experiment)}/checks/{check}.json"
    return {
        "name": check,
        "question": QUESTIONS.get(check, ""),
        "verdicts": verdicts,
        "file": path if path in contents else None,
        "compared": {verdict.case: compared(contents, document, verdict) for verdict in verdicts},
    }


def compared(contents: Contents, document: Document, verdict: Verdict) -> list[dict[str, Any]]:
    """The verdict's evidence: path, digest, and `link`, or in `note` why there is none."""
    found = []
    for path, digest in sorted(verdict.evidence.items()):
        entry: dict[str, Any] = {"path": path, "digest": digest, "link": None, "note": ""}
        if path in contents:
            entry["link"] = quote(path)
        elif path in document.omitted:
            entry["note"] = f"left out of the archive, {in_words(document.omitted[path]['bytes'])}"
        else:
            entry["note"] = "not in the archive"
        found.append(entry)
    return found


def _omitted(path: str, of: Mapping[str, Any]) -> dict[str, Any]:
    return {"path": path, "size": in_words(of["bytes"]), "digest": of["sha256"], "made_by": of["made_by"]}


def _scores(summary: Mapping[str, Any], experiment: Experiment, unit: str) -> dict[str, Any]:
    evaluation = summary["evaluation"]
    scored = {split: evaluation[split] for split in SPLITS if split in evaluation}
    before, after = (evaluation.get(name, []) for name in ("samples_at_start", "samples"))
    return {
        "splits": {split: score_texts(score) for split, score in scored.items()},
        "unit": unit,
        "perplexity": any(PERPLEXITY in score for score in scored.values()),
        "written": list(zip(before, after, strict=True)),
        "shown": SAMPLES_SHOWN,
        "grammatical": [number_made(experiment.corpus, texts) for texts in (before, after)],
        "published": summary["published"],
    }


def _scaling(contents: Contents, experiment: Experiment) -> dict[str, Any] | None:
    if MANIFEST not in contents:
        return None
    return {
        "told": json_of(contents, MANIFEST)["lesson_notes"],
        "figures": captions.figures(captions.OF_SCALING, contents, experiment),
        "files": [path for path in sorted(contents) if path.startswith(f"{SCALING}/")],
    }


def _made(contents: Contents, experiment: Experiment) -> dict[str, Any]:
    """Machine, versions, times and settings."""
    return {
        "machine": machine_facts(json_of(contents, ENVIRONMENT)["machine"]),
        "ranks": ran_with(experiment),
        "versions": json_of(contents, IMPORTED) if IMPORTED in contents else None,
        "times": wall_times(contents) if WALL_TIMES in contents else [],
        "settings": highlighted(settings_yaml(experiment)),
    }


def machine_facts(machine: Mapping[str, Any]) -> dict[str, str]:
    torch = machine["torch"]
    gpus = [f"{gpu.get('name', 'not known')}, {_memory(gpu.get('memory_bytes'))}" for gpu in machine["gpus"]]
    return {
        "processor": f"{machine['cpu']}, {plural(machine['cores'], 'core')} for the project",
        "memory": _memory(machine["memory_bytes"]),
        "GPUs": "; ".join(gpus) or "none",
        "system": machine["platform"],
        "Python": machine["python"],
        "torch": f"{captions.torch_version(machine)}, " + (f"CUDA {torch['cuda']}" if torch.get("cuda") else "no CUDA"),
        "NVIDIA driver": machine["driver"] or "none",
    }


def _memory(number: int | None) -> str:
    return "memory not known" if number is None else in_words(number)


def _links(contents: Contents, folder: str) -> dict[str, str]:
    """What the text links to, as far as it is there: path -> what it is."""
    told = {
        f"{folder}/{CONFIG}": "all settings, as YAML",
        f"{folder}/summary.json": "every verdict and score, with all digits",
        f"{folder}/summary.csv": "every verdict, a line each",
        CONTROLS_FILE: "every control, whole verdicts",
        f"{RESULTS}/{CONTROLS}/controls.csv": "every control, a line each",
        f"{RESULTS}/{CONTROLS}/{CONFIG}": "settings of the controls",
        ENVIRONMENT: "the machine",
        IMPORTED: "versions that were imported",
        WALL_TIMES: "times of every rule",
        PROVENANCE: "which rule made which file from what",
    }
    return {path: what for path, what in told.items() if path in contents}
