"""One window at its update: ranks tell what they did, rank 0 computes it again and judges, all learn the verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from ddp_tokens.audit.alone import alone
from ddp_tokens.audit.between import Between, Clipping, shortened
from ddp_tokens.audit.comparing import Comparison
from ddp_tokens.audit.exchange import Exchange
from ddp_tokens.audit.judging import Seen, Undone, judge, not_comparable
from ddp_tokens.audit.losses import LossSum
from ddp_tokens.audit.meanings import WEIGHTS_DIFFER
from ddp_tokens.audit.recording import Recorder, local
from ddp_tokens.audit.replaying import Replayed, Window, in_float64, in_training_dtype, not_reproduced
from ddp_tokens.audit.seeing import Told, described, facts_of, notes_of, notes_of_causes, seen_in
from ddp_tokens.audit.telling import message_of, recorded_in, told
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE
from ddp_tokens.checks.window import WEIGHTS_UPDATED_INSIDE
from ddp_tokens.errors import AuditError
from ddp_tokens.window_facts import WindowFacts

Result = TypeVar("Result")
# What makes losses others than those that can be computed again.
EXPLAINING = {WEIGHTS_DIFFER, WEIGHTS_UPDATED_INSIDE}


@dataclass(frozen=True)
class RankWindow:
    """What this rank has of a window. `accumulation`: the most microbatches of a window so far. `communication_hooks`:
    names of functions that exchange gradients in DDP's place.
    """

    number: int
    module: nn.Module
    optimizer: torch.optim.Optimizer
    loss_sum: LossSum
    recorder: Recorder
    between: Between
    tolerances: Tolerances
    accumulation: int
    previous_units: float | None
    communication_hooks: Sequence[str] = ()

    @property
    def compared(self) -> dict[str, nn.Parameter]:
        """What the optimizer updates of the module, by name; a parameter with several names under the first."""
        updated = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        return {n: p for n, p in self.module.named_parameters() if id(p) in updated and p.requires_grad}

    @property
    def not_compared(self) -> list[str]:
        """Sentences on what only the optimizer has, and on what only the module has."""
        updated = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        own = {id(parameter): parameter for parameter in self.module.parameters()}
        of_module, found = type(self.module).__name__, []
        if outside := len(updated - set(own)):
            are, were = ("is", "was") if outside == 1 else ("are", "were")
            found.append(f"{_counted(outside)} of the optimizer {are} not in {of_module} and {were} not compared")
        if left_out := sum(one.requires_grad and key not in updated for key, one in own.items()):
            need, are = ("needs", "is") if left_out == 1 else ("need", "are")
            found.append(
                f"{_counted(left_out)} of {of_module} {need} a gradient and {are} not updated by this optimizer"
            )
        return found


class First:
    """What only rank 0 computes, between collectives in which all ranks take part: after a first problem nothing more,
    and the collectives go on, so that no rank waits for another.
    """

    def __init__(self, exchange: Exchange, window: int) -> None:
        self._exchange, self._window = exchange, window
        self._problem: str | None = None

    def run(self, step: Callable[..., Result], *arguments: Any) -> Result | None:
        """None on other ranks, and after a problem."""
        if self._exchange.rank != 0 or self._problem is not None:
            return None
        try:
            return step(*arguments)
        except AuditError as error:
            self._problem = str(error)
        except Exception as error:
            self._problem = (
                f"window {self._window} cannot be computed again in one process: {type(error).__name__}: {error}; it "
                "is computed in float64, and then in the dtype of the run"
            )
        return None

    def raise_together(self) -> None:
        found = self._exchange.from_first(self._problem)
        if found is not None:
            raise AuditError(found)


def audited(window: RankWindow, exchange: Exchange) -> dict[str, Any]:
    """`window`, `verdict`, `seen` and `notes`, the same on every rank. Raises AuditError on every rank alike."""
    message = b""
    try:
        message = message_of(window.recorder.complete)
        own = told(window.recorder, window.between, window.compared, message, window.not_compared)
    except Exception as error:
        own = {"problem": f"what it recorded cannot be told to other ranks: {type(error).__name__}: {error}"}
    of_ranks = exchange.of_all(own, window.number)
    name = type(window.module).__name__
    facts = facts_of(of_ranks, window.accumulation, window.previous_units, window.number, name)
    seen = seen_in(of_ranks)
    notes = notes_of(of_ranks)
    if seen.doubts:
        verdict = asdict(not_comparable(f"window {window.number}", facts.told_units_per_rank, seen.doubts))
    else:
        verdict, narrow = _judged(window, exchange, of_ranks, facts, seen, message)
        notes += [f"torch has no {name} in float64, so it is computed in the dtype of the run" for name in narrow]
    notes += notes_of_causes(seen, verdict["outcome"])
    return {"window": window.number, "verdict": verdict, "seen": described(of_ranks), "notes": notes}


def _judged(
    window: RankWindow, exchange: Exchange, of_ranks: Told, facts: WindowFacts, seen: Seen, message: bytes
) -> tuple[dict[str, Any], list[str]]:
    """The verdict, and what was not computed in float64."""
    messages = exchange.to_first(message, [of_rank["bytes"] for of_rank in of_ranks])
    whole = {key: _whole(weight) for key, weight in window.recorder.weights().items()}
    first = First(exchange, window.number)
    found = first.run(_recomputed, window, whole, messages, of_ranks, facts, seen)
    first.raise_together()
    factors = _factors(window)
    for name, parameter in window.compared.items():
        gradient = None if parameter.grad is None else _whole(parameter.grad.detach())
        if found is not None:
            first.run(found[0].take, name, gradient, factors.get(id(parameter), 1.0))
    verdict = first.run(_verdict, window, facts, *(found or (None, None)))
    first.raise_together()
    of_all, narrow = exchange.from_first([verdict, found[0].narrow if found is not None else []])
    return of_all, narrow


def _verdict(window: RankWindow, facts: WindowFacts, comparison: Comparison, seen: Seen) -> dict[str, Any]:
    compared = comparison.result(window.recorder.left_over, _undone(window))
    verdict = judge(f"window {window.number}", facts, compared, seen, window.tolerances)
    if verdict.outcome == FAIL and not verdict.diagnosis and window.communication_hooks:
        reason = (
            f"no known mistake explains the gradient, which passed the communication hook "
            f"{', '.join(window.communication_hooks)}: that may have changed it, so leave it out for the audit"
        )
        verdict = replace(verdict, outcome=INCONCLUSIVE, criterion=f"{verdict.criterion}; {reason}")
    return asdict(verdict)


def _recomputed(
    window: RankWindow,
    whole: Mapping[int, torch.Tensor],
    messages: Sequence[bytes],
    of_ranks: Told,
    facts: WindowFacts,
    seen: Seen,
) -> tuple[Comparison, Seen]:
    """On rank 0. The copies in float64 are gone before the second pass begins."""
    recorded = {
        (rank, index): one for rank, message in enumerate(messages) for index, one in enumerate(recorded_in(message))
    }
    names = {id(parameter): name for name, parameter in window.compared.items()}
    again = Window(window.module, window.loss_sum, recorded, names, whole)
    with alone():
        exact = in_float64(again)
        native = in_training_dtype(again, float(facts.total))
    doubt = _doubt(again, exact, native, of_ranks)
    if doubt and not EXPLAINING & set(seen.causes):
        seen = replace(seen, doubts=(doubt,))
    return Comparison(exact, native.gradients, float(facts.total)), seen


def _doubt(again: Window, exact: Replayed, native: Replayed, of_ranks: Told) -> str | None:
    in_run = {place: of_ranks[place[0]]["microbatches"][place[1]]["loss_sum"] for place in again.recorded}
    place = not_reproduced(again, in_run, exact, native)
    if place is None and not all(bool(torch.isfinite(one).all()) for one in native.gradients.values()):
        return "the gradient is not finite when it is computed in one process either: audit a run that has not diverged"
    if place is None:
        return None
    rank, index = place
    if not math.isfinite(in_run[place]):
        return (
            f"the loss sum of microbatch {index + 1} of rank {rank} is {in_run[place]} in the run itself: audit a run "
            "that has not diverged"
        )
    return (
        f"the loss sum of microbatch {index + 1} of rank {rank} was {in_run[place]:.6g} in the run and is "
        f"{native.sums[place]:.6g} when it is computed again, {exact.sums[place]:.6g} in float64: something random or "
        "a state is not replayed; switch it off for the audit (dropout: model.eval())"
    )


def _counted(parameters: int) -> str:
    return "1 parameter" if parameters == 1 else f"{parameters} parameters"


def _factors(window: RankWindow) -> dict[int, float]:
    """By how much each parameter's gradient is shorter or longer than what the optimizer will apply, by id: clipping
    has shortened it, and a fused optimizer undoes a gradient scaler's scale itself.
    """
    factors = shortened(_of_whole_window(window))
    scale = getattr(window.optimizer, "grad_scale", None)
    if scale is not None:
        factors = {id(one): factors.get(id(one), 1.0) * float(scale) for one in window.compared.values()}
    return factors


def _of_whole_window(window: RankWindow) -> list[Clipping]:
    """What is clipped before a window is complete does not shorten all of it."""
    return [one for one in window.between.clippings if one.after >= len(window.recorder.complete)]


def _undone(window: RankWindow) -> list[Undone]:
    """Those that shortened something that is compared, each with what others had done before."""
    names = {id(parameter): name for name, parameter in window.compared.items()}
    found: list[Undone] = []
    before: list[Clipping] = []
    for one in _of_whole_window(window):
        lengths = {names[key]: length for key, length in one.lengths.items() if key in names}
        if lengths and one.factor < 1.0:
            earlier = {names[key]: factor for key, factor in shortened(before).items() if key in names}
            found.append(Undone(list(lengths), one.max_norm, math.hypot(*lengths.values()), earlier))
        before.append(one)
    return found


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks together, where it is sharded."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return local(full)
