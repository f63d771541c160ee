"""The learning rate over a run: torch's scheduler, moved on after each epoch or each update."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ddp_tokens.config import Cosine, Experiment


@dataclass(frozen=True)
class Schedule:
    """`every`: updates after which the scheduler moves on."""

    scheduler: LRScheduler
    every: int

    def after(self, step: int) -> None:
        """Called after update `step`, also one that the gradient scaler skipped: the rate follows the position in the
        run, so that it is the same on every path to it.
        """
        if step % self.every == 0:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before")
                self.scheduler.step()


def schedule_of(
    experiment: Experiment, optimizer: Optimizer, windows_per_epoch: Callable[[Experiment], int]
) -> Schedule | None:
    """None where the learning rate is constant. A run that ends inside an epoch counts that epoch.

    `windows_per_epoch` is called only where there are epochs.
    """
    settings = experiment.schedule
    if not isinstance(settings, Cosine):
        return None
    every = 1 if settings.per == "update" else windows_per_epoch(experiment)
    scheduler = CosineAnnealingLR(optimizer, T_max=-(-experiment.steps // every), eta_min=settings.final_lr)
    return Schedule(scheduler, every)
