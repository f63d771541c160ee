"""Made-up trainers and what their runs left: one of each sort that table, page and figure must show."""

from dataclasses import asdict

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.files import write_json
from ddp_tokens.trainers.cases import Case
from ddp_tokens.trainers.table import read_trainers

MACHINE = {"cpu": "A Processor", "cores": "2", "python": "3.11.2", "torch": "2.13.0"}
HUGGING_FACE = "Hugging Face Trainer"
FLAG = "average_tokens_across_devices=True"
CASES = (
    Case("bare", "plain DDP", "torch", "sum of losses x W / N, N over all ranks", "bare.py", ("--exact",), "pass"),
    Case(
        *("bare_means", "plain DDP", "torch", "mean of the rank's own tokens", "bare.py", (), "fail"),
        diagnosis=("mean_of_means",),
        remedy="Divide the sum of losses by the number of tokens of all ranks, and multiply by the world size.",
        made_right_by="bare",
    ),
    Case(
        *("hf", HUGGING_FACE, "transformers", f"{FLAG}, forward takes **kwargs", "hf.py", ("--kwargs",), "pass"),
    ),
    Case(
        *("hf_named", HUGGING_FACE, "transformers", f"{FLAG}, forward names num_items_in_batch", "hf.py", (), "fail"),
        diagnosis=("mean_of_microbatch_means",),
        remedy="Let the model's forward take **kwargs.",
        made_right_by="hf",
    ),
    Case("equal", "plain DDP", "torch", "equal counts on all ranks", "bare.py", ("--equal",), "inconclusive"),
    Case("zero", "DeepSpeed ZeRO", "deepspeed", "stage 2", "zero.py", (), "pass"),
)


def window(number, outcome, error, tolerance=1e-6, diagnosis=(), notes=(), **observed):
    numbers = {"error": error, "tolerance": tolerance, "parameter": "head.weight", **observed}
    first = {"parameter": "head.weight"} if outcome == "fail" else None
    verdict = Verdict("", "pass", outcome, "error <= tolerance", numbers, {}, first, tuple(diagnosis))
    return {"window": number, "verdict": asdict(verdict), "seen": {"units": [[7, 9], [20, 31]]}, "notes": list(notes)}


def run(*windows, outcome=None, version="1.15.0", speed=0.9):
    outcome = outcome or windows[0]["verdict"]["outcome"]
    report = {"outcome": outcome, "sentence": f"it is {outcome}", "world_size": 2, "windows": list(windows)}
    speeds = {"tokens_per_second": 1000.0 * speed, "bare_tokens_per_second": 1000.0}
    return {"version": version, "report": report, **speeds}


def runs():
    """All as expected; the last was not run."""
    wrong = {"residual": 1.5e-7}
    return {
        "bare": run(window(1, "pass", 2e-7), window(2, "pass", 4e-7), version="2.13.0", speed=0.99),
        "bare_means": run(
            window(1, "fail", 0.2, diagnosis=["mean_of_means"], **wrong),
            window(2, "fail", 0.5, diagnosis=["mean_of_means"], notes=["clipped from norm 3.1 to 1"], **wrong),
            version="2.13.0",
        ),
        "hf": run(window(1, "pass", 3e-7), version="5.24.0", speed=0.75),
        "hf_named": run(
            window(1, "fail", 0.017, diagnosis=["mean_of_microbatch_means"], **wrong), version="5.24.0", speed=0.76
        ),
        "equal": run(window(1, "inconclusive", 3e-7, power=0.25), version="2.13.0"),
        "zero": {"version": None, "problem": "deepspeed is not installed: pip install deepspeed"},
    }


def trainers(folder, cases=CASES, **changed):
    """The table of these runs, through their files. `changed`: name -> what this run left instead."""
    for name, document in {**runs(), **changed}.items():
        write_json(folder / f"{name}.json", document)
    return read_trainers(cases, folder, MACHINE)


def missed():
    """Two runs that are not as expected: a wrong one that passes, and a remedy that does not work."""
    return {
        "bare_means": run(window(1, "pass", 2e-7), version="2.13.0"),
        "hf": run(window(1, "fail", 2e-3, diagnosis=["mean_of_means", "stale_count"]), version="5.24.0"),
    }
