"""What the Snakefile asks of the project while it is parsed. No torch."""

import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from ddp_tokens.config import Experiment, OwnRows, load_experiment
from ddp_tokens.errors import ConfigError, LaunchError
from ddp_tokens.layout import checkpoint_name
from ddp_tokens.steps import settings_document

CONFIG_FOLDER = Path("config")
NOT_OVERRIDES = ("experiments",)


class Experiments:
    """The experiments of one workflow, each read once: its YAML file with the overrides of the workflow's config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ConfigError when an experiment that is to be built is not valid."""
        self.names: list[str] = list(config.get("experiments") or [])
        self._overrides = {name: value for name, value in config.items() if name not in NOT_OVERRIDES}
        self.get = cache(self._read)
        if not self.names:
            raise ConfigError("config/config.yaml: field 'experiments' names no experiment to build")
        for name in self.names:
            self.get(name)

    def _read(self, name: str) -> Experiment:
        return load_experiment(CONFIG_FOLDER / f"{name}.yaml", self._overrides)

    def settings(self, name: str, step: str) -> str:
        return settings_document(self.get(name), step)

    def source_of_rows(self, name: str) -> list[str]:
        """The user's own file, where there is one: an input of prepare."""
        corpus = self.get(name).corpus
        return [corpus.path] if isinstance(corpus, OwnRows) else []

    def launch(self, name: str) -> str:
        """The beginning of a command that starts the experiment's ranks on this host."""
        experiment = self.get(name)
        if experiment.resolved_launcher == "torchrun":
            return f"torchrun --standalone --nnodes=1 --nproc-per-node={experiment.world_size}"
        return f"python -m ddp_tokens.launch --nproc-per-node={experiment.world_size}"

    def threads(self, name: str) -> int:
        """Cores that the ranks of one run keep busy: half of their threads.

        Ranks wait for the one with the longest sequences, so two runs side by side fill the cores that one leaves idle.
        """
        experiment = self.get(name)
        return max(1, experiment.world_size * experiment.threads_per_rank // 2)

    def interrupted_checkpoint(self, name: str, run: str) -> str:
        return f"{run}/{checkpoint_name(self.get(name).interrupt_at)}"

    def gpus(self, name: str) -> int:
        experiment = self.get(name)
        return experiment.world_size if experiment.device == "cuda" else 0

    def require_gpus(self) -> None:
        """Raises LaunchError when an experiment needs more GPUs than torch sees. Asks torch in a process of its own."""
        needed = max((self.needed_gpus(name) for name in self.names), default=0)
        if needed:
            seen = visible_gpus()
            if seen < needed:
                raise LaunchError(
                    f"device cuda needs {needed} GPU{'s' if needed > 1 else ''} (one per rank) and torch sees {seen}: "
                    "lower world_size, or set device to cpu"
                )

    def needed_gpus(self, name: str) -> int:
        """NCCL wants one GPU per rank; gloo ranks may share one."""
        experiment = self.get(name)
        if experiment.device != "cuda":
            return 0
        return experiment.world_size if experiment.resolved_backend == "nccl" else 1


def put_this_python_first(environment: MutableMapping[str, str]) -> None:
    """Jobs say `python` and `torchrun`: the ones beside this process's own, also when no environment is active."""
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"


def visible_gpus() -> int:
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
