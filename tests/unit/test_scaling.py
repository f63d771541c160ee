import csv
import io

import numpy
import pytest

from ddp_tokens.errors import EvidenceError
from ddp_tokens.scaling import Spread, allreduces, oversubscription, points, spread, table, warm_up
from ddp_tokens.scaling_rows import Machine, Run, Timing, read_machine, read_runs, read_timings
from tests.helpers import write_lines

UPDATES, TOKENS = 10, 400  # strong: 400 tokens in each update, so that 40 ms per update are 10,000 tokens per second
AGAIN = "delete this experiment's folder scaling/ and measure again"
MACHINE = {
    "cpu": "A CPU",
    "cores": 2,
    "threads_per_rank": 1,
    "torch": "2.13.0",
    "python": "3.11.2",
    "backend": "gloo",
    "launcher": "fork",
    "model_params": 1000,
    "unit": "token",
    "steps": 4,
    "bucket_cap_mb": 25,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": False,
}


def machine(**changes):
    return Machine.model_validate(MACHINE | changes)


def timing(world_size, step, rank, variant, compute_ms, communication_ms):
    fields = {"world_size": world_size, "step": step, "rank": rank, "variant": variant, "bytes": 4000, "buckets": 2}
    seconds = {"compute_s": compute_ms / 1000, "communication_s": communication_ms / 1000}
    return Timing.model_validate(fields | seconds)


def timed(world_size, hook_ms, difference_ms, waiting_ms=1, steps=4):
    """Every step alike. hook: rank 0 waits `waiting_ms` for the others; difference: every rank computes for 20 ms."""
    rows = []
    for step in range(1, steps + 1):
        for rank in range(world_size):
            waited = waiting_ms if rank == 0 and world_size > 1 else 0
            rows.append(timing(world_size, step, rank, "hook", 18, hook_ms + waited))
            rows.append(timing(world_size, step, rank, "difference", 20, difference_ms))
    return rows


def timed_runs(scaling, milliseconds, units, vary=0.02, repeats=3):
    """`milliseconds`: processes -> per update, of the middle repeat; `units`: processes -> per update."""
    rows = []
    for processes, of_update in milliseconds.items():
        for repeat in range(1, repeats + 1):
            seconds = UPDATES * of_update / 1000 * (1 + vary * (repeat - (repeats + 1) / 2))
            fields = {"scaling": scaling, "processes": processes, "repeat": repeat, "updates": UPDATES}
            rows.append(Run(**fields, units=units[processes] * UPDATES, seconds=seconds))
    return rows


STRONG = {1: 40.0, 2: 50.0, 4: 60.0}  # ms per update
WEAK = {1: 20.0, 2: 30.0, 4: 60.0}


def measured(strong=STRONG, weak=WEAK, hook=None, difference=None, on=None, **varied):
    """(points, reduced, machine): two cores; the all-reduce takes 5 ms with two and 8 with four processes."""
    hook, on = hook or {2: 5, 4: 8}, on or machine()
    timings = [row for size, ms in hook.items() for row in timed(size, ms, (difference or hook)[size])]
    runs = timed_runs("strong", strong, dict.fromkeys(strong, TOKENS), **varied)
    runs += timed_runs("weak", weak, {processes: 200 * processes for processes in weak}, **varied)
    reduced = allreduces(timings, on.steps)
    return points(runs, reduced, on), reduced, on


def point_of(of_points, scaling, processes):
    [found] = [point for point in of_points if (point.scaling, point.processes) == (scaling, processes)]
    return found


# Steps


@pytest.mark.parametrize(("steps", "judged"), [(100, (51, 100)), (5, (3, 5)), (2, (2, 2)), (1, (1, 1))])
def test_the_first_half_of_the_steps_is_warm_up(steps, judged):
    assert (warm_up(steps) + 1, steps) == judged


def test_percentiles_are_interpolated_between_two_values():
    """0 to 49: place 0.5 * 49 = 24.5 holds 24.5, place 0.95 * 49 = 46.55 holds 46.55; in any order."""
    shuffled = [float(value) for value in numpy.random.default_rng(0).permutation(50)]
    assert spread(shuffled) == Spread(mean=24.5, p50=24.5, p95=pytest.approx(46.55))
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0)


def test_a_step_is_over_when_its_slowest_rank_is():
    """difference: max(10 + 11, 20 + 3) - max(10, 20) = 23 - 20 = 3: rank 0 waited 8 of its 11 ms for rank 1."""
    rows = [timing(2, 1, 0, "difference", 10, 11), timing(2, 1, 1, "difference", 20, 3)]
    rows += [timing(2, 1, 0, "hook", 9, 12), timing(2, 1, 1, "hook", 19, 4)]
    found = allreduces(rows, 1)[2]
    assert found.difference.p50 == pytest.approx(3)
    assert found.backward_alone.p50 == pytest.approx(20)
    assert (found.with_waiting.p50, found.without_waiting.p50) == (pytest.approx(12), pytest.approx(4))
    assert (found.world_size, found.bytes, found.buckets) == (2, 4000, 2)


def test_the_warm_up_is_left_out_and_what_is_negative_is_kept():
    """Steps 3 and 4 of 4 are judged: 1 and -2 ms, mean -0.5, p95 -2 + 0.95 * 3 = 0.85."""
    of_steps = {1: 900, 2: 800, 3: 1, 4: -2}
    rows = [timing(1, step, 0, "difference", 20, ms) for step, ms in of_steps.items()]
    rows += [timing(1, step, 0, "hook", 20, abs(ms)) for step, ms in of_steps.items()]
    found = allreduces(rows, 4)[1]
    assert found.difference == Spread(*(pytest.approx(value) for value in (-0.5, -0.5, 0.85)))
    assert found.with_waiting == found.without_waiting == Spread(*(pytest.approx(value) for value in (1.5, 1.5, 1.95)))


def test_rows_need_no_order():
    rows = timed(2, 5, 6) + timed(3, 7, 8)
    assert allreduces(rows[::-1], 4) == allreduces(rows, 4)
    assert list(allreduces(rows[::-1], 4)) == [2, 3]


def without(rows, **fields):
    left = [row for row in rows if not all(getattr(row, name) == value for name, value in fields.items())]
    assert len(left) < len(rows)
    return left


@pytest.mark.parametrize(
    ("rows", "where", "ranks"),
    [
        (without(timed(2, 5, 5), step=3, rank=1, variant="hook"), "variant hook, step 3", "0"),
        (without(timed(2, 5, 5), step=2, variant="hook"), "variant hook, step 2", "none"),
        (without(timed(2, 5, 5), variant="difference"), "variant difference, step 1", "none"),
        ([*timed(2, 5, 5), timing(2, 4, 1, "hook", 1, 1)], "variant hook, step 4", "0, 1, 1"),
        ([*timed(2, 5, 5), timing(2, 4, 2, "hook", 1, 1)], "variant hook, step 4", "0, 1, 2"),
        (timed(2, 5, 5, steps=5), "variant difference, step 5", "0, 1"),
    ],
    ids=["a rank", "a step", "a variant", "a rank twice", "a rank too many", "a step too many"],
)
def test_rows_that_are_missing_or_too_many_are_named(rows, where, ranks):
    with pytest.raises(EvidenceError) as caught:
        allreduces(rows, 4)
    assert str(caught.value) == (
        f"timings.jsonl, world size 2, {where}: rows of the ranks 0 to 1 are needed in the steps 1 to 4, "
        f"found {ranks}; {AGAIN}"
    )


# Runs


def test_strong_scaling_beside_what_was_to_be_expected():
    """2 cores, T1 = 40 ms per update of 400 tokens, A(2) = 5 ms: 40 / 2 + 5 = 25 ms, 16,000 tokens/s, where 50 ms and
    8,000 were measured. Four processes: 40 / 4 * (4 / 2) + 8 = 28 ms.
    """
    found, _, _ = measured()
    one, two, four = (point_of(found, "strong", processes) for processes in (1, 2, 4))
    assert (two.compute_ms, two.allreduce_ms, two.measured_ms) == tuple(map(pytest.approx, (20, 5, 50)))
    assert two.units_per_s_median == pytest.approx(8000)
    assert (two.units_per_s_min, two.units_per_s_max) == (pytest.approx(8000 / 1.02), pytest.approx(8000 / 0.98))
    assert (two.expected_units_per_s, two.ideal_units_per_s) == (pytest.approx(16000), pytest.approx(20000))
    assert (two.speedup, two.efficiency, two.oversubscription) == tuple(map(pytest.approx, (0.8, 0.4, 1)))
    assert (two.updates, two.units_per_update, two.repeats) == (10, 400, 3)
    assert (four.compute_ms, four.allreduce_ms, four.oversubscription) == tuple(map(pytest.approx, (20, 8, 2)))
    assert four.expected_units_per_s == pytest.approx(400 / 0.028)
    assert (one.compute_ms, one.allreduce_ms, one.speedup, one.efficiency) == tuple(map(pytest.approx, (40, 0, 1, 1)))
    assert one.expected_units_per_s == one.ideal_units_per_s == one.units_per_s_median == pytest.approx(10000)


def test_weak_scaling_keeps_the_share_of_each_process():
    """T1 = 20 ms of 200 tokens, 10,000 tokens/s. Two: 20 + 5 = 25 ms of 400 tokens, 16,000. Four: 20 * 2 + 8 = 48 ms of
    800 tokens. Measured: 400 / 30 ms = 13,333, a speedup of 4 / 3.
    """
    found, _, _ = measured()
    two, four = (point_of(found, "weak", processes) for processes in (2, 4))
    assert (two.compute_ms, two.allreduce_ms, two.expected_units_per_s) == tuple(map(pytest.approx, (20, 5, 16000)))
    assert (two.speedup, two.efficiency) == (pytest.approx(4 / 3), pytest.approx(2 / 3))
    assert (four.compute_ms, four.allreduce_ms) == (pytest.approx(40), pytest.approx(8))
    assert four.expected_units_per_s == pytest.approx(800 / 0.048)


def test_the_all_reduce_of_the_model_waits_for_nobody():
    """The hook saw 5 ms on the last rank and 6 on the one that waited."""
    found, reduced, _ = measured()
    assert reduced[2].with_waiting.p50 == pytest.approx(6)
    assert point_of(found, "strong", 2).allreduce_ms == reduced[2].without_waiting.p50 == pytest.approx(5)


def test_what_one_process_reduces_is_in_its_measured_time_already():
    found, reduced, _ = measured(hook={1: 3, 2: 5, 4: 8})
    assert reduced[1].without_waiting.p50 == pytest.approx(3)
    one = point_of(found, "strong", 1)
    assert (one.allreduce_ms, one.compute_ms) == (0, pytest.approx(40))


@pytest.mark.parametrize(
    ("threads", "cores", "shared", "compute_ms"),
    [
        (1, 4, {1: 1, 2: 1, 4: 1}, {1: 40, 2: 20, 4: 10}),
        (1, 1, {1: 1, 2: 2, 4: 4}, {1: 40, 2: 40, 4: 40}),
        (1, 3, {1: 1, 2: 1, 4: 4 / 3}, {1: 40, 2: 20, 4: 40 / 3}),
        (2, 4, {1: 1, 2: 1, 4: 2}, {1: 40, 2: 20, 4: 20}),
        # One process alone has twice as many threads as there are cores, and its 40 ms hold that already.
        (4, 2, {1: 2, 2: 4, 4: 8}, {1: 40, 2: 40, 4: 40}),
    ],
)
def test_processes_that_share_cores_compute_longer(threads, cores, shared, compute_ms):
    on = machine(threads_per_rank=threads, cores=cores)
    found, _, _ = measured(on=on)
    for processes in (1, 2, 4):
        point = point_of(found, "strong", processes)
        assert point.oversubscription == oversubscription(processes, on) == pytest.approx(shared[processes])
        assert point.compute_ms == pytest.approx(compute_ms[processes])


def test_points_come_strong_first_in_order_of_processes():
    found, _, _ = measured()
    assert [(point.scaling, point.processes) for point in found] == [
        *(("strong", processes) for processes in (1, 2, 4)),
        *(("weak", processes) for processes in (1, 2, 4)),
    ]


def test_an_even_number_of_repeats_is_consistent_too():
    """2 repeats, 39.6 and 40.4 ms: the time that belongs to the median of tokens per second, not the mean of both."""
    found, _, _ = measured(repeats=2)
    one = point_of(found, "strong", 1)
    assert one.units_per_s_median == pytest.approx((400 / 0.0396 + 400 / 0.0404) / 2)
    assert one.measured_ms * one.units_per_s_median == pytest.approx(400_000)
    assert one.expected_units_per_s == pytest.approx(one.units_per_s_median)


def strong(processes, repeat=1, updates=10, units=4000):
    fields = {"scaling": "strong", "processes": processes, "repeat": repeat, "updates": updates}
    return Run(**fields, units=units, seconds=1.0)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([strong(2)], "runs.jsonl holds no strong run of 1 process"),
        ([strong(1)], "runs.jsonl holds no strong run of 2 processes"),
        ([], "runs.jsonl holds no strong run of 1 process"),
        ([strong(1), strong(2)], "runs.jsonl holds no weak run of 1 process"),
        (
            [strong(1), strong(1, repeat=2, units=3900), strong(2)],
            "runs.jsonl: strong runs of 1 process counted 3900 units in 10 updates and 4000 in 10",
        ),
        (
            [strong(1), strong(2, updates=9)],
            "runs.jsonl: strong runs, which share the same windows, counted 4000 units in 9 updates and 4000 in 10",
        ),
        ([strong(1), strong(1), strong(2)], "runs.jsonl: strong runs of 1 process hold a repeat twice"),
        ([strong(1), strong(2), strong(3)], "timings.jsonl holds no step of 3 processes"),
    ],
)
def test_runs_that_cannot_be_compared_are_named(runs, message):
    with pytest.raises(EvidenceError) as caught:
        points(runs, allreduces(timed(2, 5, 5), 4), machine())
    assert str(caught.value) == f"{message}; {AGAIN}"


def test_the_table_has_a_row_for_each_point():
    found, _, _ = measured()
    rows = list(csv.DictReader(io.StringIO(table(found))))
    assert list(rows[0]) == [
        *("scaling", "processes", "updates", "units_per_update", "repeats"),
        *("units_per_s_median", "units_per_s_min", "units_per_s_max", "speedup", "efficiency"),
        *("ideal_units_per_s", "expected_units_per_s", "compute_ms", "allreduce_ms", "measured_ms"),
        "oversubscription",
    ]
    assert len(rows) == 6
    shown = {name: rows[1][name] for name in ("scaling", "processes", "units_per_s_min", "expected_units_per_s")}
    # 8000 / 1.02 = 7843.137...
    assert shown == {
        "scaling": "strong",
        "processes": "2",
        "units_per_s_min": "7843.14",
        "expected_units_per_s": "16000",
    }
    assert table(found) == table(measured()[0])


# Files


def as_rows(records):
    return [record.model_dump() for record in records]


def test_rows_are_read_as_they_were_written(tmp_path):
    timings, runs = timed(2, 5, 5), timed_runs("strong", {1: 40.0}, {1: 400})
    assert read_timings(write_lines(tmp_path / "timings.jsonl", *as_rows(timings))) == timings
    assert read_runs(write_lines(tmp_path / "runs.jsonl", *as_rows(runs))) == runs
    # what a newer `measure` may add changes nothing
    assert read_machine(write_lines(tmp_path / "machine.json", MACHINE | {"more": 1})) == machine()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": None}, "rank: input should be a valid integer"),
        ({"rank": True}, "rank: input should be a valid integer"),
        ({"world_size": 0}, "world_size: input should be greater than or equal to 1"),
        ({"variant": "both"}, "variant: input should be 'difference' or 'hook'"),
        ({"compute_s": -1.0}, "compute_s: input should be greater than or equal to 0"),
    ],
)
def test_a_malformed_row_is_named_with_its_line(tmp_path, change, message):
    first, second, *_ = as_rows(timed(2, 5, 5))
    path = write_lines(tmp_path / "timings.jsonl", first, second | change)
    with pytest.raises(EvidenceError) as caught:
        read_timings(path)
    assert str(caught.value) == f"{path}, line 2: {message}; {AGAIN}"


def test_a_missing_field_and_a_line_that_is_no_row_are_named(tmp_path):
    path = write_lines(tmp_path / "runs.jsonl", {"scaling": "strong"})
    with pytest.raises(EvidenceError) as caught:
        read_runs(path)
    assert str(caught.value) == f"{path}, line 1: processes: field required; {AGAIN}"
    path = write_lines(tmp_path / "machine.json", [1])
    with pytest.raises(EvidenceError, match=r"machine\.json: input should be a valid dictionary"):
        read_machine(path)


def test_who_has_not_measured_is_told_the_command(tmp_path):
    with pytest.raises(EvidenceError, match=r"measure first, by snakemake --cores all .*/manifest\.json$"):
        read_machine(tmp_path / "machine.json")
