"""Valid tokens per second of the training loop and of a bare hand-written DDP loop, in turn on the same windows.

python -m ddp_tokens.launch --nproc-per-node=2 -m benchmarks.loop --config config/minimum.yaml

Needs `prepare` and `reference`. Each round trains both loops over the same block of windows; the order alternates.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Experiment
from ddp_tokens.determinism import make_deterministic, seed_rank
from ddp_tokens.distributed import process_group, wrap_for_ddp
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.options import parse
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.workloads import load
from ddp_tokens.world import World, world_from_environment

ROUNDS = 16
WINDOWS = 25


def main(arguments: Sequence[str]) -> int:
    experiment, at, _ = parse("benchmarks.loop", arguments, "interrupt")
    world = world_from_environment(os.environ, experiment.device, experiment.world_size)
    make_deterministic(experiment.threads_per_rank)
    seed_rank(experiment.seed, world.rank)
    prepared = read_prepared(experiment, at)
    with process_group(experiment.resolved_backend, experiment.timeout_s):
        seconds = time_both(experiment, at, prepared, world)
    if world.is_main:
        report(seconds, tokens_per_round(prepared))
    return 0


def time_both(experiment: Experiment, at: Layout, prepared: Prepared, world: World) -> dict[str, list[float]]:
    loops = {"ours": our_loop(experiment, at, prepared, world), "bare": bare_loop(experiment, at, prepared, world)}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():
        loop(range(1, 6))
    for index in range(ROUNDS):
        first = 1 + index * WINDOWS % (len(prepared.plan) - WINDOWS + 1)
        for name in list(loops)[:: 1 if index % 2 else -1]:
            seconds[name].append(timed(loops[name], range(first, first + WINDOWS)))
    return seconds


def timed(loop: Callable[[range], None], steps: range) -> float:
    dist.barrier()
    start = time.perf_counter()
    loop(steps)
    dist.barrier()
    return time.perf_counter() - start


def our_loop(experiment: Experiment, at: Layout, prepared: Prepared, world: World) -> Callable[[range], None]:
    workload = load(experiment.workload)
    bare = initial_model(experiment, workload, prepared.shape, at.initial, world.device, torch.float32)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, experiment.optimizer))

    def run(steps: range) -> None:
        state.history[:] = [{}] * (steps.start - 1)
        for _ in train(model, state, workload, prepared.plan, prepared.rows, world, steps.stop - 1):
            pass

    return run


def bare_loop(experiment: Experiment, at: Layout, prepared: Prepared, world: World) -> Callable[[range], None]:
    """The exact formula, and nothing else: no history, no record, torch's default algorithms."""
    workload = load(experiment.workload)
    bare = initial_model(experiment, workload, prepared.shape, at.initial, world.device, torch.float32)
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.optimizer.lr, momentum=experiment.optimizer.momentum)
    rows = {row_id: (torch.tensor(row.tokens), torch.tensor(row.labels)) for row_id, row in prepared.rows.items()}

    def run(steps: range) -> None:
        torch.use_deterministic_algorithms(False)
        model.train()
        for step in steps:
            microbatches = prepared.plan[step - 1][world.rank]
            count = torch.tensor(sum(len(rows[row_id][1]) for ids in microbatches for row_id in ids))
            dist.all_reduce(count)
            optimizer.zero_grad(set_to_none=True)
            for index, ids in enumerate(microbatches):
                tokens = pad_sequence([rows[row_id][0] for row_id in ids], batch_first=True)
                labels = pad_sequence([rows[row_id][1] for row_id in ids], batch_first=True, padding_value=-100)
                with nullcontext() if index == len(microbatches) - 1 else model.no_sync():
                    logits = model(tokens, labels == -100)
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
                    (loss * world.size / count).backward()
            optimizer.step()
        torch.use_deterministic_algorithms(True)

    return run


def tokens_per_round(prepared: Prepared) -> list[int]:
    counts = [
        sum(len(prepared.rows[row_id].labels) for of_rank in window for ids in of_rank for row_id in ids)
        for window in prepared.plan
    ]
    starts = [index * WINDOWS % (len(counts) - WINDOWS + 1) for index in range(ROUNDS)]
    return [sum(counts[start : start + WINDOWS]) for start in starts]


def report(seconds: dict[str, list[float]], tokens: list[int]) -> None:
    for name, times in seconds.items():
        speeds = [count / taken for count, taken in zip(tokens, times, strict=True)]
        print(f"{name}: {statistics.median(speeds):,.0f} tokens/s ({min(speeds):,.0f} to {max(speeds):,.0f})")
    ratios = [bare / ours for ours, bare in zip(seconds["ours"], seconds["bare"], strict=True)]
    print(f"ours / bare: median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
