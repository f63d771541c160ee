"""Train one run of an experiment: interrupt (by default), continuous, or resume.

Started once per rank: torchrun --standalone --nproc-per-node=W -m ddp_tokens.train --config EXPERIMENT.yaml
"""

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from ddp_tokens.checkpoint import TrainingState, load, save
from ddp_tokens.config import Experiment
from ddp_tokens.determinism import make_deterministic, seed_rank
from ddp_tokens.distributed import barrier, claim_device, process_group, wrap_for_ddp
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import sha256, write_json_lines
from ddp_tokens.generators import read_generators
from ddp_tokens.guard import require_proven
from ddp_tokens.identity import NOTHING, Allowed, add_flags, allowed_by, told
from ddp_tokens.inputs import Prepared, initial_model, read_prepared, require_initial
from ddp_tokens.layout import Layout, checkpoint_name
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.progress import WrittenProgress, launch_name
from ddp_tokens.rank_failure import Watch, checkpoint_finder, explaining, watched
from ddp_tokens.rank_log import RankLog
from ddp_tokens.start import StartRecord, take_start, write_start
from ddp_tokens.steps import code_of_training, dump
from ddp_tokens.tensors import save_tensors, weights_of
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.workloads import Workload
from ddp_tokens.workloads import load as load_workload
from ddp_tokens.world import World, world_from_environment

PROGRAM = "ddp_tokens.train"
NOT_IDENTITY = ("interrupt_at", "launcher", "name", "timeout_s", "train_anyway")
LINES_EVERY = 10
log = logging.getLogger(PROGRAM)


def main(arguments: Sequence[str]) -> int:
    experiment, at, own = parse(PROGRAM, arguments, _run_name, _add_arguments, __doc__)
    allowed = allowed_by(own)
    world = claim_device(
        world_from_environment(os.environ, experiment.device, experiment.world_size), experiment.resolved_backend
    )
    logging.basicConfig(level=logging.INFO if world.is_main else logging.ERROR, format="%(message)s", stream=sys.stderr)
    for warning in require_proven([at.check("loss"), at.check("gradient_parity")], experiment.train_anyway):
        log.warning("warning: %s", warning)
    make_deterministic(experiment.threads_per_rank)
    run_training(experiment, at, world, _run_name(own), own.resume, allowed)
    return 0


def run_training(
    experiment: Experiment, at: Layout, world: World, run: str, resume: Path | None, allowed: Allowed = NOTHING
) -> None:
    """Write runs/RUN/: a checkpoint at the last update, the global history, and per rank what it started from, its
    history and its parameters.
    """
    prepared = read_prepared(experiment, at, allowed.repartition)
    require_initial(at.initial)
    identity = run_identity(experiment, at)
    until = experiment.interrupt_at if run == "interrupt" else experiment.steps
    watch = Watch(
        at.rank_logs(run),
        world,
        launch_name(os.environ),
        PROGRAM,
        checkpoint_finder(at.run(run).parent, identity, until),
    )
    with (
        watched(watch) as progress,
        process_group(experiment.resolved_backend, experiment.timeout_s, progress),
        explaining(watch, progress),
    ):
        state, start, identity = _train_until(
            until, experiment, at, prepared, world, resume, identity, allowed, progress
        )
        write_run(at.run(run), state, start, identity, world)


@dataclass(frozen=True)
class Begun:
    """A new process's model and state. `when_seeded`: digests of the generators before the model was built."""

    workload: Workload
    model: DistributedDataParallel
    state: TrainingState
    when_seeded: Mapping[str, str]


def begin(experiment: Experiment, prepared: Prepared, initial: Path, world: World) -> Begun:
    """Every rank calls this: seed, build the model with the weights of `initial`, wrap it, build the optimizer."""
    workload = load_workload(experiment.workload)
    seed_rank(experiment.seed, world.rank)
    when_seeded = read_generators(world.device).digests
    bare = initial_model(experiment, workload, prepared.shape, initial, world.device, torch.float32)
    model = wrap_for_ddp(bare, world)
    return Begun(workload, model, TrainingState(bare, build_optimizer(model, experiment.optimizer)), when_seeded)


def _train_until(
    until: int,
    experiment: Experiment,
    at: Layout,
    prepared: Prepared,
    world: World,
    resume: Path | None,
    identity: dict[str, Any],
    allowed: Allowed,
    progress: WrittenProgress,
) -> tuple[TrainingState, StartRecord, dict[str, Any]]:
    """The last is the identity of the run from here on, see checkpoint.load."""
    begun = begin(experiment, prepared, at.initial, world)
    state = begun.state
    if resume is not None:
        identity = load(resume, state, identity, world, allowed)
        for line in told(identity):
            log.warning("warning: not an exact run, %s", line)
        if state.step >= until:
            raise CheckpointError(f"{resume} is at update {state.step}, so nothing is left to do up to {until}")
    start = take_start(state, begun.when_seeded, world)
    clip_norm = experiment.optimizer.clip_norm
    updates = train(begun.model, state, begun.workload, prepared.plan, prepared.rows, world, until, clip_norm, progress)
    rank_log = RankLog(progress.path.parent, world.rank, state.step, world.size)
    for record in tqdm(updates, total=until, initial=state.step, disable=None if world.is_main else True):
        rank_log.update(record, state.rank_history[-1], progress)
        if record["step"] % LINES_EVERY == 0 or record["step"] == until:
            log.info("update %d of %d: loss %.4f over %d units", record["step"], until, record["loss"], record["units"])
    return state, start, identity


def write_run(
    directory: Path, state: TrainingState, start: StartRecord, identity: Mapping[str, Any], world: World
) -> None:
    """Every rank calls this. What an earlier run left in the directory goes once the new checkpoint is on disk."""
    checkpoint = directory / checkpoint_name(state.step)
    save(checkpoint, state, identity, world)
    ranks = directory / "ranks"
    if world.is_main:
        for old in [*directory.glob("step-*"), ranks]:
            if old != checkpoint:
                shutil.rmtree(old, ignore_errors=True)
        write_json_lines(directory / "history.jsonl", state.history)
    barrier()
    write_start(ranks, start, world.rank)
    write_json_lines(ranks / f"rank-{world.rank}.jsonl", state.rank_history)
    save_tensors(ranks / f"state-rank-{world.rank}.safetensors", weights_of(state.model))


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
