"""What the exercise by hand computes, and what the rule `scaling` measures."""

from typing import Self

from pydantic import Field, model_validator

from ddp_tokens.setting_types import Fraction, Positive, Real, Section


class Exercise(Section):
    """Two ranks whose token counts become unequal; loss per token times theta squared, at theta = 1."""

    counts_before: tuple[Positive, ...] = Field((12, 12), description="tokens per rank, before")
    counts_after: tuple[Positive, ...] = Field((12, 36), description="tokens per rank, after")
    losses: tuple[Real, ...] = Field((1.0, 3.0), description="loss per token on each rank")

    @model_validator(mode="after")
    def _one_entry_per_rank(self) -> Self:
        if not len(self.counts_before) == len(self.counts_after) == len(self.losses):
            raise ValueError("counts_before, counts_after and losses need one entry per rank each")
        return self


class Scaling(Section):
    """What the rule `scaling` measures: the training loop on other numbers of processes, on this machine's CPU."""

    processes: tuple[Positive, ...] = Field(
        (1, 2, 4), description="numbers of processes, smallest first; 1 and 2 are needed, and world_size is added"
    )
    repeats: Positive = Field(5, description="runs of each number of processes, in turn; the spread is over these")
    windows: Positive = Field(10, description="updates of each run, at most `steps`")
    accuracy: Fraction = Field(
        0.6,
        description="where the workload counts what is right: training accuracy, over the last `windows` updates, to "
        "which the time is measured on 1 and 2 processes",
    )

    @model_validator(mode="after")
    def _processes_in_order(self) -> Self:
        if list(self.processes) != sorted(set(self.processes)) or not {1, 2} <= set(self.processes):
            raise ValueError(f"processes must hold 1 and 2, each once, smallest first, not {list(self.processes)}")
        return self
