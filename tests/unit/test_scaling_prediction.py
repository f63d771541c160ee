import pytest

from ddp_tokens.errors import EvidenceError
from ddp_tokens.loads import Load
from ddp_tokens.ring import Link
from ddp_tokens.scaling_prediction import Costs, costs_of, crowding_on, predict, step_of, validate
from tests.unit.test_scaling import machine, measured, point_of
from tests.unit.test_scaling_further import parts

# 0.1 ms per position, of which 0.06 backward; 2 ms fixed; 1 MB in 2 buckets
COSTS = Costs(position_ms=0.1, backward_ms=0.06, fixed_ms=2, bytes=1_000_000, buckets=2)
LINK = Link(latency_s=1e-4, byte_s=1e-9)
LOAD = Load(mean=200, slowest=250, microbatches=2)


def test_costs_are_one_processs_time_shared_out_as_its_updates_were_taken_apart():
    """40 ms over 400 positions; of 100 ms, 4 + 26 + 50 follow the positions, 50 are backward, 20 are fixed: 80 % of
    0.1 ms, 50 % of 0.1 ms, 20 % of 40 ms.
    """
    points, reduced, _ = measured()
    found = costs_of(points, [parts(1, 3, 0), parts(2, 3, 0, data=99)], Load(400, 400, 1), reduced)
    assert (found.position_ms, found.backward_ms) == (pytest.approx(0.08), pytest.approx(0.05))
    assert found.fixed_ms == pytest.approx(8)
    assert (found.bytes, found.buckets) == (4000, 2)


def test_updates_of_one_process_are_needed():
    points, reduced, _ = measured()
    with pytest.raises(EvidenceError, match=r"step_parts.jsonl holds no update of one process; .* measure again"):
        costs_of(points, [parts(2, 3, 0)], Load(400, 400, 1), reduced)
    with pytest.raises(EvidenceError, match=r"timings.jsonl holds no step of 2 processes; .* measure again"):
        costs_of(points, [parts(1, 3, 0)], Load(400, 400, 1), {4: reduced[4]})


def test_a_step_is_the_sum_of_its_parts_and_overlap_hides_what_fits():
    """Two ranks, ms: computing 20, waiting 5, fixed 2, two small collectives 2 * 2 * 0.1, gradients 2 * 2 * 0.1 + 1.
    The slowest's last backward is 0.6 * 25 / 2 = 7.5, which hides all of the 1.4.
    """
    step = step_of(COSTS, LOAD, 2, LINK)
    assert (step.compute_ms, step.waiting_ms, step.fixed_ms) == (pytest.approx(20), pytest.approx(5), 2)
    assert (step.small_ms, step.all_reduce_ms) == (pytest.approx(0.4), pytest.approx(1.4))
    assert step.step_ms == pytest.approx(28.8)
    assert step.overlapped_ms == pytest.approx(27.4)


def test_overlap_hides_no_more_than_the_last_backward():
    """64 ranks: 2 * 126 * 0.1 + 2 * 63 / 64 = 27.17 ms, of which 7.5 are hidden; the small ones are never."""
    step = step_of(COSTS, LOAD, 64, LINK)
    assert step.all_reduce_ms == pytest.approx(25.2 + 1.96875)
    assert step.step_ms - step.overlapped_ms == pytest.approx(7.5)
    assert step.small_ms == pytest.approx(25.2)


def test_alone_there_is_nothing_to_send():
    step = step_of(COSTS, Load(200, 200, 2), 1, LINK)
    assert (step.small_ms, step.all_reduce_ms, step.waiting_ms) == (0, 0, 0)
    assert step.step_ms == step.overlapped_ms == pytest.approx(22)


def test_many_ranks_without_latency_approach_twice_the_bytes():
    free = Link(0, LINK.byte_s)
    assert step_of(COSTS, LOAD, 10**6, free).all_reduce_ms == pytest.approx(2, rel=1e-5)


def test_who_waits_leaves_its_core_to_the_others():
    """Twice as many as cores: all the work takes 40 ms, more than the slowest's 25. With one whose rows take 45 ms that
    rank sets the pace.
    """
    shared = step_of(COSTS, LOAD, 4, LINK, crowding=2)
    assert (shared.compute_ms, shared.waiting_ms, shared.fixed_ms) == (pytest.approx(40), 0, 4)
    uneven = step_of(COSTS, Load(200, 450, 2), 4, LINK, crowding=2)
    assert uneven.compute_ms + uneven.waiting_ms == pytest.approx(45)
    own = step_of(COSTS, LOAD, 4, LINK)
    assert shared.all_reduce_ms == pytest.approx(2 * own.all_reduce_ms)


def test_crowding_counts_threads_and_is_one_for_one_process():
    assert [crowding_on(machine(), ranks) for ranks in (1, 2, 4)] == [1, 1, 2]
    assert [crowding_on(machine(threads_per_rank=4), ranks) for ranks in (1, 2)] == [1, 2]


def test_the_error_is_told_against_the_median():
    """Two processes on two cores took 50 ms, with repeats at 49 and 51. Predicted: 0.1 * 200 + 2 + 0.4 + 1.4 = 23.8."""
    points, _, on = measured()
    two = [point_of(points, "strong", 2)]
    [found] = validate(COSTS, two, {("strong", 2): Load(200, 200, 1)}, LINK, on)
    assert found.predicted.step_ms == pytest.approx(23.8)
    assert (found.measured_ms, found.measured_min_ms, found.measured_max_ms) == tuple(
        pytest.approx(ms) for ms in (50, 49, 51)
    )
    assert found.relative_error == pytest.approx(23.8 / 50 - 1)
    assert found.relative_error_overlapped == pytest.approx(22.4 / 50 - 1)


def test_efficiency_is_told_against_one_rank():
    """Alone 22 ms. Weak, two ranks: 22 / 28.8. Strong, half of the rows each: (22 / 2) / (10 + 2 + 1.8)."""
    loads = {1: Load(200, 200, 2), 2: LOAD}
    weak = predict(COSTS, "weak", loads, {"measured": LINK})
    assert [(each.network, each.ranks) for each in weak] == [("measured", 1), ("measured", 2)]
    assert weak[0].efficiency == 1
    assert weak[1].efficiency == pytest.approx(22 / 28.8)
    assert weak[1].efficiency_overlapped == pytest.approx(22 / 27.4)
    strong = predict(COSTS, "strong", {1: Load(200, 200, 2), 2: Load(100, 100, 1)}, {"measured": LINK})
    assert strong[1].efficiency == pytest.approx(11 / 13.8)


def test_each_network_is_predicted():
    faster = Link(1e-5, 1e-10)
    found = predict(COSTS, "weak", {1: LOAD, 1024: LOAD}, {"measured": LINK, "given": faster})
    by_name = {each.network: each.step.all_reduce_ms for each in found if each.ranks == 1024}
    assert by_name["measured"] == pytest.approx(2 * 2046 * 0.1 + 2 * 1023 / 1024)
    assert by_name["given"] == pytest.approx(by_name["measured"] / 10)
