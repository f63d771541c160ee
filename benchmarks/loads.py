"""What does the time of a microbatch follow: its rows, its supervised units, or its padded positions?

python -m benchmarks.loads --config config/grammar.yaml

Needs `prepare` and `reference`. One process, forward and backward of each microbatch of the first windows, three times;
of these the least time of the CPU, so that what else the machine does counts little. Prints r^2 against each measure.
"""

import sys
import time
from collections.abc import Sequence

import torch

from ddp_tokens.determinism import make_deterministic
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.loads import MEASURES, r_squared
from ddp_tokens.options import parse
from ddp_tokens.plan import microbatches_of
from ddp_tokens.workloads import load

MICROBATCHES, REPEATS, WARM_UP = 80, 3, 3


def main(arguments: Sequence[str]) -> None:
    experiment, at, _ = parse("benchmarks.loads", arguments, "continuous")
    make_deterministic(experiment.threads_per_rank)
    prepared, workload = read_prepared(experiment, at), load(experiment.workload)
    model = initial_model(experiment, workload, prepared.shape, at.initial, "cpu", torch.float32)
    ranks = range(experiment.world_size)
    shares = [
        share for window in prepared.plan for rank in ranks for share in microbatches_of(window, rank, prepared.rows)
    ]
    microbatches = shares[:MICROBATCHES]
    seconds = []
    for microbatch in [*microbatches[:WARM_UP], *microbatches]:
        batch, times = workload.collate(microbatch), []
        for _ in range(REPEATS):
            begun = time.process_time()
            workload.loss_sum(workload.forward(model, batch), batch)[0].backward()
            times.append(time.process_time() - begun)
        seconds.append(min(times))
    for name, measure in MEASURES.items():
        found = r_squared([float(measure(each)) for each in microbatches], seconds[WARM_UP:])
        print(f"{name}: {'the same in all' if found is None else f'r^2 {found:.2f}'}")


if __name__ == "__main__":
    main(sys.argv[1:])
