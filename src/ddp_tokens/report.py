"""Four pages for a reader who was not there: verdicts, scores, settings, versions.

Each is one HTML file that needs nothing else, with the same bytes for the same inputs.
"""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import YamlLexer

from ddp_tokens.checks.evaluation import PERPLEXITY, SPLITS
from ddp_tokens.checks.meanings import meaning_of
from ddp_tokens.config import Corpus, Experiment, ResNet
from ddp_tokens.corpora import could_make
from ddp_tokens.published import count_text, loss_text, percent_text
from ddp_tokens.steps import dump
from ddp_tokens.summary import KEY_NUMBERS, headline, unexpected

TEMPLATES = Path(__file__).parent / "templates"
PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "snakemake",
    "pydantic",
    "pandas",
    "matplotlib",
    "jinja2",
    "pygments",
    "pillow",
)
SAMPLES_SHOWN = 8
PLACES = ("rank", "step", "parameter", "index")
DECIDING = ("error", "tolerance", "power")
# model.norm -> which statistics are synchronized in training
NORMS = {
    "batch": "BatchNorm: each rank normalizes with the statistics of its own rows; their running means and variances "
    "are taken from rank 0 before each window",
    "sync_batch": "SyncBatchNorm: every rank normalizes with the statistics of the rows of all ranks",
    "group": "GroupNorm: no statistics over rows, so there are none to synchronize",
}
GUARDS = ("loss", "gradient_parity")
QUESTIONS = {
    "loss": "Does the denominator give the mean over all supervised units? On numbers that can be redone by hand.",
    "gradient_parity": "Is the gradient that DDP leaves the gradient of the objective, as one process computes it? "
    "token_mean is the formula in use, mean_of_means the known mistake, as a control. Two windows: the first, and the "
    "one whose ranks differ most in supervised units. An error is the norm of a parameter's difference from the "
    "reference in float64; error and tolerance are those of the parameter named. In float64 only the formula can make "
    "a difference, and the tolerance is a tiny fraction of the parameter's norm; in native, the training dtype, it is "
    "a small multiple of the error that one process makes in the same dtype. power: how many tolerances away the "
    "nearest excluded wrong formula would be on these rows; where that is too few, the outcome is inconclusive. A "
    "failure is named after the wrong formula that leaves the gradient found, and residual is the distance from that, "
    "as a fraction of its norm. values, outside tolerance, max abs error and max rel error compare value by value "
    "with one process in the same dtype, by the published criterion; they are reported beside and decide nothing.",
    "window": "Does a window reduce once, after its last microbatch, and is nothing cleared or moved inside it?",
    "zero_window": "Does every rank refuse a window without a supervised unit, and is nothing changed?",
    "resume": "Is the interrupted and resumed run the uninterrupted one, bit for bit?",
    "replicas": "Do all ranks hold the same parameters after training?",
    "checkpoints": "Is each checkpoint whole, unaltered, and free of executable content?",
    "evaluation": "Are as many rows and supervised units scored as the split holds, whatever the number of ranks, and "
    "is the loss the mean over all units, not a mean of batch means, and perplexity, where units are tokens, its "
    "exponential? Judged from what each batch counted. Where there is one batch, or all hold the same number of units, "
    "both means are the same: the outcome is inconclusive.",
}


def verdicts_page(summary: Mapping[str, Any]) -> str:
    verdicts = summary["verdicts"]
    groups = [
        {
            "name": check,
            "question": QUESTIONS.get(check, ""),
            "verdicts": [verdict for verdict in verdicts if verdict["check"] == check],
            "evidence": _evidence(verdict for verdict in verdicts if verdict["check"] == check),
        }
        for check in summary["checks"]
    ]
    return render(
        "verdicts",
        summary["experiment"],
        headline=headline(summary),
        objective=summary["objective"],
        problems=unexpected(summary),
        trained_anyway=summary["trained_anyway"],
        unproven=[problem for problem in unexpected(summary) if problem.startswith(GUARDS)],
        groups=groups,
    )


def scores_page(summary: Mapping[str, Any], corpus: Corpus) -> str:
    """Scores, then what the model writes and the published run where there is any of it."""
    evaluation = summary["evaluation"]
    scored = [evaluation[split] for split in SPLITS if split in evaluation]
    before, after = (evaluation.get(name, []) for name in ("samples_at_start", "samples"))
    return render(
        "scores",
        summary["experiment"],
        splits={split: score_texts(evaluation[split]) for split in SPLITS if split in evaluation},
        unit=next((score["unit"] for score in scored), "unit"),
        perplexity=any(PERPLEXITY in score for score in scored),
        written=list(zip(before, after, strict=True)),
        shown=SAMPLES_SHOWN,
        grammatical=[number_made(corpus, texts) for texts in (before, after)],
        published=summary["published"],
    )


def number_made(corpus: Corpus, texts: Iterable[str]) -> int | None:
    """How many of the texts the corpus's grammar makes; None where there is no grammar."""
    made = [could_make(corpus, text) for text in texts]
    return None if None in made else sum(map(bool, made))


def score_texts(score: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of the scores of a split."""
    unit = score["unit"]
    perplexity = [("Perplexity", number_text(score[PERPLEXITY]))] if PERPLEXITY in score else []
    return [
        ("Rows", count_text(score["rows"])),
        (f"{unit.capitalize()}s", count_text(score["units"])),
        (f"Loss per {score.get('loss_unit', unit)}", loss_text(score["loss"])),
        *perplexity,
        (f"Accuracy per {unit}", percent_text(score["accuracy"])),
    ]


def config_page(experiment: Experiment) -> str:
    return render("config", experiment.name, settings=highlighted(settings_yaml(experiment)))


def versions_page(experiment: Experiment) -> str:
    return render("versions", experiment.name, software=software(), circumstances=circumstances(experiment))


def settings_yaml(experiment: Experiment) -> str:
    """Every field in the order of its definition; defaults and overrides are in."""
    values = dump(experiment)
    ordered = {name: values[name] for name in Experiment.model_fields if name in values}
    return yaml.safe_dump(ordered, sort_keys=False)


def highlighted(text: str) -> str:
    """HTML, with the text escaped."""
    return str(highlight(text, YamlLexer(), HtmlFormatter(nowrap=True, noclasses=True)))


def software() -> dict[str, str]:
    """Versions as the installed packages record them: nothing is imported for it."""
    return {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}


def circumstances(experiment: Experiment) -> dict[str, str]:
    return {
        "platform": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "CPU cores": str(os.cpu_count()),
        **ran_with(experiment),
    }


def ran_with(experiment: Experiment) -> dict[str, str]:
    """What the settings say of ranks and devices, resolved."""
    launcher, hosts = _resolved(experiment.launcher, experiment.resolved_launcher), "one host"
    if experiment.nodes > 1:
        launcher, hosts = "torchrun on each host", f"{experiment.nodes} hosts"
    return {
        "device": experiment.device,
        "backend": _resolved(experiment.backend, experiment.resolved_backend),
        "launcher": launcher,
        "ranks": f"{experiment.world_size}, on {hosts}",
        "threads per rank": str(experiment.threads_per_rank),
        **_of_training(experiment),
    }


def _of_training(experiment: Experiment) -> dict[str, str]:
    """What only some experiments have, and gradient parity judges without."""
    told = {}
    if isinstance(experiment.model, ResNet):
        told["normalization in training"] = NORMS[experiment.model.norm]
    if experiment.use_amp:
        told["precision in training"] = (
            f"mixed, {experiment.resolved_amp_dtype}; gradients are compared without it, in float32, the dtype of the "
            "weights"
        )
    return told


def number_text(value: Any) -> str:
    """A number as one reads it: 282,628 and 2.98e-08; summary.csv has all digits."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and 100 <= abs(value) < 1e9):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return "(" + ", ".join(number_text(item) for item in value) + ")" if value else "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{', '.join(names)}: {text}" for text, names in _by_text(value).items())
    return str(value)


def exact_text(value: Any) -> str:
    """All digits: where two values differ, rounding could hide it."""
    return value if isinstance(value, str) else json.dumps(value)


def numbers(observed: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of what was observed: what decides first, then the key numbers."""
    first = (*DECIDING, *KEY_NUMBERS)
    names = [name for name in first if name in observed] + [name for name in observed if name not in first]
    return [(name.replace("_", " "), number_text(observed[name])) for name in names]


def first_things_first(difference: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text): where it is, before what it is."""
    names = sorted(difference, key=lambda name: (PLACES.index(name) if name in PLACES else len(PLACES), name))
    return [(name.replace("_", " "), exact_text(difference[name])) for name in names]


def _by_text(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names that share a value, so that what all ranks say alike is said once."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(number_text(value), []).append(name)
    return names


def _evidence(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return dict(sorted(item for verdict in verdicts for item in verdict["evidence"].items()))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _resolved(asked: str, taken: str) -> str:
    return taken if asked == taken else f"{taken} ({asked})"


def render(page: str, experiment: str, **values: Any) -> str:
    """A page of templates/; `experiment` names it in its title."""
    return _templates().get_template(f"{page}.html").render(experiment=experiment, **values)


@cache
def _templates() -> Environment:
    """Everything that is filled in is escaped; a name that a template uses and nobody gave is an error."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "numbers": numbers,
        "placed": first_things_first,
        "number": number_text,
        "meaning": meaning_of,
    }
    return templates
