"""What the rule `measure` leaves in scaling/, held to its form when it is read. No torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json, read_json_lines

STRONG, WEAK = "strong", "weak"
PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")
DIFFERENCE, HOOK = "difference", "hook"
MEASURE_AGAIN = "delete this experiment's folder scaling/ and measure again"

Whole = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Row(BaseModel):
    """Fields that are not listed may stand there too."""

    model_config = ConfigDict(strict=True, frozen=True)


class Timing(_Row):
    """One rank in one step (numbered from 1) of `world_size` ranks.

    difference: compute_s is a backward without synchronization, communication_s the same backward with it, minus that;
    noise can make it negative. hook: compute_s ends when the rank's last bucket was ready, communication_s is the time
    in which at least one all-reduce of the window was under way, waiting for slower ranks included.
    """

    world_size: Whole
    step: Whole
    rank: Index
    variant: Literal["difference", "hook"]
    compute_s: Seconds
    communication_s: Annotated[float, Field(allow_inf_nan=False)]
    bytes: Index
    buckets: Index


class Run(_Row):
    """One timed run. strong: the plan's windows, their rows dealt to `processes`; weak: each process has one rank's
    share of a window. units: supervised units of all its updates.
    """

    scaling: Literal["strong", "weak"]
    processes: Whole
    repeat: Index
    updates: Whole
    units: Whole
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StepParts(_Row):
    """One update of one rank of `processes`, after the warm-up. communication: collectives, waiting for slower ranks
    included, as far as the rank does not compute meanwhile. other: all of the update that is in no part.
    """

    processes: Whole
    step: Whole
    rank: Index
    data_s: Seconds
    forward_s: Seconds
    backward_s: Seconds
    communication_s: Seconds
    optimizer_s: Seconds
    other_s: Annotated[float, Field(allow_inf_nan=False)]


class Reached(_Row):
    """One run from the initial weights, until the training accuracy of the last updates was what was asked for, or to
    the plan's end. accuracy: the last that was found.
    """

    processes: Whole
    repeat: Whole
    reached: bool
    accuracy: Annotated[float, Field(ge=0, le=1)]
    updates: Whole
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AllReduce(_Row):
    """One all-reduce of `bytes` over `processes`. seconds: by rank, from a barrier of the ranks to its end there."""

    processes: Annotated[int, Field(ge=2)]
    bytes: Whole
    repeat: Whole
    seconds: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]

    @model_validator(mode="after")
    def _one_time_per_rank(self) -> Self:
        if len(self.seconds) != self.processes:
            raise ValueError(f"seconds needs a number for each of {self.processes} ranks, not {len(self.seconds)}")
        return self


class Machine(_Row):
    """Where and how it was measured. steps: timed ones, the warm-up included. unit: what a supervised one is called."""

    cpu: str
    cores: Whole
    threads_per_rank: Whole
    torch: str
    python: str
    backend: str
    launcher: str
    model_params: Whole
    unit: str
    steps: Whole
    bucket_cap_mb: int | float | None
    find_unused_parameters: bool
    gradient_as_bucket_view: bool


_Kind = TypeVar("_Kind", bound=_Row)


def read_timings(path: Path | str) -> list[Timing]:
    """Raises EvidenceError, naming file, line and field, for a row of another form; so does read_runs."""
    return _read_rows(Timing, path)


def read_runs(path: Path | str) -> list[Run]:
    return _read_rows(Run, path)


def read_step_parts(path: Path | str) -> list[StepParts]:
    return _read_rows(StepParts, path)


def read_reached(path: Path | str) -> list[Reached]:
    return _read_rows(Reached, path)


def read_all_reduces(path: Path | str) -> list[AllReduce]:
    return _read_rows(AllReduce, path)


def read_machine(path: Path | str) -> Machine:
    """Raises EvidenceError, naming file and field, or the command that measures where that has not been done."""
    if not Path(path).is_file():
        target = Path(path).with_name("manifest.json")
        raise EvidenceError(f"{path} does not exist: measure first, by snakemake --cores all {target}")
    return _held_to(Machine, read_json(path), str(path))


def _read_rows(kind: type[_Kind], path: Path | str) -> list[_Kind]:
    return [_held_to(kind, row, f"{path}, line {number}") for number, row in enumerate(read_json_lines(path), start=1)]


def _held_to(kind: type[_Kind], value: Mapping[str, Any], where: str) -> _Kind:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"{name}: " for name in first["loc"])
        raise EvidenceError(f"{where}: {field}{first['msg'].lower()}; {MEASURE_AGAIN}") from None
