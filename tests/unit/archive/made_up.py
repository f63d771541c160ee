"""A small archive made by hand, as `report_page` reads it: numbers that a reader can follow. No torch."""

import json
from dataclasses import replace

from ddp_tokens.archive.layout import Document
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.controls.table import document as controls_document
from ddp_tokens.files import to_json
from ddp_tokens.summary import summarize
from tests.helpers import PROJECT, tiny_experiment
from tests.unit.controls.synthetic import caught

DIGESTS = {name: name[-1] * 64 for name in ("results/tiny/plan.json", "results/tiny/reference/parts.safetensors")}
PIXEL = '<svg xmlns="http://www.w3.org/2000/svg" width="340" height="20"><rect width="9" height="9"/></svg>'
MACHINE = {
    "cpu": "A CPU",
    "cores": 2,
    "gpus": [],
    "python": "3.11.7",
    "torch": {"version": "2.13.0+cpu", "cuda": None},
    "memory_bytes": 8 * 2**30,
    "platform": "Linux",
    "driver": None,
}
SCORE = {"rows": 8, "unit": "token", "units": 1860, "loss": 1.2358608, "perplexity": 3.441339, "accuracy": 0.5405}
EVALUATION = {"test": SCORE, "validation": SCORE | {"rows": 4, "units": 900, "accuracy": 0.5}}


def verdict(case, expected="pass", outcome=None, diagnosis=(), criterion="as it should be", **observed):
    named = tuple(diagnosis) if expected == "fail" else None
    return Verdict(case, expected, outcome or expected, criterion, observed, DIGESTS, None, tuple(diagnosis), named)


def parity(error=2e-9, tolerance=1e-8, power=5000.0, windows=("first", "most_unequal"), **changes):
    """Of both formulas, both dtypes; float64 has errors and tolerances a millionth of those in the training dtype."""
    found = []
    for dtype, scale in (("native", 1.0), ("float64", 1e-6)):
        for index, window in enumerate(windows):
            shared = {"tolerance": tolerance * scale, "values": 1234, "units_per_rank": [10 + index, 30]}
            right = {"power": power * (index + 1) / scale, "nearest_formula": "stale_count", "parameter": "head.weight"}
            found.append(verdict(f"token_mean.{dtype}.{window}", error=error * scale / (index + 1), **shared, **right))
            wrong = {"error": 0.5 * scale, "parameter": "head.bias", "power": power}
            case = f"mean_of_means.{dtype}.{window}"
            found.append(verdict(case, "fail", diagnosis=["mean_of_means"], **shared, **wrong))
    return [replace(each, **changes) for each in found]


def resume():
    compared = {"tensors": 3, "max_abs_difference": 0.0}
    return [
        verdict("identity", fields=24, differing=[]),
        verdict("weights_moved", max_abs_difference=0.125, parameters=3, unmoved=0),
        verdict("parameters", values=1234, **compared),
        verdict("optimizer_state", values=2468, **compared),
        verdict("history", updates=4, updates_before_interruption=2),
    ]


def checks(**changes):
    """All as expected; `changes`: by check."""
    told = {
        "loss": [verdict("global_mean", global_mean=2.5)],
        "gradient_parity": parity(),
        "window": [verdict("one_window", error=0, tolerance=0)],
        "zero_window": [verdict("empty_window", ranks_that_refused=2)],
        "resume": resume(),
        "replicas": [verdict(run, ranks=2) for run in ("interrupt", "continuous", "resume")],
        "checkpoints": [verdict("interrupt/step-0002", step=2), verdict("resume/step-0004", step=4)],
        "evaluation": [verdict("test.rows", rows=8), verdict("test.mean", error=0.0, tolerance=1e-15)],
    }
    return told | changes


def summary(scores=EVALUATION, settings=None, **changed):
    made = summarize(tiny_experiment(**settings or {}), checks(**changed), scores, [])
    return json.loads(to_json(made))


def archive(of_summary=None, judged=None, omitted=None, source=None):
    """(contents, document, experiment)."""
    judged = caught() if judged is None else judged
    contents = {
        "results/tiny/summary.json": to_json(of_summary or summary()).encode(),
        "results/tiny/summary.csv": b"check\n",
        "results/tiny/config.yaml": b"name: tiny\n",
        "results/tiny/plan.json": b"{}",
        "results/tiny/reference/parts.safetensors": b"parts",
        "results/controls/controls.json": json.dumps(controls_document(judged)).encode(),
        "machine/environment.json": to_json({"machine": MACHINE}).encode(),
        "machine/imported.json": to_json({"python": "3.11.7", "torch": "2.13.0+cpu"}).encode(),
        "machine/wall_times.csv": b"experiment,rule,seconds,cpu_seconds,max_rss_mib\ntiny,resume,29.63,8.56,963.30\n",
        "README.md": b"# tiny\n",
    }
    for check in checks():
        contents[f"results/tiny/checks/{check}.json"] = b"{}"
    for name in ("tiny/figures/tokens", "tiny/figures/gradients", "tiny/figures/resume", "controls/controls"):
        contents |= {f"results/{name}.{kind}": PIXEL.encode() for kind in ("svg", "png", "pdf")}
    contents |= {f"source/report/{path.name}": path.read_bytes() for path in (PROJECT / "report").glob("*.rst")}
    omitted = omitted or {}
    source = source or {"commit": "c" * 40, "date": "2026-01-02T03:04:05+00:00", "dirty": False}
    kept = {name: content for name, content in contents.items() if name not in omitted}
    return kept, Document("tiny", "d" * 64, True, "0.1.0", source, omitted), tiny_experiment()


def with_scaling(contents):
    scaling = {"cpu": "Another CPU", "cores": 4, "threads_per_rank": 1, "torch": "2.13.0", "python": "3.11.7"}
    return contents | {
        "machine/scaling/manifest.json": to_json({"lesson_notes": "Two were faster than one."}).encode(),
        "machine/scaling/machine.json": to_json(scaling | {"backend": "gloo"}).encode(),
        **{f"machine/scaling/scaling.{kind}": PIXEL.encode() for kind in ("svg", "png", "pdf")},
    }
