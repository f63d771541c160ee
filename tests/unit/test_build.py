import os

import pytest

from ddp_tokens.build import main, told_in_one, verdict_table
from ddp_tokens.files import write_json
from ddp_tokens.layout import Layout


def summary(tmp_path, *outcomes):
    verdicts = [
        {
            "check": "loss",
            "case": f"case_{index}",
            "expected": "pass",
            "outcome": outcome,
            "as_expected": outcome == "pass",
        }
        for index, outcome in enumerate(outcomes)
    ]
    at = Layout(tmp_path / "tiny")
    write_json(at.summary, {"verdicts": verdicts})
    return at


def test_the_table_names_each_verdict_and_concludes(tmp_path):
    table = verdict_table(summary(tmp_path, "pass", "pass"))
    assert "case_0" in table
    assert table.endswith("Verdicts: all 2 are as expected")


def test_an_unexpected_outcome_is_counted(tmp_path):
    assert verdict_table(summary(tmp_path, "pass", "fail")).endswith("Verdicts: 1 of 2 are NOT as expected")


def controls(tmp_path, *problems):
    at = tmp_path / "controls"
    write_json(at / "controls.json", {"headline": "2 of 2 controls are refused", "problems": problems, "verdicts": []})
    return at


def controls_text(at):
    return told_in_one(at / "controls.json", "Controls")


def test_controls_are_told_in_one_sentence(tmp_path):
    assert controls_text(controls(tmp_path)).endswith("controls\n\nControls: 2 of 2 controls are refused")


def test_each_control_that_is_not_as_expected_has_a_line(tmp_path):
    text = controls_text(controls(tmp_path, "a (window) is pass, expected fail", "b (resume) is pass, expected fail"))
    assert text.splitlines()[-2:] == [
        "  NOT as expected: a (window) is pass, expected fail",
        "  NOT as expected: b (resume) is pass, expected fail",
    ]


@pytest.fixture
def make(tmp_path, monkeypatch, capsys):
    """Run the build with a `snakemake` of our own, which does what a shell script says; return (code, output)."""
    at = summary(tmp_path / "results", "pass", "fail")
    controls(tmp_path / "results", "a (window) is pass, expected fail")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text(f"experiments: [{at.root.name}]\n")
    monkeypatch.chdir(tmp_path)

    def run(script):
        program = tmp_path / "bin" / "snakemake"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return main([]), capsys.readouterr().out

    return run


def test_after_a_failed_build_the_verdicts_of_an_earlier_one_are_not_shown(make):
    code, output = make("exit 1")
    assert code == 1
    assert "The build failed" in output
    assert "case_0" not in output
    assert "Controls" not in output


def test_when_only_the_gate_fails_report_and_verdicts_are_there(make):
    code, output = make(
        'case "$*" in *--dry-run*) echo "Nothing to be done";; *--report*) touch results/report.zip;; *) exit 1;; esac'
    )
    assert code == 1
    assert "1 of 2 are NOT as expected" in output
    assert "Controls: 2 of 2 controls are refused\n  NOT as expected: a (window) is pass" in output
    assert "Report: results/report.zip" in output


BUILT = """
case "$*" in --cores*) touch results/report.zip;; *--report*) touch remade;; esac
"""


def test_report_is_made_again_when_the_controls_are_newer(make, tmp_path):
    """As much later as a clock of whole seconds can see."""
    page = tmp_path / "results" / "controls" / "controls.html"
    page.touch()
    os.utime(page, (2**32, 2**32))
    assert make(BUILT)[0] == 0
    assert (tmp_path / "remade").exists()


def test_report_that_is_newer_than_all_it_shows_stays(make, tmp_path):
    for path in (tmp_path / "results" / "controls").iterdir():
        os.utime(path, (0, 0))
    assert make(BUILT)[0] == 0
    assert not (tmp_path / "remade").exists()


UP_TO_DATE = """
case "$*" in
  *--dry-run*) echo "Nothing to be done";;
  *--report*) echo "$*" > asked; touch results/report.zip;;
esac
"""


def audited(tmp_path):
    write_json(tmp_path / "results" / "audit" / "trainers.json", {"headline": "1 of 1", "problems": ["a is pass"]})


def test_audited_trainers_are_shown_where_they_are_there_and_up_to_date(make, tmp_path):
    audited(tmp_path)
    code, output = make(UP_TO_DATE)
    assert code == 0
    assert "results/audit\n\nTrainers: 1 of 1\n  NOT as expected: a is pass" in output
    assert "results/audit/trainers.json" in (tmp_path / "asked").read_text().split()


def test_audited_trainers_are_neither_built_nor_shown_when_they_are_out_of_date(make, tmp_path):
    audited(tmp_path)
    code, output = make(UP_TO_DATE.replace("Nothing to be done", "1 job"))
    assert code == 0
    assert "audit" not in output
    assert "audit" not in (tmp_path / "asked").read_text()


def test_where_no_trainer_was_audited_nothing_is_said_of_it(make, tmp_path):
    code, output = make(UP_TO_DATE)
    assert (code, "audit" in output) == (0, False)
    assert "audit" not in (tmp_path / "asked").read_text()
