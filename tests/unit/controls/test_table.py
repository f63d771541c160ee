import io

import pandas
import pytest

from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.controls.table import (
    COLUMNS,
    Judged,
    all_of,
    csv,
    document,
    gate,
    headline,
    problems,
    row_of,
    weakest,
)
from ddp_tokens.errors import GateError
from ddp_tokens.files import write_json


def verdict(case, outcome=PASS, diagnosis=(), expected=PASS, **observed):
    return Verdict(case, expected, outcome, f"criterion of {case}", observed, {f"{case}.file": "00"}, None, diagnosis)


def test_each_of_several_verdicts_must_be_as_expected():
    """A control that float64 sees and the training dtype does not is not caught."""
    native = verdict("x.native", PASS, error=1.0, tolerance=2.0, power=5.0)
    float64 = verdict("x.float64", FAIL, ("a",), error=3.0, tolerance=1.0, power=9.0)
    judged = weakest("x", FAIL, ("a",), [float64, native])
    assert (judged.case, judged.outcome, judged.problem) == ("x", PASS, "is pass, expected fail")
    assert judged.observed["error"] == 1.0


def test_the_first_stands_for_all_where_all_are_as_expected():
    judged = weakest("x", FAIL, ("a",), [verdict("n", FAIL, ("a",), error=1.0), verdict("f", FAIL, ("a",), error=2.0)])
    assert (judged.problem, judged.observed["error"]) == (None, 1.0)


def test_a_wrong_diagnosis_in_one_is_a_problem():
    judged = weakest("x", FAIL, ("a",), [verdict("n", FAIL, ("a",)), verdict("f", FAIL, ("b",))])
    assert judged.problem == "is diagnosed as b, expected a"


def test_a_right_variant_expects_no_diagnosis():
    assert weakest("x", PASS, (), [verdict("n"), verdict("f")]).expected_diagnosis is None


def test_of_verdicts_that_belong_together_one_failure_is_enough():
    parts = [verdict("a"), verdict("b", FAIL), verdict("c", FAIL, ("cause",)), verdict("d", INCONCLUSIVE)]
    judged = all_of("x", FAIL, ("cause",), parts)
    assert (judged.outcome, judged.diagnosis, judged.problem) == (FAIL, ("cause",), None)
    assert judged.criterion == "criterion of c", "the verdict that names the cause speaks"
    assert set(judged.evidence) == {f"{name}.file" for name in "abcd"}


@pytest.mark.parametrize(("outcomes", "together"), [((PASS, INCONCLUSIVE), INCONCLUSIVE), ((PASS, PASS), PASS)])
def test_the_outcome_of_all_without_a_failure(outcomes, together):
    judged = all_of("x", PASS, (), [verdict(str(index), outcome) for index, outcome in enumerate(outcomes)])
    assert (judged.outcome, judged.diagnosis) == (together, ())


def test_the_error_is_the_largest_difference_that_must_be_zero():
    """The weights that moved between interruption and end are no error."""
    moved = verdict("weights_moved", max_abs_difference=9.0, unmoved=0)
    parts = [moved, verdict("parameters", FAIL, max_abs_difference=0.25), verdict("optimizer", max_abs_difference=0.5)]
    judged = all_of("x", FAIL, (), parts)
    assert (judged.observed["error"], judged.observed["tolerance"], judged.observed["power"]) == (0.5, 0, None)


def test_the_error_of_the_verdict_that_is_beyond_its_tolerance_counts():
    parts = [
        verdict("rows", error=0, tolerance=0),
        verdict("mean", FAIL, ("a",), error=2.0, tolerance=1.0, power=7.0),
        verdict("other", error=0.0, tolerance=1.0, power=99.0),
    ]
    judged = all_of("x", FAIL, ("a",), parts)
    assert [judged.observed[name] for name in ("error", "tolerance", "power")] == [2.0, 1.0, 7.0]


CAUGHT = Judged("normalization", "gradient_parity", weakest("caught", FAIL, ("a",), [verdict("n", FAIL, ("a",))]))
MISSED = Judged("resume", "resume", all_of("missed", FAIL, ("b",), [verdict("n", PASS)]))
RIGHT = Judged("right", "window", weakest("right", PASS, (), [verdict("n", error=0, tolerance=0)]))
UNDECIDED = Judged("undecidable", "gradient_parity", weakest("open", INCONCLUSIVE, (), [verdict("n", INCONCLUSIVE)]))


def test_the_table_has_one_row_per_variant_and_the_columns_in_order():
    frame = pandas.read_csv(io.StringIO(csv([CAUGHT, MISSED, RIGHT, UNDECIDED])))
    assert list(frame.columns[: len(COLUMNS)]) == list(COLUMNS)
    assert COLUMNS == ("name", "kind", "check", "expected", "outcome", "diagnosis", "error", "tolerance", "power")
    assert frame["name"].tolist() == ["caught", "missed", "right", "open"]
    assert frame["as_expected"].tolist() == [True, False, True, True]
    assert frame["diagnosis"].fillna("").tolist() == ["a", "", "", ""]


def test_a_row_keeps_its_numbers():
    row = row_of(Judged("k", "c", weakest("x", PASS, (), [verdict("n", error=1e-9, tolerance=4e-9, power=12.5)])))
    assert (row["error"], row["tolerance"], row["power"]) == (1e-9, 4e-9, 12.5)


def test_the_headline_counts_what_is_as_expected():
    assert headline([CAUGHT, MISSED, RIGHT, UNDECIDED]) == (
        "1 of 2 controls are refused, each by its check and as what it is; 1 of 1 right variants pass; "
        "1 of 1 cases that cannot be decided end inconclusive"
    )


def test_a_control_that_is_not_caught_makes_the_gate_fail(tmp_path):
    write_json(tmp_path / "controls.json", document([CAUGHT, MISSED]))
    with pytest.raises(GateError, match=r"^controls: missed \(resume\) is pass, expected fail; .*controls.html shows"):
        gate(tmp_path / "controls.json")


def test_where_all_is_as_expected_the_gate_says_so(tmp_path):
    write_json(tmp_path / "controls.json", document([CAUGHT, RIGHT]))
    assert gate(tmp_path / "controls.json").startswith("controls: 1 of 1 controls are refused")
    assert problems([CAUGHT, RIGHT]) == []
