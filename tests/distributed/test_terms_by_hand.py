"""Terms of one parameter, small enough to check by hand: uneven microbatches, an empty rank, and what is refused.

At theta = 0, with the rows (1, 2) | (3) and (4, 4, 4) on ranks 0 and 1:
labels, (theta - target)^2 per token: 6 tokens, gradient -2 (1 + 2 + 3 + 12) = -36, mean -6
length, theta times the row's length per sequence: 3 sequences, gradient 2 + 1 + 3 = 6, mean 2, times 1/2
pull, 5 theta once, times 1/10: 1/2.
Together -6 + 1 + 1/2 = -4.5.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Sgd
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.distributed import barrier, wrap_for_ddp
from ddp_tokens.errors import EmptyWindowError, WorkloadError
from ddp_tokens.inputs import Prepared
from ddp_tokens.reference import references
from ddp_tokens.term_reference import parts_of_terms
from ddp_tokens.terms import Term
from ddp_tokens.trainer import build_optimizer, train
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import Theta, row

ROWS = {"a": row(1, 2), "b": row(3), "c": row(4, 4, 4), "none": row(UNSUPERVISED, UNSUPERVISED)}
UNEVEN = [["a"]], [["b"], ["c"]]
EMPTY = [["none"], ["none"]]
RIGHT = -4.5


class ThreeTerms:
    TERMS = (Term("labels", "token"), Term("length", "sequence", 0.5), Term("pull", "once", 0.1))

    def build_model(self, settings: Any, shape: Any) -> torch.nn.Module:
        return Theta()

    def collate(self, rows: Sequence[Row], device: Any = "cpu") -> Sequence[Row]:
        return rows

    def forward(self, model: torch.nn.Module, batch: Sequence[Row]) -> torch.Tensor:
        return model(torch.zeros(()))

    def loss_terms(self, outputs: torch.Tensor, batch: Sequence[Row]) -> dict[str, tuple[torch.Tensor, float]]:
        targets = torch.tensor([label for row in batch for label in row.labels if label != UNSUPERVISED]).double()
        counted = [len(row.labels) for row in batch if set(row.labels) != {UNSUPERVISED}]
        return {
            "labels": (((outputs - targets) ** 2).sum(), len(targets)),
            "length": (outputs * sum(counted), len(counted)),
            "pull": (5 * outputs, 1),
        }

    def metrics(self, outputs: torch.Tensor, batch: Sequence[Row]) -> dict[str, float]:
        return {"loss_sum": 0.0, "correct": 0, "units": 0}


class Miscounting(ThreeTerms):
    def loss_terms(self, outputs: torch.Tensor, batch: Sequence[Row]) -> dict[str, tuple[torch.Tensor, float]]:
        terms = super().loss_terms(outputs, batch)
        return terms | {"length": (terms["length"][0], len(batch))}


class NeverCounted(ThreeTerms):
    def denominators(self, row: Row) -> dict[str, float]:
        return {"length": 0}


class TwiceCounted(ThreeTerms):
    """The term per sequence counts tokens: its number is 6, its mean 1."""

    def denominators(self, row: Row) -> dict[str, float]:
        return {"length": sum(label != UNSUPERVISED for label in row.labels)}

    def loss_terms(self, outputs: torch.Tensor, batch: Sequence[Row]) -> dict[str, tuple[torch.Tensor, float]]:
        terms = super().loss_terms(outputs, batch)
        return terms | {"length": (terms["length"][0], terms["labels"][1])}


class OfTheRows(ThreeTerms):
    """A regularizer that is none."""

    def loss_terms(self, outputs: torch.Tensor, batch: Sequence[Row]) -> dict[str, tuple[torch.Tensor, float]]:
        return super().loss_terms(outputs, batch) | {"pull": (outputs + sum(len(row.labels) for row in batch), 1)}


KINDS = {kind.__name__: kind for kind in (ThreeTerms, Miscounting, NeverCounted, TwiceCounted, OfTheRows)}


def one_update(world: World, kind: str, window: list) -> dict[str, Any]:
    workload = KINDS[kind]()
    bare = workload.build_model(None, None)
    model = wrap_for_ddp(bare)
    state = TrainingState(bare, build_optimizer(model, Sgd(lr=1.0, momentum=0.0)))
    message = None
    try:
        list(train(model, state, workload, [window], ROWS, world, 1))
    except (WorkloadError, EmptyWindowError) as error:
        message = str(error)
    barrier()
    return {"message": message, "theta": float(bare.theta), "history": [state.history, state.rank_history]}


@pytest.mark.parametrize("window", [[*UNEVEN], [*UNEVEN, EMPTY], [[["a"], ["c"]], [["b"]]], [[["a", "b", "c"]], EMPTY]])
def test_the_update_is_that_of_the_sum_of_means(tmp_path, window):
    """A learning rate of 1 from theta = 0; however rows are dealt, and with a rank that holds no unit of any term."""
    for rank in run_ranks(one_update, len(window), tmp_path, "ThreeTerms", window):
        assert rank["message"] is None
        assert rank["theta"] == pytest.approx(-RIGHT, rel=1e-14)
        [record] = rank["history"][0]
        assert (record["units"], record["loss_sum"]) == (6, 62.0)
        assert record["loss"] == pytest.approx(62 / 6, rel=1e-14)
        assert record["terms"]["length"] == {"sum": 0.0, "units": 3, "mean": 0.0, "coefficient": 0.5}
        assert record["terms"]["pull"]["units"] == sum(map(len, window))


def test_a_rank_keeps_its_own_sums(tmp_path):
    ranks = run_ranks(one_update, 2, tmp_path, "ThreeTerms", [*UNEVEN])
    of_ranks = [rank["history"][1][0] for rank in ranks]
    assert [own["units"] for own in of_ranks] == [2, 4]
    assert [own["loss_sum"] for own in of_ranks] == [5.0, 57.0]
    assert [own["terms"]["pull"] for own in of_ranks] == [{"sum": 0.0, "units": 1}, {"sum": 0.0, "units": 2}]


def test_a_workload_that_counts_a_term_itself(tmp_path):
    """-6 + 1/2 * 6/6 + 1/2 = -5."""
    for rank in run_ranks(one_update, 2, tmp_path, "TwiceCounted", [*UNEVEN]):
        assert rank["message"] is None
        assert rank["theta"] == pytest.approx(5.0, rel=1e-14)


def test_a_term_without_a_unit_is_refused_by_every_rank(tmp_path):
    for rank in run_ranks(one_update, 2, tmp_path, "NeverCounted", [*UNEVEN]):
        assert rank["message"] == (
            "window 1 holds no unit (sequence) of term 'length' on any rank, so it has no mean: remove its rows, label "
            "some of them, or deal rows with such units into every window"
        )
        assert rank["theta"] == 0.0


def test_other_units_than_the_rows_count_are_refused_by_every_rank(tmp_path):
    """Rank 2 alone has rows that count nothing."""
    for rank in run_ranks(one_update, 3, tmp_path, "Miscounting", [*UNEVEN, EMPTY]):
        assert rank["message"] == (
            "window 1: loss_terms sums 2 units of term 'length' on rank 2, where its rows count 0 by unit sequence: "
            "let both cover the same, or define denominators(row)"
        )
        assert rank["theta"] == 0.0


def window_of(plan):
    return [[[ROWS[name] for name in names] for names in of_rank] for of_rank in plan]


def test_the_reference_is_the_same_gradient_and_its_parts_are_plain_sums():
    prepared = Prepared(ROWS, {}, [[*UNEVEN, EMPTY]])
    dumps = references(lambda dtype: Theta().to(dtype), ThreeTerms(), prepared, {"first": 0})
    assert float(dumps["float64"]["first/theta"]) == pytest.approx(RIGHT, rel=1e-14)
    assert float(dumps["native"]["first/theta"]) == pytest.approx(RIGHT, rel=1e-6)
    parts = {name: float(value) for name, value in dumps["parts"].items() if name != "terms"}
    assert parts == {
        "first/labels/0/0/theta": -6.0,
        "first/labels/1/0/theta": -6.0,
        "first/labels/1/1/theta": -24.0,
        "first/labels/2/0/theta": 0.0,
        "first/labels/2/1/theta": 0.0,
        "first/length/0/0/theta": 2.0,
        "first/length/1/0/theta": 1.0,
        "first/length/1/1/theta": 3.0,
        "first/length/2/0/theta": 0.0,
        "first/length/2/1/theta": 0.0,
        **{f"first/pull/{rank}/{index}/theta": 5.0 for rank, index in ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1))},
    }


def test_a_term_that_counts_once_must_not_depend_on_rows():
    with pytest.raises(WorkloadError, match=r"'pull' counts once, but it is 2 for row '1-2' and 1 for row '3': give"):
        parts_of_terms(Theta(), OfTheRows(), window_of(UNEVEN))


def test_the_reference_refuses_other_units_too():
    with pytest.raises(WorkloadError, match=r"row '-100--100': loss_terms sums 1 units of term 'length' on rank 0"):
        parts_of_terms(Theta(), Miscounting(), window_of([EMPTY]))
