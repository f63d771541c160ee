"""How long training takes until it gets a given share of its own rows right, on one process and on two."""

import logging
from collections import deque
from collections.abc import Mapping
from time import perf_counter

import torch.distributed as dist

from ddp_tokens.distributed import barrier, within
from ddp_tokens.loads import plan_for
from ddp_tokens.measured_loop import Loop, Measured, Record
from ddp_tokens.metrics import counted_in
from ddp_tokens.scaling import counted
from ddp_tokens.scaling_rows import STRONG
from ddp_tokens.workloads import counter

log = logging.getLogger(__name__)


def time_to_accuracy(of: Measured, groups: Mapping[int, dist.ProcessGroup]) -> list[Record]:
    """One record per run: `scaling.repeats` rounds, in each of which every number of processes of `groups` starts from
    the initial weights. None where the workload does not count what is right. Ranks that have no part wait.
    """
    if counter(of.workload) is None:
        return []
    found = []
    for repeat in range(1, of.experiment.scaling.repeats + 1):
        for processes in sorted(groups, reverse=repeat % 2 == 0):
            of.wait_for_all()
            if of.world.rank < processes:
                found.append({"processes": processes, "repeat": repeat} | _run(of, processes, groups[processes]))
    return sorted(found, key=lambda record: (record["processes"], record["repeat"]))


def _run(of: Measured, processes: int, group: dist.ProcessGroup) -> Record:
    """Every rank sees the same global records, and so stops at the same update."""
    scaling, loop = of.experiment.scaling, Loop.of(of, processes, group)
    plan = plan_for(STRONG, of.prepared.plan, processes)
    last: deque[Record] = deque(maxlen=min(scaling.windows, len(plan)))
    with within(group):
        barrier()
        begun = perf_counter()
        updates = loop.updates(plan)
        for record in updates:
            last.append(record)
            accuracy = sum(one["correct"] for one in last) / sum(map(counted_in, last))
            reached = len(last) == last.maxlen and accuracy >= scaling.accuracy
            if reached:
                break
        seconds = perf_counter() - begun
        updates.close()
    log.info("%s: accuracy %.3f after %d updates, %.1f s", counted(processes), accuracy, record["step"], seconds)
    return {"reached": reached, "accuracy": accuracy, "updates": record["step"], "seconds": seconds}
