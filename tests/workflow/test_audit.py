"""`snakemake audit`: every example script is run, and its trainer is found to be what the table says."""

import csv
import json
from pathlib import Path

import pytest

from ddp_tokens.trainers.cases import CASES
from tests.workflow.projects import PROJECT, build, copy_project, rules_to_run

ROUNDING = 1e-5  # of a residual: a formula that is meant is met within float32's rounding


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = copy_project(tmp_path_factory.mktemp("audited") / "project")
    build(project, "audit")
    return project


def rows(project: Path) -> list[dict[str, str]]:
    with (project / "results" / "audit" / "trainers.csv").open() as table:
        return list(csv.DictReader(table))


def document_of(project: Path, case: str) -> dict:
    return json.loads((project / "results" / "audit" / "runs" / f"{case}.json").read_text())


def test_every_example_is_a_row_of_the_table():
    scripts = {path.name for path in (PROJECT / "examples").glob("*.py")} - {"shared.py"}
    assert {case.script for case in CASES} == scripts


@pytest.mark.parametrize("place", range(len(CASES)), ids=[case.name for case in CASES])
def test_right_ones_pass_and_wrong_ones_are_named(audited, place):
    found, case = rows(audited), CASES[place]
    assert len(found) == len(CASES)
    row = found[place]
    assert (row["trainer"], row["setting"]) == (case.trainer, case.setting)
    if row["outcome"] == "not run":
        pytest.skip(f"{case.package} is not installed: make trainers")
    assert (row["outcome"], row["diagnosis"]) == (case.expected, " or ".join(case.diagnosis))
    is_right = case.expected == "pass"
    assert (float(row["error"]) <= float(row["tolerance"])) == is_right
    assert bool(row["remedy"]) != is_right
    assert is_right or float(row["residual"]) < ROUNDING
    assert float(row["speed"]) > 0


def test_nothing_passes_on_windows_that_would_show_nothing(audited):
    """Counts are unequal between ranks and between microbatches, in both windows of every case that ran."""
    reports = [document["report"] for case in CASES if "report" in (document := document_of(audited, case.name))]
    assert len(reports) >= sum(case.package == "torch" for case in CASES)
    for report in reports:
        assert len(report["windows"]) == 2
        for window in report["windows"]:
            units = window["seen"]["units"]
            assert len({sum(of_rank) for of_rank in units}) == len(units) == 2
            assert all(len(set(of_rank)) > 1 for of_rank in units)


def test_all_of_one_formula_have_the_same_windows(audited):
    """Trainers differ in nothing but what they do: each was given the rows of the plan."""
    seen = {
        json.dumps([window["seen"]["units"] for window in document["report"]["windows"]])
        for document in (document_of(audited, case.name) for case in CASES)
        if "report" in document
    }
    assert len(seen) == 1


def test_the_gate_says_so_and_nothing_is_done_twice(audited):
    assert (audited / "results" / "audit" / "gate.txt").read_text().startswith("audit: ")
    assert rules_to_run(audited, "audit") == set()
    made = {path.name for path in (audited / "results" / "audit").iterdir() if path.name.startswith("trainers")}
    assert made == {f"trainers.{suffix}" for suffix in ("json", "csv", "html", "png", "svg", "pdf")}
