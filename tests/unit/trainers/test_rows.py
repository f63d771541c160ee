import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.errors import EvidenceError
from ddp_tokens.trainers.cases import Case
from ddp_tokens.trainers.rows import NOT_RUN, of_tolerance, read_run, row_from
from tests.unit.trainers.synthetic import run, window

PATH = Path("runs/x.json")
RIGHT = Case("x", "trainer", "package", "setting", "script.py", (), "pass")
WRONG = replace(RIGHT, expected="fail", diagnosis=("mean_of_means", "another"))


def row(*windows, case=RIGHT, **changed):
    return row_from(case, run(*windows, **changed), PATH)


def test_a_row_states_the_window_that_is_the_most_tolerances_off():
    """0.2 / 0.1 = 2 tolerances, 0.9 / 0.3 = 3, 5 / 5 = 1: neither the largest error nor the last window."""
    windows = [window(1, "fail", 0.2, 0.1), window(2, "fail", 0.9, 0.3), window(3, "fail", 5.0, 5.0)]
    found = row(*windows)
    assert (found.window, found.windows, found.verdict.observed["error"]) == (2, 3, 0.9)
    assert found.of_tolerance == pytest.approx(3.0)


def test_a_window_that_fails_comes_before_those_that_pass():
    found = row(window(1, "pass", 0.9, 1.0), window(2, "fail", 0.5, 1.0, ["a"], ["clipped"]), outcome="fail")
    assert (found.window, found.verdict.outcome, found.verdict.diagnosis) == (2, "fail", ("a",))
    assert found.notes == ("clipped",)


def test_a_window_that_decides_nothing_says_nothing_of_one_that_does():
    found = row(window(1, "inconclusive", 0.9, 1.0), window(2, "pass", 0.1, 1.0), outcome="pass")
    assert (found.window, found.verdict.outcome) == (2, "pass")


def test_a_row_keeps_what_the_run_says():
    found = row(window(1, "pass", 1e-7), version="5.24.0", speed=0.75)
    assert (found.version, found.sentence, found.speed) == ("5.24.0", "it is pass", 0.75)
    assert found.is_run


@pytest.mark.parametrize(
    ("diagnosis", "problem"),
    [
        (["mean_of_means", "another"], None),
        (["another", "mean_of_means"], None),  # in whatever order
        (["mean_of_means"], "is diagnosed as mean_of_means, expected another or mean_of_means"),
        ([], "is diagnosed as nothing known, expected another or mean_of_means"),
        (
            ["another", "mean_of_means", "third"],
            "is diagnosed as another or mean_of_means or third, expected another or mean_of_means",
        ),
    ],
)
def test_all_expected_names_must_be_found_and_no_others(diagnosis, problem):
    assert row(window(1, "fail", 1.0, diagnosis=diagnosis), case=WRONG).problem == problem


def test_the_outcome_must_be_the_expected_one():
    assert row(window(1, "pass", 0.0), case=WRONG).problem == "is pass, expected fail"
    assert row(window(1, "inconclusive", 0.0)).problem == "is inconclusive, expected pass"
    assert row(window(1, "pass", 0.0)).problem is None


def test_a_trainer_that_was_not_run_is_no_problem_and_says_why():
    found = row_from(RIGHT, {"version": None, "problem": "x is not installed"}, PATH)
    assert (found.verdict.outcome, found.sentence, found.version) == (NOT_RUN, "x is not installed", None)
    assert (found.is_run, found.problem, found.speed, found.window) == (False, None, None, None)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        ({"error": 1e-3, "tolerance": 1e-6}, 1000.0),
        ({"error": 0.0, "tolerance": 0}, 0.0),
        ({"error": 3, "tolerance": 0}, math.inf),
        ({"error": "nan", "tolerance": 1e-6}, math.inf),
        ({"error": None, "tolerance": None}, math.inf),
        ({}, math.inf),
    ],
)
def test_error_in_tolerances(observed, expected):
    assert of_tolerance(Verdict("", "", "", "", observed, {})) == pytest.approx(expected)


GOOD = run(window(1, "pass", 1e-7))


def changed_in(document, **changed):
    return {**document, **changed}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "field 'version': Field required"),
        (changed_in(GOOD, tokens_per_second=0), "field 'tokens_per_second': Input should be greater than 0"),
        (changed_in(GOOD, bare_tokens_per_second="fast"), "field 'bare_tokens_per_second': Input should be a valid"),
        (changed_in(GOOD, report=None), "field 'report': Input should be"),
        (run(outcome="pass"), "field 'report.windows': Tuple should have at least 1 item"),
        (run(window(1, "pass", 0.0), outcome="good"), "field 'report.outcome': Input should be 'pass', 'fail' or"),
        (run({"window": 1}, outcome="pass"), "field 'report.windows.0.verdict': Field required"),
        (run({"window": 1, "verdict": {}}, outcome="pass"), "field 'report.windows.0.verdict.case': Field required"),
        ({"problem": 3}, "field 'problem': Input should be a valid string"),
        (run(window(1, "pass", 0.0), outcome="fail"), "field 'report.outcome' says fail, its windows say pass"),
        (
            run(window(1, "fail", 9.0), window(2, "pass", 0.0), outcome="pass"),
            "field 'report.outcome' says pass, its windows say fail, pass",
        ),
        (
            run(window(1, "inconclusive", None), window(2, "pass", 0.0), outcome="inconclusive"),
            "field 'report.outcome' says inconclusive, its windows say inconclusive, pass",
        ),
    ],
)
def test_a_malformed_run_is_one_sentence_that_names_the_field(document, problem):
    with pytest.raises(EvidenceError, match=rf"^runs/x\.json: {re.escape(problem)}") as refusal:
        row_from(RIGHT, document, PATH)
    assert str(refusal.value).endswith("; delete it and run `snakemake --cores 2 audit` again")
    assert "\n" not in str(refusal.value)


def test_a_run_that_is_missing_or_no_json_is_one_sentence(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(EvidenceError, match=r"x\.json does not exist; run the step that makes it"):
        read_run(path)
    path.write_text("{")
    with pytest.raises(EvidenceError, match=r"x\.json is not valid JSON"):
        read_run(path)
    path.write_text("[]")
    with pytest.raises(EvidenceError, match=r"x\.json holds no fields; delete it"):
        read_run(path)
