"""What the exercise by hand computes, what the rule `scaling` measures, and for which network is predicted."""

from typing import Self

from pydantic import Field, model_validator

from ddp_tokens.setting_types import Fraction, NonNegativeReal, Positive, PositiveReal, Real, Section


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


class Network(Section):
    """A network between ranks for which the rule `predict` predicts, beside the one that was measured."""

    latency_us: NonNegativeReal | None = Field(
        None, description="microseconds of one message between two ranks, however short; left out: as measured"
    )
    bandwidth_mb_s: PositiveReal | None = Field(
        None, description="megabytes (10^6 bytes) per second from one rank to the next; left out: as measured"
    )

    @property
    def is_given(self) -> bool:
        return self.latency_us is not None or self.bandwidth_mb_s is not None
