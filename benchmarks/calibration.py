"""How much more does rounding do to a distributed gradient than to that of one process? The reason for a factor of 4.

python -m benchmarks.calibration [--models 40] [--bfloat16]

Random small models and windows of 1 to 4 ranks and 1 to 4 microbatches. Ranks are computed one after another in this
process and averaged as DDP does. Per parameter: the error of the distributed gradient, in units of what the check takes
for the rounding of one process (checks/gradient_norms.py: calibrated_tolerances with a factor of 1).
"""

import argparse
import random
from functools import partial

import numpy
import torch

from ddp_tokens.checks.gradient_norms import calibrated_tolerances, errors
from ddp_tokens.config import GeneratedCorpus, Transformer
from ddp_tokens.controls.workloads import Altered
from ddp_tokens.corpora.generated import make
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import supervised_in
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.reference import batched_gradient, reference_gradient

VOCABULARY = CLASSES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--bfloat16", action="store_true", help="forward under autocast")
    own = parser.parse_args()
    make_deterministic(1)
    ratios = numpy.array(
        [ratio for seed in range(own.models) for ratio in ratios_of(seed, Altered(autocast=own.bfloat16))]
    )
    quantiles = dict(zip(("half", "99 %", "all"), numpy.quantile(ratios, [0.5, 0.99, 1.0]), strict=True))
    print(
        f"{len(ratios)} parameters; at most, "
        + ", ".join(f"of {name}: {value:.2f}" for name, value in quantiles.items())
    )


def ratios_of(seed: int, workload: Altered) -> list[float]:
    rng = random.Random(seed)
    world_size, microbatches, batch = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 8)
    longest, width = rng.choice([8, 32, 64]), rng.choice([8, 16, 32])
    number = world_size * microbatches * batch
    corpus = GeneratedCorpus(train=number, min_length=2, short_max_length=longest // 2, max_length=longest)
    rows = [row for row in make(corpus, seed) if row.split == "train"]
    window = [
        [
            rows[start : start + batch]
            for start in range(rank * microbatches * batch, (rank + 1) * microbatches * batch, batch)
        ]
        for rank in range(world_size)
    ]
    torch.manual_seed(seed)
    settings = Transformer(width=width, heads=2, layers=rng.randint(1, 2), feed_forward=2 * width)
    model = workload.build_model(settings, Shape(VOCABULARY, CLASSES, longest))
    single = batched_gradient(model, workload, window)
    distributed = averaged(model, workload, window)
    exact = reference_gradient(model.double(), workload, rows)
    as_arrays = partial(map, lambda gradients: {name: value.numpy() for name, value in gradients.items()})
    reference, one, all_ranks = as_arrays((exact, single, distributed))
    rounding = calibrated_tolerances(reference, one, 1.0)
    return [error / rounding[name] for name, error in errors(all_ranks, reference).items()]


def averaged(model: torch.nn.Module, workload: Altered, window: list) -> dict[str, torch.Tensor]:
    """Each rank's W * S_r / N, divided by W and added in the order of ranks."""
    units = supervised_in(row for of_rank in window for rows in of_rank for row in rows)
    total: dict[str, torch.Tensor] = {}
    for of_rank in window:
        own = supervised_in(row for rows in of_rank for row in rows)
        # batched_gradient divides by the rank's own units: back to its sum, then W / N and the averaging.
        for name, gradient in batched_gradient(model, workload, [of_rank]).items():
            scaled = gradient * own * len(window) / units / len(window)
            total[name] = total[name] + scaled if name in total else scaled
    return total


if __name__ == "__main__":
    main()
