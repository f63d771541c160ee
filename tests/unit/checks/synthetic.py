"""Gradients without a model: random parts of a window with three ranks and two microbatches, and their sums."""

from dataclasses import replace

import numpy

from ddp_tokens.checks.gradient_norms import weighted_sum
from ddp_tokens.checks.gradient_parity import Evidence
from ddp_tokens.window_facts import WindowFacts

UNITS = ((3, 5), (11, 6), (7, 4))
FACTS = WindowFacts(
    units=UNITS,
    labels=((4, 5), (12, 9), (7, 6)),
    positions=((6, 8), (14, 12), (9, 10)),
    accumulation=2,
    previous_units=29,
)
SHAPES = {"head.weight": (4, 3), "head.bias": (4,)}


def parts_for(units, shapes=SHAPES, seed=0):
    """(rank, microbatch) -> gradient of its loss sum: one random direction per unit, added up."""
    rng = numpy.random.default_rng(seed)
    return {
        (rank, index): {name: rng.normal(size=(count, *shape)).sum(0) for name, shape in shapes.items()}
        for rank, of_rank in enumerate(units)
        for index, count in enumerate(of_rank)
    }


def left_by(weight, parts, units=UNITS):
    """sum of weight(rank, microbatch) x part, written out apart from the project's formulas."""
    keys = [(rank, index) for rank, of_rank in enumerate(units) for index in range(len(of_rank))]
    return weighted_sum({key: weight(*key) for key in keys}, parts)


def rounded(arrays, dtype=numpy.float32):
    return {name: array.astype(dtype) for name, array in arrays.items()}


def evidence(weight=None, facts=FACTS, seed=0, dtype=numpy.float64):
    """What `weight` leaves, against the token mean."""
    parts = parts_for(facts.units, seed=seed)
    right = left_by(lambda r, m: 1 / facts.total, parts, facts.units)
    observed = right if weight is None else left_by(weight, parts, facts.units)
    return Evidence(rounded(observed, dtype), right, rounded(right, dtype), parts, facts)


def with_observed(of, **changes):
    return replace(of, observed=of.observed | changes)
