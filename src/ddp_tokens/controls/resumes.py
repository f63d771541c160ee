"""Resumes and replicas with one thing wrong in each, composed from the functions that a right run uses.

Every variant begins as a new process would: it seeds, builds the model with the initial weights, wraps it and builds
the optimizer, and only then loads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ddp_tokens.checkpoint import TrainingState, load
from ddp_tokens.checkpoint_files import COMMON
from ddp_tokens.config import Cosine, Experiment
from ddp_tokens.controls import alterations
from ddp_tokens.controls.given import Given, interrupted_again, three_runs
from ddp_tokens.controls.resume_cases import SHARED, of_world_size
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.determinism import seed_rank
from ddp_tokens.distributed import barrier
from ddp_tokens.files import read_json, sha256, write_json_lines
from ddp_tokens.generators import read_generators, restore_generators
from ddp_tokens.inputs import read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.start_files import SCALER, SCHEDULE
from ddp_tokens.train import run_identity
from ddp_tokens.world import World

PERTURBATION = 2.0**-10
# given, the interrupted checkpoint, where the variant's results go
Variant = Callable[[Given, Path, Layout], None]


def run_all(experiment: Experiment, source: Layout, into: Callable[[str], Layout], world: World) -> None:
    """Every rank calls this, inside a process group. `source`: a prepared experiment with its initial weights.

    Leaves the interrupted and the continuous run below into(SHARED), and each variant's runs below into(its name).
    """
    identity = run_identity(experiment, source)
    given = Given(experiment, read_prepared(experiment, source), source.initial, identity, world)
    shared = into(SHARED)
    given.finish(given.begun(), shared.run("interrupt"), experiment.interrupt_at)
    given.finish(given.begun(), shared.run("continuous"))
    interrupted = shared.checkpoint("interrupt", experiment.interrupt_at)
    for case in of_world_size(world.size):
        VARIANTS[case.name](given, interrupted, into(case.name))


def resumed_once(given: Given, interrupted: Path, at: Layout) -> None:
    given.finish(given.resumed(interrupted), at.run("resume"))


def resumed_twice(given: Given, interrupted: Path, at: Layout) -> None:
    given.finish(given.resumed(interrupted_again(given, interrupted, at)), at.run("resume"))


def resumed_with_adamw(given: Given, interrupted: Path, at: Layout) -> None:
    """Two moments and a count of updates for each parameter."""
    three_runs(replace(given, alter=alterations.with_adamw), at)


def resumed_without_dropout(given: Given, interrupted: Path, at: Layout) -> None:
    settings = given.experiment.model_copy(update={"model": given.experiment.model.model_copy(update={"dropout": 0.0})})
    three_runs(replace(given, experiment=settings), at)


def resumed_in_float64(given: Given, interrupted: Path, at: Layout) -> None:
    three_runs(replace(given, alter=alterations.in_float64), at)


def resumed_with_tied_weights(given: Given, interrupted: Path, at: Layout) -> None:
    """The head's weights are the embedding's: one tensor under two names."""
    three_runs(replace(given, alter=alterations.with_tied_weights), at)


def resumed_with_batch_norm(given: Given, interrupted: Path, at: Layout) -> None:
    three_runs(replace(given, alter=alterations.with_batch_norm), at)


def resumed_with_cosine_schedule(given: Given, interrupted: Path, at: Layout) -> None:
    three_runs(_scheduled(given), at)


def resumed_with_loss_scale(given: Given, interrupted: Path, at: Layout) -> None:
    three_runs(_scaled(given), at)


def generators_not_restored(given: Given, interrupted: Path, at: Layout) -> None:
    """The generators stay where a new run's stand once its model is built."""
    begun = given.begun()
    of_a_new_run = read_generators(given.world.device)
    load(interrupted, begun.state, given.identity, given.world)
    restore_generators(of_a_new_run)
    given.finish(begun, at.run("resume"))


def only_seed_restored(given: Given, interrupted: Path, at: Layout) -> None:
    """The seed is kept instead of the states: every generator starts its stream again."""
    begun = given.resumed(interrupted)
    seed_rank(given.experiment.seed, given.world.rank)
    given.finish(begun, at.run("resume"))


def restored_before_a_skip_that_draws(given: Given, interrupted: Path, at: Layout) -> None:
    """The windows done so far are skipped through a loader, whose iterator draws a base seed as DataLoader's does."""
    begun = given.resumed(interrupted)
    for _ in range(begun.state.step):
        torch.empty((), dtype=torch.int64).random_()
    given.finish(begun, at.run("resume"))


def momentum_lost(given: Given, interrupted: Path, at: Layout) -> None:
    begun = given.resumed(interrupted)
    begun.state.optimizer.state.clear()
    given.finish(begun, at.run("resume"))


def schedule_lost(given: Given, interrupted: Path, at: Layout) -> None:
    """The schedule that a new process has built is never loaded; the optimizer has the right rate at first."""
    three_runs(_scheduled(given), at, forgotten=SCHEDULE)


def scaler_lost(given: Given, interrupted: Path, at: Layout) -> None:
    """The scale is the first one again, although it has overflowed and was lowered before the interruption."""
    three_runs(_scaled(given), at, forgotten=SCALER)


def position_off_by_one(given: Given, interrupted: Path, at: Layout) -> None:
    """Every update takes the window of the next one; the last takes the first."""
    plan = given.prepared.plan
    shifted = replace(given, prepared=replace(given.prepared, plan=plan[1:] + plan[:1]))
    shifted.finish(given.resumed(interrupted), at.run("resume"))


def position_reset(given: Given, interrupted: Path, at: Layout) -> None:
    """The first update after the resume takes the first window."""
    begun, plan = given.resumed(interrupted), given.prepared.plan
    again = replace(given, prepared=replace(given.prepared, plan=plan[: begun.state.step] + plan))
    again.finish(begun, at.run("resume"))


def another_corpus(given: Given, interrupted: Path, at: Layout) -> None:
    """Other labels under the same row ids. Nobody compares identities; the run records its own."""
    classes = given.prepared.shape.classes
    rows = {row.id: _relabelled(row, classes) for row in given.prepared.rows.values()}
    if given.world.is_main:
        write_json_lines(at.rows, (row.record() for row in rows.values()))
    barrier()
    other = replace(
        given,
        prepared=replace(given.prepared, rows=rows),
        identity={**given.identity, "rows.jsonl": sha256(at.rows)},
    )
    begun = other.begun()
    load(interrupted, begun.state, read_json(interrupted / COMMON)["identity"], given.world)
    other.finish(begun, at.run("resume"))


def rank_files_swapped(given: Given, interrupted: Path, at: Layout) -> None:
    """Each rank loads the files of the rank after it."""
    begun, world = given.begun(), given.world
    load(interrupted, begun.state, given.identity, replace(world, rank=(world.rank + 1) % world.size))
    given.finish(begun, at.run("resume"))


def history_not_continued(given: Given, interrupted: Path, at: Layout) -> None:
    """At a second resume the histories start anew, while updates are counted apart from them."""
    begun = given.resumed(interrupted_again(given, interrupted, at))
    state = CountedApart(begun.state.model, begun.state.optimizer, before=begun.state.step)
    given.finish(replace(begun, state=state), at.run("resume"))


def default_bucket_layout(given: Given, interrupted: Path, at: Layout) -> None:
    """Without what wrap_for_ddp asks of DDP."""
    three_runs(replace(given, alter=alterations.with_default_layout), at)


def replicas_kept_equal(given: Given, interrupted: Path, at: Layout) -> None:
    given.finish(given.begun(), at.run("continuous"))


def replicas_with_batch_norm(given: Given, interrupted: Path, at: Layout) -> None:
    replicas_kept_equal(replace(given, alter=alterations.with_batch_norm), interrupted, at)


def buffers_kept_apart(given: Given, interrupted: Path, at: Layout) -> None:
    """DDP is told not to send rank 0's buffers: each rank keeps the running statistics of its own rows."""
    replicas_kept_equal(replace(given, alter=alterations.with_buffers_kept_apart), interrupted, at)


def weights_perturbed_after_wrapping(given: Given, interrupted: Path, at: Layout) -> None:
    """DDP sends rank 0's weights to all ranks when it wraps a model; what changes after stays different."""
    begun = given.begun()
    if given.world.rank == 1:
        with torch.no_grad():
            for parameter in begun.state.model.parameters():
                parameter.add_(PERTURBATION)
    given.finish(begun, at.run("continuous"))


def all_reduce_skipped_in_training(given: Given, interrupted: Path, at: Layout) -> None:
    """Each rank follows its own gradient."""
    begun = given.begun()
    with begun.model.no_sync():
        given.finish(begun, at.run("continuous"))


VARIANTS: Mapping[str, Variant] = {
    **{
        variant.__name__: variant
        for variant in (
            resumed_once,
            resumed_twice,
            resumed_with_adamw,
            resumed_without_dropout,
            resumed_in_float64,
            resumed_with_tied_weights,
            resumed_with_batch_norm,
            resumed_with_cosine_schedule,
            resumed_with_loss_scale,
            generators_not_restored,
            only_seed_restored,
            restored_before_a_skip_that_draws,
            momentum_lost,
            schedule_lost,
            scaler_lost,
            position_off_by_one,
            position_reset,
            another_corpus,
            rank_files_swapped,
            history_not_continued,
            replicas_kept_equal,
            replicas_with_batch_norm,
            buffers_kept_apart,
            weights_perturbed_after_wrapping,
            all_reduce_skipped_in_training,
            default_bucket_layout,
        )
    },
    **{f"resumed_once_on_{size}_ranks": resumed_once for size in (3, 4)},
    **{f"resumed_twice_on_{size}_ranks": resumed_twice for size in (3, 4)},
}


@dataclass
class CountedApart(TrainingState):
    """Counts its updates apart from its records: records that are lost do not move the position in the plan."""

    before: int = 0

    @property
    def step(self) -> int:
        return self.before + len(self.history)


def _scheduled(given: Given) -> Given:
    return replace(given, experiment=given.experiment.model_copy(update={"schedule": Cosine(per="update")}))


def _scaled(given: Given) -> Given:
    """float16 on the CPU."""
    mixed = given.experiment.model_copy(update={"use_amp": True, "amp_dtype": "float16"})
    return replace(given, experiment=mixed, alter=alterations.with_large_loss_scale)


def _relabelled(row: Row, classes: int) -> Row:
    labels = tuple(label if label == UNSUPERVISED else (label + 1) % classes for label in row.labels)
    return replace(row, labels=labels)
