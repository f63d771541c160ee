import io
from dataclasses import replace

import pandas
import pytest

from ddp_tokens.checks.verdict import Verdict, write_verdicts
from ddp_tokens.errors import GateError
from ddp_tokens.files import write_json
from ddp_tokens.summary import gate, headline, read_checks, summarize, table, unexpected
from tests.helpers import tiny_experiment


def verdict(case="a", expected="pass", outcome="pass", observed=None, first_difference=None):
    return Verdict(case, expected, outcome, "x <= 1", observed or {}, {}, first_difference)


def control(case="control"):
    return verdict(case, "fail", "fail", {"values": 282628, "max_abs_error": 0.0116}, {"parameter": "head.weight"})


def summary_of(checks, **settings):
    return summarize(tiny_experiment(**settings), checks, {"test": None}, [])


def gate_on(tmp_path, summary):
    write_json(tmp_path / "summary.json", summary)
    return gate(tmp_path / "summary.json")


def test_verdict_files_are_read_in_the_order_given(tmp_path):
    write_verdicts(tmp_path / "z.json", "z", [verdict("first"), verdict("second")])
    write_verdicts(tmp_path / "a.json", "a", [control()])
    checks = read_checks([tmp_path / "z.json", tmp_path / "a.json"])
    assert [(check, [v.case for v in verdicts]) for check, verdicts in checks.items()] == [
        ("z", ["first", "second"]),
        ("a", ["control"]),
    ]


def test_table_has_one_row_per_verdict_with_whole_numbers_left_whole():
    text = table({"loss": [verdict()], "gradient_parity": [control()]})
    assert "282628.0" not in text
    rows = pandas.read_csv(io.StringIO(text)).to_dict("records")
    assert [(row["check"], row["case"], row["as_expected"]) for row in rows] == [
        ("loss", "a", True),
        ("gradient_parity", "control", True),
    ]
    assert rows[1]["max_abs_error"] == 0.0116
    assert rows[1]["first_difference"] == '{"parameter": "head.weight"}'
    assert pandas.isna(rows[0]["max_abs_error"])
    assert pandas.isna(rows[0]["first_difference"])


def test_table_marks_an_outcome_that_is_not_the_expected_one():
    rows = pandas.read_csv(io.StringIO(table({"c": [verdict(outcome="fail"), verdict("b", "fail", "pass")]})))
    assert list(rows["as_expected"]) == [False, False]


def test_control_that_fails_is_as_expected(tmp_path):
    summary = summary_of({"loss": [verdict()], "gradient_parity": [control()]})
    assert summary["as_expected"] is True
    assert headline(summary) == "2 verdicts in 2 checks, all as expected."
    assert gate_on(tmp_path, summary) == "tiny: 2 verdicts in 2 checks, all as expected.\n"


def test_gate_names_every_check_and_case_that_is_not_as_expected(tmp_path):
    summary = summary_of(
        {
            "loss": [verdict("fine")],
            "resume": [verdict("parameters", "pass", "fail")],
            "gradient_parity": [verdict("mean_of_means.native.first", "fail", "pass")],
        }
    )
    assert summary["as_expected"] is False
    with pytest.raises(GateError) as error:
        gate_on(tmp_path, summary)
    assert str(error.value) == (
        "tiny: resume/parameters is fail, expected pass; "
        "gradient_parity/mean_of_means.native.first is pass, expected fail; "
        f"{tmp_path}/report/verdicts.html shows the numbers"
    )


def test_gate_names_the_mistake_that_explains_a_failure(tmp_path):
    explained = replace(verdict("start_rank_0", "pass", "fail"), diagnosis=("optimizer_state_lost", "schedule_lost"))
    sentence = r"start_rank_0 is fail, expected pass \(optimizer_state_lost or schedule_lost\); "
    with pytest.raises(GateError, match=sentence):
        gate_on(tmp_path, summary_of({"resume": [explained]}))


def test_gate_judges_by_the_outcomes_not_by_the_conclusion_in_the_file(tmp_path):
    summary = summary_of({"resume": [verdict("parameters", "pass", "fail")]}) | {"as_expected": True}
    with pytest.raises(GateError, match="resume/parameters is fail, expected pass"):
        gate_on(tmp_path, summary)


def test_inconclusive_passes_only_where_it_is_expected():
    assert unexpected(summary_of({"c": [verdict("w1", "inconclusive", "inconclusive")]})) == []
    assert unexpected(summary_of({"c": [verdict("w2", "fail", "inconclusive")]})) == [
        "c/w2 is inconclusive, expected fail"
    ]


def test_check_without_a_verdict_is_no_success(tmp_path):
    summary = summary_of({"loss": [verdict()], "checkpoints": []})
    assert headline(summary) == "1 verdict in 2 checks, not all as expected: checkpoints holds no verdict."
    with pytest.raises(GateError, match="checkpoints holds no verdict"):
        gate_on(tmp_path, summary)


def test_no_check_at_all_is_no_success(tmp_path):
    with pytest.raises(GateError, match="there is no check"):
        gate_on(tmp_path, summary_of({}))


def test_train_anyway_is_recorded_and_told_by_the_gate(tmp_path):
    summary = summary_of({"loss": [verdict()]}, train_anyway=True)
    assert summary["trained_anyway"] is True
    assert gate_on(tmp_path, summary).splitlines()[1] == "train_anyway was set."
