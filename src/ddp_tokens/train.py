"""Train one run of an experiment: interrupt (by default), continuous, or resume.

Started once per rank: torchrun --standalone --nproc-per-node=W -m ddp_tokens.train --config EXPERIMENT.yaml
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddp_tokens.agreement import Attempt, File, describe, input_files, require_agreement
from ddp_tokens.checkpoint import TrainingState, load
from ddp_tokens.checkpoint_files import require_folder
from ddp_tokens.config import Experiment
from ddp_tokens.determinism import make_deterministic, seed_rank
from ddp_tokens.disagreement import CHECKPOINT
from ddp_tokens.distributed import agreed_launch, claim_device, largest_over_ranks, process_group
from ddp_tokens.errors import CheckpointError
from ddp_tokens.event_files import require_tensorboard
from ddp_tokens.files import sha256, write_json
from ddp_tokens.generators import read_generators
from ddp_tokens.guard import require_proven
from ddp_tokens.identity import NOTHING, Allowed, add_flags, allowed_by, told
from ddp_tokens.imported import imported_file, imported_versions
from ddp_tokens.inputs import Prepared, initial_model, read_prepared, require_initial
from ddp_tokens.layout import Layout
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.plan import BY_EPOCH, planned_steps
from ddp_tokens.progress import WrittenProgress
from ddp_tokens.rank_failure import Watch, checkpoint_finder, explaining, watched
from ddp_tokens.run_files import write_run
from ddp_tokens.start import StartRecord, take_start
from ddp_tokens.steps import code_of, code_of_training, dump
from ddp_tokens.stopping import Stop, Stopped, end_on_signals, stop_on_signals
from ddp_tokens.strategies import wrap
from ddp_tokens.telling import Telling
from ddp_tokens.trainer import How, build_optimizer, how_of, state_of, train
from ddp_tokens.training_log import Course, log_on_terminal, logged_in, text_log
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.working import Working, digest_of_manifest, running_alone, working_key
from ddp_tokens.workloads import Workload, unit_of
from ddp_tokens.workloads import load as load_workload
from ddp_tokens.world import World, require_size, world_from_environment

PROGRAM = "ddp_tokens.train"
NOT_IDENTITY = (
    "checkpoint_every",
    "epochs",
    "interrupt_at",
    "keep",
    "launcher",
    "log_interval",
    "name",
    "profile",
    "save_every",
    "tensorboard",
    "timeout_s",
    "train_anyway",
    "workers",
)
log = logging.getLogger(PROGRAM)


def main(arguments: Sequence[str]) -> int:
    experiment, at, own = parse(PROGRAM, arguments, _run_name, _add_arguments, __doc__)
    allowed = allowed_by(own)
    stop = Stop()
    end_on_signals()
    end_with(starters_of_rank(os.environ), first=stop.orphaned)
    world = claim_device(
        world_from_environment(os.environ, experiment.device, experiment.world_size), experiment.resolved_backend
    )
    log_on_terminal(world.is_main)
    run = _run_name(own)
    with logged_in(text_log(at.rank_logs(run), world.rank)):
        make_deterministic(experiment.threads_per_rank)
        stopped = run_training(experiment, at, world, run, own.resume, stop, allowed)
        if stopped is None:
            return 0
        log.info("%s: %s", PROGRAM, stopped.sentence)
        return stopped.exit_code


def run_training(
    experiment: Experiment,
    at: Layout,
    world: World,
    run: str,
    resume: Path | None,
    stop: Stop | None = None,
    allowed: Allowed = NOTHING,
) -> Stopped | None:
    """Write runs/RUN/: a checkpoint at the last update, the global history, and per rank what it started from, its
    history and its parameters. None when that is done, else where a wish to stop, of any rank, has ended the run.
    """
    ready = Attempt(partial(read_ready, experiment, at, world, run, resume, allowed))
    asked = {"run": run} | {f"--allow-{name}": value for name, value in vars(allowed).items()}
    document = describe(PROGRAM, run, experiment, ready, asked)
    stop = stop or Stop()
    finder = ready.value.newest_checkpoint if ready.value else None
    launch = agreed_launch(os.environ, experiment.timeout_s)
    watch = Watch(at.rank_logs(run), world, launch, os.environ["MASTER_ADDR"], PROGRAM, finder)
    with (
        watched(watch) as progress,
        process_group(experiment.resolved_backend, experiment.timeout_s, progress),
        explaining(watch, progress),
    ):
        require_agreement(world, at, document)
        of = ready.result()
        with running_alone(at.run_lock(run), at.run(run), world, experiment.timeout_s), stop_on_signals(stop):
            stopped = _run(run, of.until, of.experiment, at, of.prepared, of.working, resume, stop, allowed, progress)
    if world.is_main:
        write_json(imported_file(at.rank_logs(run)), imported_versions(sys.modules))
    return stopped


@dataclass(frozen=True)
class Ready:
    """What one rank has read before the ranks meet."""

    experiment: Experiment
    prepared: Prepared
    until: int
    working: Working
    newest_checkpoint: Callable[[], Path | None]


def read_ready(
    experiment: Experiment, at: Layout, world: World, run: str, resume: Path | None, allowed: Allowed
) -> tuple[Ready, dict[str, File]]:
    """Raises the UserErrors that one rank can find by itself."""
    require_size(world, experiment.world_size)
    require_tensorboard(experiment.tensorboard)
    for warning in require_proven([at.check("loss"), at.check("gradient_parity")], experiment.train_anyway):
        log.warning("warning: %s", warning)
    if resume is not None:
        require_folder(resume)
    if allowed.repartition and experiment.epochs is not None:
        experiment = experiment.model_copy(update={"steps": planned_steps(at.plan)})
    prepared = read_prepared(experiment, at, allowed.repartition).for_ranks_of(experiment.strategy)
    require_initial(at.initial)
    identity = run_identity(experiment, at)
    until = experiment.interrupt_at if run == "interrupt" else experiment.steps
    key = working_key(run, until, identity, world, code_of(experiment, run), resume)
    windows = windows_of_epoch(experiment, prepared)
    every = experiment.save_every * windows if windows and experiment.save_every else experiment.checkpoint_every
    working = Working(at.working(run, key), every, experiment.keep, identity, world)
    files = input_files(at, identity) | ({CHECKPOINT: File(resume, digest_of_manifest(resume))} if resume else {})
    return Ready(experiment, prepared, until, working, checkpoint_finder(working.folder, identity, until)), files


@dataclass(frozen=True)
class Begun:
    """A new process's model and state. `when_seeded`: digests of the generators before the model was built."""

    workload: Workload
    model: torch.nn.Module
    state: TrainingState
    when_seeded: Mapping[str, str]
    how: How


def begin(experiment: Experiment, prepared: Prepared, initial: Path, world: World) -> Begun:
    """Every rank calls this: seed, build the model with the weights of `initial`, wrap it, build the optimizer."""
    workload = load_workload(experiment.workload)
    seed_rank(experiment.seed, world.rank)
    when_seeded = read_generators(world.device).digests
    bare = initial_model(experiment, workload, prepared.shape, initial, world.device, torch.float32)
    model = wrap(bare, experiment.strategy)
    optimizer = build_optimizer(model, experiment.optimizer, experiment.strategy)
    how = how_of(experiment, optimizer, prepared.windows_per_epoch, world.device)
    return Begun(workload, model, state_of(bare, optimizer, how), when_seeded, how)


def _run(
    run: str,
    until: int,
    experiment: Experiment,
    at: Layout,
    prepared: Prepared,
    working: Working,
    resume: Path | None,
    stop: Stop,
    allowed: Allowed,
    progress: WrittenProgress,
) -> Stopped | None:
    begun = begin(experiment, prepared, at.initial, working.world)
    start, working = _set_out(begun, working, resume, until, allowed)
    windows = windows_of_epoch(experiment, prepared)
    course = Course(experiment.steps, until, windows, unit_of(begun.workload, next(iter(prepared.rows.values()))))
    with Telling(experiment, at, run, course, begun.state, working.world, progress) as told:
        stopped = _train_until(until, begun, prepared, working, stop, told)
    if stopped is None:
        write_run(at.run(run), begun.state, start, working.identity, working.world, windows)
        working.remove(run)
    return stopped


def _set_out(
    begun: Begun, working: Working, resume: Path | None, until: int, allowed: Allowed
) -> tuple[StartRecord, Working]:
    """Bring the new process to where the run stands. Returns what this rank held when the run was started first, and
    the working checkpoints under the identity that the run has from here on, see checkpoint.load.
    """
    state, identity, world = begun.state, working.identity, working.world
    newest = working.find()
    if newest is not None:
        working = replace(working, identity=load(newest, state, identity, world, allowed))
        log.info("continuing after update %d of %d", state.step, until)
        return working.first_start(), working
    if resume is not None:
        identity = load(resume, state, identity, world, allowed)
        working = replace(working, identity=identity)
        for line in told(identity):
            log.warning("warning: not an exact run, %s", line)
        if state.step >= until:
            raise CheckpointError(f"{resume} is at update {state.step}, so nothing is left to do up to {until}")
        log.info("resuming after update %d of %d, from %s", state.step, until, resume)
    start = take_start(state, begun.when_seeded, world)
    working.keep_start(start)
    return start, working


def _train_until(
    until: int, begun: Begun, prepared: Prepared, working: Working, stop: Stop, told: Telling
) -> Stopped | None:
    state, world = begun.state, working.world
    updates = train(
        begun.model, state, begun.workload, prepared.plan, prepared.rows, world, until, begun.how, told.progress
    )
    for record in told.shown(updates):
        told.update(record)
        wish = largest_over_ranks(stop.signal, world.device)
        if wish:
            return Stopped(wish, state.step, until, working.save(state))
        if working.is_due(state.step, until):
            working.save(state)
    return None


def windows_of_epoch(experiment: Experiment, prepared: Prepared) -> int | None:
    """None where rows are dealt otherwise than by epoch."""
    return prepared.windows_per_epoch(experiment) if experiment.sharding == BY_EPOCH else None


def run_identity(experiment: Experiment, at: Layout) -> dict[str, Any]:
    """What two runs must have in common to be one path: settings, data, order, weights, code, versions, threads."""
    settings = {name: value for name, value in dump(experiment).items() if name not in NOT_IDENTITY}
    files = {"plan.json": sha256(at.plan), "rows.jsonl": sha256(at.rows), "initial.safetensors": sha256(at.initial)}
    code = code_of_training(experiment)
    return settings | files | {"code": code, "torch": torch.__version__, "python": sys.version.split()[0]}


def _run_name(own: argparse.Namespace) -> str:
    if own.continuous:
        return "continuous"
    return "resume" if own.resume else "interrupt"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--continuous", action="store_true", help="train to the last update without stopping")
    which.add_argument(
        "--resume", type=Path, metavar="PATH", help="a checkpoint, e.g. results/EXP/runs/interrupt/step-0050"
    )
    add_flags(parser)


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
