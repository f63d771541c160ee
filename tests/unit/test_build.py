import pytest

from ddp_tokens.build import main, verdict_table
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


@pytest.fixture
def make(tmp_path, monkeypatch, capsys):
    """Run the build with a `snakemake` of our own, which does what a shell script says; return (code, output)."""
    at = summary(tmp_path / "results", "pass", "fail")
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


def test_when_only_the_gate_fails_report_and_verdicts_are_there(make):
    code, output = make(
        'case "$*" in *--dry-run*) echo "Nothing to be done";; *--report*) touch results/report.zip;; *) exit 1;; esac'
    )
    assert code == 1
    assert "1 of 2 are NOT as expected" in output
    assert "Report: results/report.zip" in output
