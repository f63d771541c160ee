"""The wrong and the right evaluations as a table: what must be said of each. No torch."""

from dataclasses import dataclass
from pathlib import Path

from ddp_tokens.checks.verdict import FAIL, PASS
from ddp_tokens.layout import Layout

EVALUATION = "evaluation"
RIGHT_WAY, MEAN_OF_BATCH_MEANS, PADDED_SAMPLER = "evaluate", "mean_of_batch_means", "padded_sampler"
SPLITS = ("validation", "test")
TRAINED = 2  # the number of ranks whose corpus and weights are scored, by any number of ranks


@dataclass(frozen=True)
class Case:
    """`way`: a name in controls/evaluations.py. `what`: needed where the diagnosis' meaning does not say it."""

    name: str
    world_size: int
    way: str
    expected: str
    diagnosis: tuple[str, ...] = ()
    what: str = ""


CASES = (
    Case("mean_of_batch_means", 3, MEAN_OF_BATCH_MEANS, FAIL, ("mean_of_batch_means",)),
    Case("padded_sampler", 3, PADDED_SAMPLER, FAIL, ("padded_duplicates",)),
    *(
        Case(f"evaluated_on_{ranks.replace(' ', '_')}", size, RIGHT_WAY, PASS, what=f"rows dealt out over {ranks}")
        for size, ranks in ((1, "1 rank"), (2, "2 ranks"), (3, "3 ranks"), (4, "4 ranks"))
    ),
)


def of_world_size(world_size: int) -> list[Case]:
    return [case for case in CASES if case.world_size == world_size]


def scores_of(case: Case, left: Layout) -> Path:
    """Where the scores of a case lie; `left`: what the ranks left."""
    return left.root / EVALUATION / f"{case.name}.json"
