"""The figures are those of tests/unit/test_scaling.py: 400 tokens per update, 40 ms with one process on two cores, so
that computing should take 20 ms with two; an all-reduce of 5 ms; three repeats that lie 2 % apart.
"""

import re

import pytest

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.lesson import compared, lesson_notes, number, rest_ms
from tests.unit.test_scaling import machine, measured, point_of


def replicas(outcome="pass", bit_equal=True, largest=0.0, difference=None):
    observed = {"ranks": 2, "tensors": 3, "max_abs_difference": largest, "parameter": None, "bit_equal": bit_equal}
    return Verdict("measured", "pass", outcome, "all are equal", observed, {}, difference)


def notes(verdict=None, **figures):
    points, reduced, on = measured(**figures)
    return lesson_notes(points, reduced[2], on, verdict or replicas())


SLOWER = {}  # 50 ms with two
FASTER = {"strong": {1: 40.0, 2: 30.0, 4: 28.0}}
UNDECIDED = {"strong": {1: 40.0, 2: 40.2, 4: 45.0}}
NO_REST = {"strong": {1: 40.0, 2: 22.0, 4: 30.0}}
ENOUGH_CORES = {"on": machine(cores=4)}
DIFFERENT = {"verdict": replicas(bit_equal=False, largest=2**-17)}
CASES = {
    "slower": SLOWER,
    "faster": FASTER,
    "undecided": UNDECIDED,
    "no rest": NO_REST,
    "enough cores": ENOUGH_CORES,
    "replicas differ": DIFFERENT,
    "one core": {"on": machine(cores=1)},
    "all-reduce alone": {"hook": {2: 25, 4: 30}},
    "slower without a rest": {"hook": {2: 33, 4: 8}},
    "faster than computing": {"strong": {1: 40.0, 2: 19.0, 4: 9.0}},
    "one repeat": {"repeats": 1},
    "two timings": {"difference": {2: 20, 4: 8}},
    "noise": {"difference": {2: -0.4, 4: 8}},
    "everything long": {
        "strong": {1: 4444.0, 2: 5555.0, 4: 6666.0},
        "hook": {2: 500, 4: 800},
        "difference": {2: -500, 4: 800},
        "on": machine(cores=3, threads_per_rank=2),
        "verdict": replicas(bit_equal=False, largest=2**-17),
    },
    "everything short": {
        "strong": {1: 40.0, 2: 19.0},
        "weak": {1: 20.0, 2: 30.0},
        "difference": {2: 20},
        "hook": {2: 5},
        "repeats": 1,
    },
    "only two": {"strong": {1: 40.0, 2: 50.0}, "weak": {1: 20.0, 2: 30.0}},
}


def test_two_that_are_slower_are_told_in_full():
    """50 - 20 - 5 = 25 ms are the rest; splitting saves 40 - 20 = 20, all-reduce and rest take 5 + 25 = 30."""
    assert notes(**SLOWER) == (
        "Two processes were slower than one on the same windows: 8,000 tokens/s against 10,000 (20.0 % fewer), in "
        "every repeat. "
        "With two an update took 50.0 ms. "
        "Computing should take 20.0 (half of one process's 40.0), "
        "the all-reduce without waiting took 5.0, and 25.0 remain: waiting "
        "for the slower rank, other collectives, optimizer and operating system, not told apart. "
        "The largest part is the rest. "
        "Splitting the rows should save 20.0 ms; all-reduce and rest took 30.0, more: so two are slower, though the "
        "all-reduce alone would not do it. "
        "4 processes share 2 cores and should compute no faster than two: 6,667 tokens/s, fewer than with two. "
        "Two timings of the all-reduce agree within 1 % (by hook 5.0 ms, by subtraction 5.0). "
        "At the end the replicas were bit-equal."
    )


def test_two_that_are_faster_are_told_why():
    """400 / 30 ms = 13,333: a third more. 30 - 20 - 5 = 5 ms remain; 10 ms were added, 20 saved."""
    text = notes(**FASTER)
    assert text.startswith(
        "Two processes were faster than one on the same windows: 13,333 tokens/s against 10,000 (33.3 % more), in every"
    )
    assert "the all-reduce without waiting took 5.0, and 5.0 remain" in text
    assert "The largest part is computing." in text
    assert "Splitting the rows should save 20.0 ms; all-reduce and rest took 10.0, less: so two are faster." in text
    assert "14,286 tokens/s, more than with two." in text  # four: 400 / 28 ms


def test_ranges_that_overlap_decide_nothing():
    """400 / 40.2 ms = 9,950, from 9,950 / 1.02 to 9,950 / 0.98. 20.2 ms were added."""
    text = notes(**UNDECIDED)
    assert text.startswith(
        "These runs cannot tell whether two processes are faster than one: 9,950 tokens/s (9,755 to 10,153) against "
        "10,000 (9,804 to 10,204), and these ranges overlap."
    )
    assert "Splitting the rows should save 20.0 ms; all-reduce and rest took 20.2; which weighs more is open." in text


def test_a_single_run_decides_nothing_however_far_apart():
    text = notes(repeats=1)
    assert text.startswith(
        "These runs cannot tell whether two processes are faster than one: 8,000 tokens/s against 10,000, and a single "
        "run has no spread."
    )
    assert "6,667 tokens/s, not to be told from two." in text


def test_parts_that_exceed_the_whole_leave_no_rest_to_explain():
    """20 + 5 - 22 = 3 ms too much; 2 ms came on top of computing."""
    text = notes(**NO_REST)
    assert (
        "the all-reduce without waiting took 5.0, "
        "together 3.0 too much: no rest is left, and the model overstates a part or counts an "
        "overlap twice. The larger part is computing."
    ) in text
    assert "Splitting the rows should save 20.0 ms; what came on top took 2.0, less" in text


def test_an_update_that_is_shorter_than_its_computing():
    assert "Splitting the rows should save 20.0 ms, and nothing came on top of computing: so two are faster." in notes(
        **CASES["faster than computing"]
    )


def test_an_all_reduce_that_costs_more_than_is_saved_is_reason_enough():
    assert "Splitting the rows should save 20.0 ms; the all-reduce alone took 25.0: so two are slower." in notes(
        **CASES["all-reduce alone"]
    )


def test_two_processes_that_share_one_core_save_nothing():
    text = notes(**CASES["one core"])
    assert "Computing should take 40.0 (half of one process's 40.0, times 2.0: 2 processes share 1 core)" in text
    assert "Splitting the rows should save 0 ms; the all-reduce alone took 5.0: so two are slower." in text
    assert "4 processes share 1 core and should compute no faster than two" in text


def test_threads_count_where_there_are_several():
    """Three cores, two threads per rank: four processes compute 40 / 4 * 8 / 3 = 26.7 ms, two 40 / 2 * 4 / 3 = 26.7."""
    text = notes(on=machine(cores=3, threads_per_rank=2))
    assert "4 processes of 2 threads share 3 cores and should compute no faster than two" in text


def test_more_processes_than_cores_can_still_be_promised_something():
    """Three cores: four processes compute 40 / 4 * 4 / 3 = 13.3 ms, two 20."""
    assert "4 processes share 3 cores and should gain less than their number promises" in notes(on=machine(cores=3))


def test_two_ways_of_timing_agree_up_to_a_quarter():
    """(20 - 16) / 20 = 20 %; (20 - 14) / 20 = 30 %."""
    told = "(by hook 20.0 ms, by subtraction {})."
    for difference, text in ((16, "Two timings of the all-reduce agree within 20 % "), (14, "all-reduce disagree ")):
        found = notes(hook={2: 20, 4: 8}, difference={2: difference, 4: 8})
        assert f"{text}{told.format(f'{difference}.0')}" in found


def test_a_difference_below_zero_is_noise():
    assert "Timed by subtraction, the all-reduce drowns in the steps' noise (-0.4 ms; by hook 5.0)." in notes(
        **CASES["noise"]
    )


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (replicas(), "At the end the replicas were bit-equal."),
        (
            replicas(bit_equal=False, largest=2**-17),
            "At the end the replicas differed, by up to 7.6e-06 (1e-05 is allowed).",
        ),
        (
            replicas("fail", False, 0.25, {"rank": 1, "parameter": "head.bias", "max_abs_difference": 0.25}),
            "The replicas do not agree: head.bias off by 0.25, more than 1e-05.",
        ),
        (
            replicas("fail", False, 0.0, {"rank": 1, "parameter": "head.bias", "problem": "missing on one side"}),
            "The replicas do not agree: head.bias missing on one side.",
        ),
        (replicas("fail", True), "The replicas do not agree: no tensor was left."),
        (replicas("inconclusive", None), "One rank has no replica to be compared with."),
    ],
)
def test_replicas_are_told_as_they_were_judged(verdict, text):
    assert notes(verdict).endswith(f" {text}")
    assert sum(
        phrase in notes(verdict) for phrase in ("were bit-equal", "replicas differed", "do not agree", "no replica")
    )


# What may be said, in which cases only.
AS_SLOWER = {"slower", "enough cores", "replicas differ", "two timings", "noise", "only two", "everything long"}
ARE_SLOWER = AS_SLOWER | {"one core", "all-reduce alone", "slower without a rest"}
ARE_FASTER = {"faster", "no rest", "faster than computing"}
ARE_OPEN = {"undecided", "one repeat", "everything short"}
WITHOUT_REST = {"no rest", "slower without a rest", "faster than computing", "everything short"}
WITHOUT_CROWD = {"only two", "everything short", "enough cores"}
PHRASES = {
    "slower than one on": ARE_SLOWER,
    "so two are slower": ARE_SLOWER,
    "faster than one on": ARE_FASTER,
    "so two are faster": ARE_FASTER,
    "cannot tell": ARE_OPEN,
    "which weighs more is open": {"undecided", "one repeat"},
    "these ranges overlap": {"undecided"},
    "no spread": {"one repeat", "everything short"},
    "too much": WITHOUT_REST,
    "no rest": WITHOUT_REST,
    "remain": set(CASES) - WITHOUT_REST,
    "all-reduce alone would not": AS_SLOWER,
    "the all-reduce alone took": ARE_SLOWER - AS_SLOWER,
    "nothing came on top": {"faster than computing", "everything short"},
    " share ": set(CASES) - WITHOUT_CROWD,
    "4 processes": set(CASES) - WITHOUT_CROWD,
    "disagree": {"two timings", "everything short"},
    "noise": {"noise", "everything long"},
    "were bit-equal": set(CASES) - {"replicas differ", "everything long"},
    "replicas differed": {"replicas differ", "everything long"},
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_nothing_is_said_where_it_is_not_so(phrase):
    assert {case for case, figures in CASES.items() if phrase in notes(**figures)} == PHRASES[phrase]


@pytest.mark.parametrize("case", CASES)
def test_the_paragraph_has_100_to_150_words(case):
    assert 100 <= len(notes(**CASES[case]).split()) <= 150


def test_every_number_is_one_of_the_figures():
    """Other figures, other numbers: 4 and 2 are processes and cores, 1 a percentage that is rounded up."""
    text = notes(strong={1: 33.0, 2: 44.0, 4: 55.0}, hook={2: 7, 4: 8})
    two, whole = 33 / 2, 44.0
    derived = [400 / 0.044, 400 / 0.033, 400 / 0.055, 25.0, whole, two, 33.0, 7.0, whole - two - 7, whole - two]
    numbers = set(re.findall(r"[0-9][0-9,.]*[0-9]|[0-9]", text))
    assert numbers == {number(value) for value in derived} | {"4", "2", "1"}


def test_compared_needs_ranges_that_are_apart():
    points, _, _ = measured()
    one, two, four = (point_of(points, "strong", processes) for processes in (1, 2, 4))
    assert (compared(two, one), compared(one, two), compared(two, two)) == ("lower", "higher", "undecided")
    assert rest_ms(four) == 60 - 20 - 8


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (100, "100"), (12.34, "12.3"), (-0.41, "-0.41"), (0.123, "0.12"), (1e-15, "0"), (0, "0")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text
