"""Where each file of an experiment lies below the results folder."""

from dataclasses import dataclass
from pathlib import Path

NATIVE, FLOAT64, PARTS = "native", "float64", "parts"
TERMS = "terms"  # among the parts: what the terms of the loss are, where it has several
BY_UNIT = "unit."  # in names of parts: by another unit
DTYPES = (NATIVE, FLOAT64)
ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class Layout:
    """`root` is results/EXP."""

    root: Path

    @property
    def environment(self) -> Path:
        """Of the machine, not of the experiment: no check of the results."""
        return self.root / ENVIRONMENT

    @property
    def rows(self) -> Path:
        return self.root / "corpus" / "rows.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / "corpus" / "lock.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def initial(self) -> Path:
        return self.root / "initial.safetensors"

    def reference(self, dtype: str) -> Path:
        return self.root / "reference" / f"{dtype}.safetensors"

    def gradients(self, formula: str, dtype: str) -> Path:
        return self.root / "gradients" / f"{formula}.{dtype}.safetensors"

    @property
    def zero_window(self) -> Path:
        return self.root / "zero_window"

    @property
    def window(self) -> Path:
        return self.root / "window"

    def check(self, name: str) -> Path:
        return self.root / "checks" / f"{name}.json"

    def run(self, name: str) -> Path:
        return self.root / "runs" / name

    def rank_logs(self, run: str) -> Path:
        """Where each rank was and how long it took: different in each rebuild, hence below logs/."""
        return self.root / "logs" / "ranks" / run

    def event_files(self, run: str) -> Path:
        return self.root / "logs" / "tensorboard" / run

    def profile(self, run: str) -> Path:
        return self.root / "logs" / "profile" / run

    def checkpoint(self, run: str, step: int) -> Path:
        return self.run(run) / checkpoint_name(step)

    def working(self, run: str, key: str) -> Path:
        """Working checkpoints: beside the run's folder, which Snakemake deletes before it starts the run again."""
        return self.root / "runs" / f".{run}.{key}"

    def run_lock(self, run: str) -> Path:
        return self.root / "runs" / f".{run}.lock"

    def seen_by_all(self, token: str) -> Path:
        """There for a moment, so that ranks can tell whether they share this folder."""
        return self.root / f".shared.{token}"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation.json"

    @property
    def scaling(self) -> Path:
        return self.root / "scaling"

    @property
    def timings(self) -> Path:
        return self.scaling / "timings.jsonl"

    @property
    def runs_in_turn(self) -> Path:
        return self.scaling / "runs.jsonl"

    @property
    def step_parts(self) -> Path:
        return self.scaling / "step_parts.jsonl"

    @property
    def time_to_accuracy(self) -> Path:
        return self.scaling / "time_to_accuracy.jsonl"

    @property
    def all_reduces(self) -> Path:
        return self.scaling / "all_reduce.jsonl"

    @property
    def machine(self) -> Path:
        return self.scaling / "machine.json"

    @property
    def prediction(self) -> Path:
        return self.scaling / "prediction.json"

    @property
    def measured_states(self) -> Path:
        return self.scaling / "ranks"

    def measured_state(self, rank: int) -> Path:
        return self.measured_states / f"state-rank-{rank}.safetensors"

    @property
    def exercise(self) -> Path:
        return self.root / "exercise.json"

    @property
    def figures(self) -> Path:
        return self.root / "figures"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"


def checkpoint_name(step: int) -> str:
    return f"step-{step:04d}"


def trace_file(profile: Path, rank: int) -> Path:
    return profile / f"rank-{rank}.json.gz"


def operators_file(profile: Path, rank: int) -> Path:
    return profile / f"rank-{rank}.operators.json"


RUNS = ("interrupt", "continuous", "resume")


def checkpoints_in(run: Path) -> list[Path]:
    return sorted(path for path in run.glob("step-*") if path.is_dir())


def all_checkpoints_in(runs: Path) -> list[Path]:
    """Below every run's folder, and below the hidden folders that hold the working checkpoints of unfinished runs."""
    return sorted(path for path in runs.glob("*/step-*") if path.is_dir())
