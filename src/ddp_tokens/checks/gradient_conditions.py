"""What in gradient parity is not as it is in training, or is though a reader could doubt it: stated in each verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import Model, ResNet
from ddp_tokens.corpora.objective import objective_in
from ddp_tokens.files import digests, read_json
from ddp_tokens.layout import NATIVE
from ddp_tokens.objective_settings import TOKEN

OBJECTIVE = "objective"
STATISTIC = "running_mean"
FROZEN = "BatchNorm layers with frozen statistics (eval mode, the same initial buffers)"
NO_STATISTICS = "normalization judged as in training: no layer uses statistics of rows"
NOT_MIXED = "in float32, the dtype of the weights, without the mixed precision of training"


@dataclass(frozen=True)
class Conditions:
    """`sentences`: of every verdict. `of_native`: of those in the training dtype. `files`: what they were read from.
    `objective`: where it is not the plain mean over tokens, and the verdict states none; `with_what`: added to that of
    several terms.
    """

    sentences: tuple[str, ...] = ()
    of_native: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    objective: str | None = None
    with_what: str = ""

    def stated_in(self, verdict: Verdict, dtype: str) -> Verdict:
        sentences = (*self.sentences, *(self.of_native if dtype == NATIVE else ()))
        if self.objective is not None and OBJECTIVE not in verdict.observed:
            sentences = (f"objective: {self.objective}", *sentences)
            verdict = replace(verdict, observed={**verdict.observed, OBJECTIVE: self.objective})
        elif self.with_what:
            told = f"{verdict.observed[OBJECTIVE]}{self.with_what}"
            verdict = replace(verdict, observed={**verdict.observed, OBJECTIVE: told})
        return replace(
            verdict,
            criterion="; ".join((verdict.criterion, *sentences)),
            evidence={**verdict.evidence, **digests(self.files)},
        )


NOTHING_TO_STATE = Conditions()


def conditions_of(model: Model, use_amp: bool, initial: Path, lock: Path | None = None) -> Conditions:
    """`initial`: the initial weights. Layers that keep statistics of rows are told by their buffers. `lock`: of the
    corpus, whose objective is stated where it is not the plain mean over tokens.
    """
    statistics = _statistics_said_of(model, list(read_arrays(initial)))
    locked = read_json(lock) if lock else {}
    objective, with_what = None, ""
    if "objective" in locked or "weights" in locked:
        position = "image" if "images" in locked else TOKEN
        locked_objective, own_weights = objective_in(locked, ()), "weights" in locked
        objective = locked_objective.in_words(position, own_weights)
        with_what = locked_objective.with_what(own_weights)
    files = (initial,) if statistics else ()
    return Conditions(statistics, (NOT_MIXED,) if use_amp else (), files, objective, with_what)


def _statistics_said_of(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Nothing of a model that has no choice of normalization layers and none with statistics."""
    if any(name.split(".")[-1] == STATISTIC for name in names):
        return (FROZEN,)
    return (NO_STATISTICS,) if isinstance(model, ResNet) else ()
