"""The chain through Snakemake: from nothing, again, single targets, two rebuilds, by hand."""

import json
import math
import zipfile
from pathlib import Path

import pandas

from tests.workflow.projects import build, copy_project, digests, rules_to_run, run, snakemake

ALL_RULES = {
    "prepare",
    "reference",
    "check_loss",
    "gradients",
    "check_parity",
    "check_window",
    "check_zero_window",
    "interrupt",
    "continuous",
    "resume",
    "check_resume",
    "check_replicas",
    "check_checkpoints",
    "evaluate",
    "check_evaluation",
    "exercise",
    "figure",
    "summary",
    "gate",
    "control_cases",
    "control_ranks",
    "control_table",
    "control_gate",
}


def verdicts(project: Path, check: str) -> dict[str, dict]:
    document = json.loads((project / f"results/tiny/checks/{check}.json").read_text())
    assert document["check"] == check
    return {verdict["case"]: verdict for verdict in document["verdicts"]}


def test_a_dry_run_from_nothing_plans_the_whole_chain(tmp_path):
    assert rules_to_run(copy_project(tmp_path / "project")) == ALL_RULES


def test_one_target_needs_only_its_own_chain(tmp_path):
    project = copy_project(tmp_path / "project")
    needed = rules_to_run(project, "results/tiny/evaluation.json")
    assert needed == {"prepare", "reference", "check_loss", "gradients", "check_parity", "continuous", "evaluate"}


def test_the_built_experiment_proves_what_it_should(built):
    parity = verdicts(built, "gradient_parity")
    assert {case: verdict["outcome"] for case, verdict in parity.items()} == {
        f"{formula}.{dtype}.{window}": outcome
        for formula, outcome in (("token_mean", "pass"), ("mean_of_means", "fail"))
        for dtype in ("native", "float64")
        for window in ("first", "most_unequal")
    }
    assert all(len(set(verdict["observed"]["units_per_rank"])) == 2 for verdict in parity.values())
    resume = verdicts(built, "resume")
    assert resume["weights_moved"]["observed"]["max_abs_difference"] > 0
    assert resume["parameters"]["observed"]["max_abs_difference"] == 0
    zero_window = verdicts(built, "zero_window")["empty_window"]
    assert zero_window["observed"]["ranks_that_refused"] == 2
    assert "window 1" in zero_window["observed"]["messages"]["0"]
    for check in ("loss", "window", "resume", "replicas", "checkpoints", "zero_window", "evaluation"):
        assert {verdict["outcome"] for verdict in verdicts(built, check).values()} == {"pass"}


def test_the_built_controls_are_all_as_expected(built):
    rows = pandas.read_csv(built / "results/controls/controls.csv")
    assert rows["as_expected"].all()
    assert rows["expected"].value_counts().to_dict() == rows["outcome"].value_counts().to_dict()
    assert (rows["expected"] == "fail").sum() >= 24
    assert (rows["expected"] == "pass").sum() >= 24
    assert "controls are refused" in (built / "results/controls/gate.txt").read_text()


def test_the_evaluation_counts_every_row_once(built):
    scores = json.loads((built / "results/tiny/evaluation.json").read_text())
    rows = [json.loads(line) for line in (built / "results/tiny/corpus/rows.jsonl").read_text().splitlines()]
    test_rows = [row for row in rows if row["split"] == "test"]
    assert scores["test"]["rows"] == len(test_rows) == 8
    assert scores["test"]["units"] == sum(len(row["labels"]) for row in test_rows)
    assert math.isclose(scores["test"]["loss"], scores["test"]["loss_sum"] / scores["test"]["units"])


def test_a_second_build_has_nothing_to_do(built):
    before = digests(built / "results")
    assert rules_to_run(built) == set()
    assert "Nothing to be done" in build(built)
    assert digests(built / "results") == before


def test_the_report_needs_no_number_of_cores(built, tmp_path):
    """As `make` calls Snakemake last of all."""
    report = tmp_path / "report.zip"
    done = run(built, "snakemake", "results/tiny/summary.json", "--report", str(report))
    assert done.returncode == 0, done.stdout
    assert any(name.endswith("scores.html") for name in zipfile.ZipFile(report).namelist())


def test_two_rebuilds_are_byte_identical(built, built_again):
    """The controls' bytes are compared in tests/distributed/test_controls_on_ranks.py."""
    first, second = digests(built / "results" / "tiny"), digests(built_again / "results" / "tiny")
    for of_machine in ("environment.json", "settings/environment.json"):
        del second[of_machine]
    assert "runs/resume/step-0004/model.safetensors" in first
    assert {f"figures/resume.{kind}" for kind in ("png", "svg", "pdf")} <= set(first)
    assert first == second


def test_steps_by_hand_write_the_same_files_as_the_rules(built, tmp_path):
    by_hand = tmp_path / "by_hand"
    common = ("--config", "config/tiny.yaml", "--results", str(by_hand))
    ranks = ("ddp_tokens.launch", "--nproc-per-node=2", "-m")
    checkpoint = str(by_hand / "tiny/runs/interrupt/step-0002")
    for command in (
        ("ddp_tokens.cli", "prepare", *common),
        ("ddp_tokens.cli", "reference", *common),
        ("ddp_tokens.cli", "check-loss", *common),
        (*ranks, "ddp_tokens.gradients", *common),
        ("ddp_tokens.cli", "check-parity", *common),
        ("ddp_tokens.cli", "check-window", *common),
        ("ddp_tokens.cli", "check-zero-window", *common),
        (*ranks, "ddp_tokens.train", *common),
        (*ranks, "ddp_tokens.train", *common, "--continuous"),
        (*ranks, "ddp_tokens.train", *common, "--resume", checkpoint),
        ("ddp_tokens.cli", "check-resume", *common),
        ("ddp_tokens.cli", "check-replicas", *common),
        ("ddp_tokens.cli", "check-checkpoints", *common),
        ("ddp_tokens.cli", "evaluate", *common),
        ("ddp_tokens.cli", "check-evaluation", *common),
    ):
        done = run(built, *command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
    expected = digests(built / "results" / "tiny")
    only_of_the_rules = ("settings/", "figures/", "report/", "summary", "gate.txt")
    expected = {name: digest for name, digest in expected.items() if not name.startswith(only_of_the_rules)}
    expected = {name: digest for name, digest in expected.items() if not name.endswith(".snakemake_timestamp")}
    found = digests(by_hand / "tiny")
    assert set(found) == set(expected)
    names_its_paths = ("checks/", "evaluation.json")
    same = {name for name in expected if not name.startswith(names_its_paths)}
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}


def test_lint_has_nothing_to_say(built):
    done = snakemake(built, "--lint")
    assert done.returncode == 0, done.stdout
