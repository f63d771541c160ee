"""A tiny experiment, and two kinds of work small enough to check by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ddp_tokens.checks.replicas import check_replicas
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import Experiment
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora.rows import UNSUPERVISED, Row, supervised_in
from ddp_tokens.layout import Layout
from ddp_tokens.options import run_as_program
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import write_references
from ddp_tokens.train import PROGRAM, main
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks

STEPS, INTERRUPT_AT, ACCUMULATION = 6, 3, 2
SETTINGS = {
    "seed": 17,
    "corpus": {"train": 48, "validation": 5, "test": 21, "min_length": 2, "short_max_length": 5, "max_length": 12},
    "model": {"width": 8, "heads": 2, "layers": 1, "feed_forward": 16, "dropout": 0.1},
    "optimizer": {"lr": 0.1, "momentum": 0.9},
    "steps": STEPS,
    "interrupt_at": INTERRUPT_AT,
    "batch": 2,
    "accumulation": ACCUMULATION,
    "timeout_s": 20,
}


@dataclass(frozen=True)
class Tiny:
    """A tiny experiment in a folder of its own: its YAML file and its results."""

    folder: Path
    world_size: int

    @property
    def config(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def at(self) -> Layout:
        return Layout(self.folder / "results" / "tiny")

    @property
    def interrupted(self) -> Path:
        return self.at.checkpoint("interrupt", INTERRUPT_AT)

    @property
    def experiment(self) -> Experiment:
        return load_experiment(self.config)

    def arguments(self, *more: str) -> list[str]:
        return ["--config", str(self.config), "--results", str(self.folder / "results"), *more]

    def train(self, *more: str) -> list[dict[str, Any]]:
        """By rank, the exit code of ddp_tokens.train and what it wrote on standard error."""
        return run_ranks(train_as_program, self.world_size, self.folder, self.arguments(*more), joined=False)

    def train_all(self) -> None:
        for more in ([], ["--continuous"], ["--resume", str(self.interrupted)]):
            assert [rank["code"] for rank in self.train(*more)] == [0] * self.world_size

    def resume_verdicts(self) -> dict[str, Verdict]:
        ends = [self.at.checkpoint(run, STEPS) for run in ("continuous", "resume")]
        return {verdict.case: verdict for verdict in check_resume(self.interrupted, *ends)}

    def replica_verdicts(self) -> list[Verdict]:
        return check_replicas({run: self.at.run(run) for run in ("interrupt", "continuous", "resume")})


def prepared(folder: Path, world_size: int, **changes: Any) -> Tiny:
    """The YAML file with `changes`, without fields that are None, then corpus, plan, initial weights and references, as
    the first two steps.
    """
    tiny = Tiny(folder, world_size)
    folder.mkdir(parents=True, exist_ok=True)
    values = SETTINGS | {"world_size": world_size} | changes
    tiny.config.write_text(yaml.safe_dump({name: value for name, value in values.items() if value is not None}))
    prepare(tiny.experiment, tiny.at.rows, tiny.at.lock, tiny.at.plan)
    run_ranks(write_references_alone, 1, folder, str(tiny.config), str(tiny.at.root), joined=False)
    return tiny


def write_references_alone(world: World, config: str, root: str) -> None:
    write_references(load_experiment(config), Layout(Path(root)))


def train_as_program(world: World, arguments: Sequence[str]) -> dict[str, Any]:
    """In a rank: ddp_tokens.train from its command line to its exit code."""
    return told_by(PROGRAM, main, arguments)


def told_by(program: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> dict[str, Any]:
    """The exit code of a program and what it wrote on standard error."""
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = run_as_program(program, main, arguments)
    return {"code": code, "said": said.getvalue()}


def row(*labels: int) -> Row:
    """A row of SquaredError's: its labels are the targets."""
    return Row("-".join(map(str, labels)), "train", (0,) * len(labels), labels)


class Theta(torch.nn.Module):
    """One float64 parameter, 0 at first; the output at each position is the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, targets: torch.Tensor) -> torch.Tensor:
        return self.theta.expand(targets.shape)


class SquaredError:
    """(theta - target)^2 per supervised position: at theta = 0 the loss is target^2, the gradient -2 * target."""

    def build_model(self, settings: Any, shape: Any) -> torch.nn.Module:
        return Theta()

    def collate(self, rows: Sequence[Row], device: Any = "cpu") -> torch.Tensor:
        return torch.tensor([label for row in rows for label in row.labels], dtype=torch.float64)

    def forward(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    def loss_sum(self, outputs: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        counted = batch != UNSUPERVISED
        return ((outputs - batch)[counted] ** 2).sum(), int(counted.sum())

    def metrics(self, outputs: torch.Tensor, batch: torch.Tensor) -> dict[str, float]:
        loss, units = self.loss_sum(outputs, batch)
        return {"loss_sum": float(loss), "correct": 0, "units": units}


def units_by_rank(shares: Sequence[Sequence[Row]]) -> list[int]:
    return [supervised_in(share) for share in shares]
