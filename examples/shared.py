"""What the examples share: their arguments, the model, this rank's batches, and what they leave for the table.

Your own loop needs none of this: only the `with audit(...)` block.
"""

import argparse
import os
from importlib.metadata import version
from pathlib import Path

import torch

from ddp_tokens.config_reading import load_experiment
from ddp_tokens.files import write_json
from ddp_tokens.layout import Layout
from ddp_tokens.trainers.windows import AUDITED, TIMED, Clock, Windows, loss_sum, train_bare
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.world import world_from_environment

__all__ = ["ACCUMULATION", "STEPS", "Clock", "arguments", "count", "in_windows", "loss_sum", "mean_loss", "write"]

PROJECT = Path(__file__).resolve().parents[1]
ACCUMULATION = 2  # microbatches of a window on each rank, as config/minimum.yaml says
STEPS = AUDITED + TIMED


def arguments(*settings):
    """`setting`, one of these; `output`; `windows`: model(), optimizer(model) and loader() of this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--setting", choices=settings, default=settings[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON file that rank 0 writes")
    parser.add_argument("--results", type=Path, default=PROJECT / "results" / "minimum")
    parser.add_argument("--config", type=Path, default=PROJECT / "config" / "minimum.yaml")
    own = parser.parse_args()
    end_with(starters_of_rank(os.environ))  # no rank outlives whoever started it
    experiment = load_experiment(own.config)
    torch.set_num_threads(experiment.threads_per_rank)
    world = world_from_environment(os.environ, "cpu", experiment.world_size)
    own.windows = Windows.read(experiment, Layout(own.results), world)
    return own


def in_windows(loader):
    """The loader's batches, ACCUMULATION at a time."""
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == ACCUMULATION:
            yield window
            window = []


def count(batches):
    """Supervised tokens of these batches on this rank."""
    return sum((batch["labels"] != -100).sum() for batch in batches)


def mean_loss(logits, labels):
    """What a loss function gives by default: the mean over this rank's supervised tokens in this batch."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def write(own, report, clock, package):
    """Every rank calls this; rank 0 writes. The audit has taken itself out, so what is timed now is plain DDP."""
    bare = own.windows.per_second(train_bare(own.windows))
    document = {
        "version": version(package),
        "report": report.document(),
        "tokens_per_second": own.windows.per_second(clock),
        "bare_tokens_per_second": bare,
    }
    if own.windows.world.is_main:
        print(report.text())
        write_json(own.output, document)
