"""Event files for TensorBoard, written by rank 0. The package is wanted only where the setting is.

logs/tensorboard/RUN/    `tensorboard --logdir results/EXP/logs/tensorboard` shows all runs side by side
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ddp_tokens.errors import ConfigError

PACKAGE = "tensorboard"
OF_UPDATES = ("loss", "accuracy", "lr", "gradient_norm", "scale")
OF_EPOCHS = ("loss", "accuracy", "lr", "skipped")


def require_tensorboard(wanted: bool) -> None:
    """Raises ConfigError where it is wanted and not there."""
    if wanted and find_spec(PACKAGE) is None:
        raise ConfigError(f"tensorboard: true needs the package {PACKAGE}: pip install {PACKAGE}, or leave it out")


class EventFiles:
    """A start adds a file. What earlier files hold of later updates than `step`, after which it goes on, is void: an
    earlier start got further, or the whole run is made anew.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def update(self, step: int, values: Mapping[str, Any]) -> None:
        self._write("train", step, values)

    def epoch(self, step: int, summary: Mapping[str, Any]) -> None:
        """At the epoch's last update, so that all points have one axis."""
        self._write("epoch", step, {name: summary.get(name) for name in OF_EPOCHS})

    def close(self) -> None:
        self._writer.close()

    def _write(self, group: str, step: int, values: Mapping[str, Any]) -> None:
        """Nothing is held back: a killed run goes on from a checkpoint and writes only what comes after that."""
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, step)
        self._writer.flush()
