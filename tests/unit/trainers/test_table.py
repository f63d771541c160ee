import io
import json
from dataclasses import replace

import pandas
import pytest

from ddp_tokens.errors import EvidenceError, GateError
from ddp_tokens.files import read_json, write_json
from ddp_tokens.trainers.table import (
    COLUMNS,
    csv,
    document,
    gate,
    headline,
    problems,
    read_trainers,
    row_of,
    rows_in,
    this_machine,
)
from tests.unit.trainers.synthetic import CASES, MACHINE, missed, run, runs, trainers, window


@pytest.fixture
def table(tmp_path):
    return trainers(tmp_path / "runs")


@pytest.fixture
def missed_table(tmp_path):
    return trainers(tmp_path / "runs", **missed())


def changed_case(name, **fields):
    return [replace(case, **fields) if case.name == name else case for case in CASES]


def test_rows_stand_in_the_order_of_the_cases(tmp_path, table):
    assert [row.case for row in table.rows] == list(CASES)
    write_json(tmp_path / "runs" / "other.json", {})
    backwards = read_trainers(reversed(CASES), tmp_path / "runs", MACHINE)
    assert [row.case.name for row in backwards.rows] == [case.name for case in reversed(CASES)], "and no other file is"


def test_a_missing_run_is_one_sentence(tmp_path, table):
    (tmp_path / "runs" / "hf.json").unlink()
    with pytest.raises(EvidenceError, match=r"runs/hf\.json does not exist; run the step that makes it$"):
        read_trainers(CASES, tmp_path / "runs", MACHINE)


def test_the_headline_counts_what_is_as_expected_and_names_what_was_not_run(table, missed_table):
    assert headline(table.rows) == (
        "2 of 2 wrong settings are refused, each as what it is; 2 of 2 have a remedy that was run and passes; "
        "2 of 2 right settings pass; 1 of 1 settings that cannot be decided end inconclusive; "
        "1 of 6 is not run here: zero"
    )
    assert headline(missed_table.rows).startswith(
        "1 of 2 wrong settings are refused, each as what it is; 1 of 2 have a remedy that was run and passes; "
        "1 of 2 right settings pass; "
    )


def test_what_was_not_run_is_left_out_of_the_other_counts(tmp_path):
    absent = {"version": None, "problem": "transformers is not installed"}
    rows = trainers(tmp_path, hf=absent, hf_named=absent).rows
    assert headline(rows) == (
        "1 of 1 wrong settings are refused, each as what it is; 1 of 1 have a remedy that was run and passes; "
        "1 of 1 right settings pass; 1 of 1 settings that cannot be decided end inconclusive; "
        "3 of 6 are not run here: hf, hf_named, zero"
    )
    assert problems(rows) == []


def test_problems_name_the_row_and_the_remedy_that_does_not_work(table, missed_table):
    assert problems(table.rows) == []
    assert problems(missed_table.rows) == [
        "bare_means is pass, expected fail",
        "hf is fail, expected pass",
        "hf_named should be made right by hf, which is fail",
    ]


@pytest.mark.parametrize(
    ("made_right_by", "problem"),
    [
        ("", "hf_named names no case that makes it right"),
        ("nobody", "hf_named should be made right by nobody, which is no case"),
        ("equal", "hf_named should be made right by equal, which is inconclusive"),
        ("hf_named", "hf_named should be made right by hf_named, which is fail"),
    ],
)
def test_each_wrong_row_has_a_remedy_that_passes(tmp_path, made_right_by, problem):
    rows = trainers(tmp_path, changed_case("hf_named", made_right_by=made_right_by)).rows
    assert problems(rows) == [problem]


def test_a_remedy_that_was_not_run_is_not_held_against_the_row(tmp_path):
    assert problems(trainers(tmp_path, changed_case("hf_named", made_right_by="zero")).rows) == []


def test_trainers_json_holds_every_run_whole_and_gives_the_rows_back(tmp_path, table):
    path = tmp_path / "trainers.json"
    write_json(path, document(table))
    stated = read_json(path)
    assert stated["headline"] == headline(table.rows)
    assert (stated["problems"], stated["machine"]) == ([], MACHINE)
    assert [one["run"] for one in stated["trainers"]] == [json.loads(json.dumps(runs()[case.name])) for case in CASES]
    assert rows_in(path) == list(table.rows)
    assert gate(path) == f"audit: {headline(table.rows)}.\n"


def test_the_gate_names_each_problem_and_the_page(tmp_path, missed_table):
    path = tmp_path / "trainers.json"
    write_json(path, document(missed_table) | {"problems": []})  # what it says of itself is not believed
    with pytest.raises(
        GateError, match=r"^audit: bare_means is pass, expected fail; hf is fail, .*trainers.html shows"
    ):
        gate(path)


def test_an_empty_table_is_no_pass(tmp_path):
    write_json(tmp_path / "trainers.json", {"trainers": []})
    with pytest.raises(GateError, match=r"^audit: .*trainers\.json holds no trainer; "):
        gate(tmp_path / "trainers.json")


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ([], "Input should be"),
        ({}, "field 'trainers': Field required"),
        ({"trainers": [{"run": {}}]}, "field 'trainers.0.case': Field required"),
    ],
)
def test_a_malformed_table_is_one_sentence(tmp_path, stated, problem):
    write_json(tmp_path / "trainers.json", stated)
    with pytest.raises(EvidenceError, match=rf"trainers\.json: {problem}.*; delete it and run "):
        rows_in(tmp_path / "trainers.json")


def test_the_table_has_one_row_per_case_and_the_columns_in_order(table):
    frame = pandas.read_csv(io.StringIO(csv(table.rows)))
    assert list(frame.columns[: len(COLUMNS)]) == [
        *("trainer", "version", "setting", "outcome", "expected", "error", "tolerance", "residual", "diagnosis"),
        *("speed", "remedy", "as_expected"),
    ]
    assert frame["case"].tolist() == [case.name for case in CASES]
    assert frame["outcome"].tolist() == ["pass", "fail", "pass", "fail", "inconclusive", "not run"]
    assert frame["as_expected"].tolist()[:5] == [True] * 5
    assert frame.iloc[5][["version", "error", "speed", "as_expected"]].isna().all()
    assert frame["sentence"].iloc[5] == "deepspeed is not installed: pip install deepspeed"


def test_a_row_keeps_its_numbers(tmp_path):
    row = trainers(tmp_path, hf=run(window(1, "pass", 1e-9, 4e-9, residual=0.5), speed=0.5)).rows[2]
    of_row = row_of(row)
    assert [of_row[name] for name in ("error", "tolerance", "residual", "speed", "window")] == [1e-9, 4e-9, 0.5, 0.5, 1]
    assert (of_row["tokens_per_second"], of_row["bare_tokens_per_second"]) == (500.0, 1000.0)


def test_the_machine_is_told_in_words():
    told = this_machine()
    assert list(told) == list(MACHINE)
    assert all(isinstance(value, str) and value for value in told.values())
