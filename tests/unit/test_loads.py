import math

import pytest

from ddp_tokens.corpora.rows import Row
from ddp_tokens.loads import Load, explained, load_of, loads, plan_for, positions, r_squared, simulated
from tests.helpers import make_row
from tests.unit.test_scaling import timing

ROWS = {name: make_row(name, length) for name, length in {"a": 2, "b": 5, "c": 3, "d": 10}.items()}
# Rank 0: a and b padded to 5 (10), c alone (3). Rank 1: d alone (10), then a row that does not count, a (2).
WINDOW = [[["a", "b"], ["c"]], [["d"], []]]


def test_a_padded_position_is_work_as_any_other():
    assert positions([ROWS["a"], ROWS["b"]]) == 10
    assert loads([WINDOW], ROWS) == [[13, 12]]


def test_an_image_is_one_position():
    images = [Row(str(index), "train", (), (0,), index=index) for index in range(3)]
    assert positions(images) == 3


def test_the_slowest_rank_against_the_mean():
    """Windows of 13 and 12, then of 4 and 20: the mean rank has (12.5 + 12) / 2, the slowest (13 + 20) / 2."""
    other = [[["a", "a"]], [["d", "d"]]]
    found = load_of([WINDOW, other], ROWS)
    assert found == Load(mean=12.25, slowest=16.5, microbatches=1.5)
    assert found.ratio == pytest.approx(16.5 / 12.25)
    assert found.lost == pytest.approx(1 - 12.25 / 16.5)


def test_alone_nobody_waits():
    found = load_of(plan_for("strong", [WINDOW], 1), ROWS)
    assert (found.ratio, found.lost) == (1, 0)


SHAPE = {"batch": 1, "accumulation": 1, "seed": 5}


def test_equal_rows_never_wait():
    for sharding in ("by_length", "by_index"):
        found = simulated([7] * 10, 16, sharding=sharding, batch=4, accumulation=2, seed=1)
        assert found == Load(mean=56, slowest=56, microbatches=2)


def test_by_length_each_rank_has_its_piece_of_the_sorted_rows():
    """Ten short rows and ten long: of two ranks one always has 1, the other 9; the mean is 5, the slowest 9."""
    found = simulated([9, 1] * 10, 2, sharding="by_length", **SHAPE)
    assert found == Load(mean=5, slowest=9, microbatches=1)
    assert found.lost == pytest.approx(4 / 9)


def test_by_index_the_slowest_of_many_is_almost_surely_long():
    """Of n ranks none has a long row with chance 2^-n: expected slowest 9 - 8 * 2^-n, mean 5."""
    for ranks in (1, 2, 64):
        found = simulated([9, 1] * 10, ranks, sharding="by_index", windows=4000, **SHAPE)
        spread = 4 / math.sqrt(4000)  # of the mean of as many windows, each at most 4 off
        assert found.slowest == pytest.approx(9 - 8 * 2.0**-ranks, abs=5 * spread)
        assert found.mean == pytest.approx(5, abs=5 * spread)


def test_the_same_seed_draws_the_same_and_another_others():
    def drawn(seed):
        return simulated(range(1, 100), 8, sharding="by_index", batch=2, accumulation=2, seed=seed)

    assert drawn(1) == drawn(1) != drawn(2)


def test_more_ranks_than_rows_can_be_simulated():
    found = simulated([1, 2, 3], 1024, sharding="by_length", **SHAPE)
    assert found.slowest == 3
    assert found.mean == pytest.approx(2, rel=0.01)


def plan_of(*ids):
    return [[[["a"], [row_id]]] for row_id in ids]


def test_which_count_the_measured_times_go_with():
    """Of the last microbatches, rows stay 1; times follow the positions exactly. Step 1 is warm-up."""
    lengths = {"a": 2, "b": 5, "c": 3, "d": 10}
    rows = {name: make_row(name, length, units=1 + (name == "c")) for name, length in lengths.items()}
    steps = plan_of("d", "b", "c", "a", "d")
    times = [99, 5, 3, 2, 10]
    timings = [timing(1, step, 0, "difference", ms, 0) for step, ms in enumerate(times, start=1)]
    timings += [timing(1, step, 0, "hook", 7, 0) for step in range(1, 6)]
    found = explained(timings, steps, rows, first=2)
    assert found["rows"] is None
    assert found["padded positions"] == pytest.approx(1)
    assert found["supervised"] < 0.5


def test_r_squared_by_hand():
    """x 1, 2, 3 and y 1, 3, 2: covariance 1, both variances 2, r = 1/2."""
    assert r_squared([1, 2, 3], [1, 3, 2]) == pytest.approx(0.25)
    assert r_squared([1, 2, 3], [5, 5, 5]) is None
