"""What an update's time goes to, on each rank: data, forward, backward, communication, optimizer.

Computing and the all-reduce of the gradients overlap in the backward of the window's last microbatch. A communication
hook tells when the rank's last bucket was ready: until then the time is the backward's, from there to the end it is
communication, which nothing hides. Where a model has buffers, forward holds DDP's broadcast of them, waiting included.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch.distributed as dist

from ddp_tokens.all_reduce_times import BucketTimes, time_buckets
from ddp_tokens.distributed import telling, within
from ddp_tokens.loads import plan_for
from ddp_tokens.measured_loop import Loop, Measured, Record, gathered
from ddp_tokens.progress import BACKWARD, COMMUNICATION, REDUCING_BACKWARD, Progress
from ddp_tokens.scaling_rows import PARTS, STRONG

MEASURED = PARTS[:-1]
WARM_UP = 2  # updates: the first waits for the first batch, and DDP lays out its buckets anew


class PartTimes(Progress):
    """`seconds`: of the update under way, by kind. `buckets`: what the model's hook tells."""

    def __init__(self, buckets: BucketTimes) -> None:
        self.buckets = buckets
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def begins_update(self, step: int) -> None:
        self.buckets.clear()
        self.seconds.clear()

    @contextmanager
    def entered(self, collective: str, kind: str = COMMUNICATION) -> Iterator[None]:
        begun = perf_counter()
        yield
        ended = perf_counter()
        if kind != REDUCING_BACKWARD:
            self.seconds[kind] += ended - begun
            return
        computed = max(self.buckets.ready)
        self.seconds[BACKWARD] += computed - begun
        self.seconds[COMMUNICATION] += ended - computed

    @contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        begun = perf_counter()
        yield
        self.seconds[kind] += perf_counter() - begun


def time_parts(of: Measured, processes: int, group: dist.ProcessGroup) -> list[Record]:
    """One record per update and rank, of the experiment's first windows dealt to the first `processes` ranks, on each
    of them; on the others, which wait, none.
    """
    of.wait_for_all()
    if of.world.rank >= processes:
        return []
    plan = plan_for(STRONG, of.prepared.plan, processes)[: WARM_UP + of.experiment.scaling.windows]
    loop = Loop.of(of, processes, group)
    with within(group):
        time = PartTimes(time_buckets(loop.model, group))
        own: list[float] = []
        with telling(time):
            updates = loop.updates(plan, time)
            for _ in plan:
                begun = perf_counter()
                next(updates)
                whole = perf_counter() - begun
                own += [*(time.seconds[part] for part in MEASURED), whole - sum(time.seconds.values())]
        found = gathered(own, loop.world)
    warm_up = min(WARM_UP, len(plan) - 1)
    return [
        {"processes": processes, "step": step, "rank": rank, **_record(numbers[len(PARTS) * (step - 1) :])}
        for step in range(warm_up + 1, len(plan) + 1)
        for rank, numbers in enumerate(found)
    ]


def _record(numbers: list[float]) -> Record:
    return {f"{part}_s": seconds for part, seconds in zip(PARTS, numbers, strict=False)}
