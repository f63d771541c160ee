"""Resumes and replicas with one thing wrong in each, composed from the functions that a right run uses.

Every variant begins as a new process would: it seeds, builds the model with the initial weights, wraps it and builds
the optimizer, and only then loads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.checkpoint import TrainingState, load
from ddp_tokens.checkpoint_files import COMMON
from ddp_tokens.config import Experiment
from ddp_tokens.controls.resume_cases import SHARED, of_world_size, second_interruption
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.determinism import seed_rank
from ddp_tokens.distributed import barrier, wrap_for_ddp
from ddp_tokens.files import read_json, sha256, write_json_lines
from ddp_tokens.generators import read_generators, restore_generators
from ddp_tokens.inputs import Prepared, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.run_files import write_run
from ddp_tokens.start import take_start
from ddp_tokens.train import Begun, begin, run_identity
from ddp_tokens.trainer import train
from ddp_tokens.world import World

PERTURBATION = 2.0**-10
LEARNING_RATE, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Given:
    """What every variant starts from. `identity`: what a checkpoint must agree with. `alter`: what a variant trains in
    place of the experiment's model and optimizer.
    """

    experiment: Experiment
    prepared: Prepared
    initial: Path
    identity: Mapping[str, Any]
    world: World
    alter: Callable[[Begun, World], Begun] = lambda begun, world: begun

    def begun(self) -> Begun:
        return self.alter(begin(self.experiment, self.prepared, self.initial, self.world), self.world)

    def resumed(self, checkpoint: Path) -> Begun:
        """A new process that has loaded the checkpoint, as it should."""
        begun = self.begun()
        load(checkpoint, begun.state, self.identity, self.world)
        return begun

    def finish(self, begun: Begun, run: Path, until: int | None = None) -> None:
        """Train to update `until`, by default the last, and write the run's folder."""
        start = take_start(begun.state, begun.when_seeded, self.world)
        last = self.experiment.steps if until is None else until
        plan, rows = self.prepared.plan, self.prepared.rows
        for _ in train(begun.model, begun.state, begun.workload, plan, rows, self.world, last, begun.how):
            pass
        write_run(run, begun.state, start, self.identity, self.world)


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
    given.finish(given.resumed(_interrupted_again(given, interrupted, at)), at.run("resume"))


def resumed_with_adamw(given: Given, interrupted: Path, at: Layout) -> None:
    """Two moments and a count of updates for each parameter."""
    _three_runs(replace(given, alter=_with_adamw), at)


def resumed_without_dropout(given: Given, interrupted: Path, at: Layout) -> None:
    settings = given.experiment.model_copy(update={"model": given.experiment.model.model_copy(update={"dropout": 0.0})})
    _three_runs(replace(given, experiment=settings), at)


def resumed_in_float64(given: Given, interrupted: Path, at: Layout) -> None:
    _three_runs(replace(given, alter=_in_float64), at)


def resumed_with_tied_weights(given: Given, interrupted: Path, at: Layout) -> None:
    """The head's weights are the embedding's: one tensor under two names."""
    _three_runs(replace(given, alter=_with_tied_weights), at)


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
    begun = given.resumed(_interrupted_again(given, interrupted, at))
    state = CountedApart(begun.state.model, begun.state.optimizer, before=begun.state.step)
    given.finish(replace(begun, state=state), at.run("resume"))


def default_bucket_layout(given: Given, interrupted: Path, at: Layout) -> None:
    """Without what wrap_for_ddp asks of DDP."""
    _three_runs(replace(given, alter=_with_default_layout), at)


def replicas_kept_equal(given: Given, interrupted: Path, at: Layout) -> None:
    given.finish(given.begun(), at.run("continuous"))


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
            generators_not_restored,
            only_seed_restored,
            restored_before_a_skip_that_draws,
            momentum_lost,
            position_off_by_one,
            position_reset,
            another_corpus,
            rank_files_swapped,
            history_not_continued,
            replicas_kept_equal,
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


def _three_runs(given: Given, at: Layout) -> None:
    given.finish(given.begun(), at.run("interrupt"), given.experiment.interrupt_at)
    given.finish(given.begun(), at.run("continuous"))
    interrupted = at.checkpoint("interrupt", given.experiment.interrupt_at)
    given.finish(given.resumed(interrupted), at.run("resume"))


def _with_adamw(begun: Begun, world: World) -> Begun:
    optimizer = torch.optim.AdamW(begun.model.parameters(), lr=LEARNING_RATE, betas=(0.8, 0.9))
    return replace(begun, state=TrainingState(begun.state.model, optimizer))


def _in_float64(begun: Begun, world: World) -> Begun:
    return _wrapped_again(begun, begun.state.model.double(), world)


def _with_tied_weights(begun: Begun, world: World) -> Begun:
    bare: Any = begun.state.model
    bare.head.weight = bare.embedding.weight
    return _wrapped_again(begun, bare, world)


def _with_default_layout(begun: Begun, world: World) -> Begun:
    bare = begun.state.model
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    return replace(begun, model=model, state=TrainingState(bare, optimizer))


def _wrapped_again(begun: Begun, bare: torch.nn.Module, world: World) -> Begun:
    model = wrap_for_ddp(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    return replace(begun, model=model, state=TrainingState(bare, optimizer))


def _interrupted_again(given: Given, interrupted: Path, at: Layout) -> Path:
    """Resume, and stop once more before the end: the checkpoint of the second interruption."""
    until = second_interruption(given.experiment)
    given.finish(given.resumed(interrupted), at.run("interrupt"), until)
    return at.checkpoint("interrupt", until)


def _relabelled(row: Row, classes: int) -> Row:
    labels = tuple(label if label == UNSUPERVISED else (label + 1) % classes for label in row.labels)
    return replace(row, labels=labels)
