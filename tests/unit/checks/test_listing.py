import os
import shutil

import pytest

from ddp_tokens import cli
from ddp_tokens.checks.checkpoints import check_checkpoints
from ddp_tokens.checks.verdict import read_verdicts
from ddp_tokens.layout import all_checkpoints_in
from ddp_tokens.listing import COLUMNS, age, listed

WRITTEN = 1_700_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.9, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (86400 * 2.5, "2 d")],
)
def test_an_age_in_the_largest_whole_unit(seconds, text):
    assert age(seconds) == text


def test_each_checkpoint_has_a_row_also_a_damaged_one(runs):
    damaged = runs / "resume" / "step-0004"
    (damaged / "manifest.json").unlink()
    directories = all_checkpoints_in(runs)
    for directory in directories:
        os.utime(directory, (WRITTEN, WRITTEN))
    rows = listed(directories, check_checkpoints(directories), now=WRITTEN + 90)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    by_name = {row[0]: row[1:] for row in rows}
    assert list(by_name) == ["continuous/step-0004", "interrupt/step-0002", "resume/step-0004"]
    size = sum(path.stat().st_size for path in (runs / "interrupt" / "step-0002").iterdir())
    assert by_name["interrupt/step-0002"] == ["2", "1", f"{size / 1e6:.1f} MB", "1 min", "yes"]
    step, world_size, _, _, whole = by_name["resume/step-0004"]
    assert (step, world_size) == ("?", "?")
    assert whole.startswith("NO: ")
    assert "has no manifest.json" in whole


@pytest.fixture
def command(runs, tmp_path, capsys):
    """The command on these runs, beside the working checkpoint of a run that has not ended: exit code and text."""
    root = tmp_path / "results" / "tiny"
    root.mkdir(parents=True)
    shutil.move(runs, root / "runs")
    shutil.copytree(root / "runs" / "interrupt" / "step-0002", root / "runs" / ".resume.0f3a" / "step-0002")
    (tmp_path / "tiny.yaml").write_text("seed: 17\n")

    def call():
        arguments = ["--config", str(tmp_path / "tiny.yaml"), "--results", str(tmp_path / "results")]
        return cli.main(["check-checkpoints", *arguments]), capsys.readouterr().out

    return root, call


def test_the_command_lists_all_and_its_verdicts_tell_no_age(command):
    root, call = command
    code, text = call()
    assert code == 0
    for column in (*COLUMNS, ".resume.0f3a/step-0002", "interrupt/step-0002", "resume/step-0004"):
        assert column in text
    content = (root / "checks" / "checkpoints.json").read_bytes()
    assert b".resume" not in content
    for directory in all_checkpoints_in(root / "runs"):
        os.utime(directory, (WRITTEN, WRITTEN))
    code, later = call()
    assert (code, later == text) == (0, False)
    assert (root / "checks" / "checkpoints.json").read_bytes() == content


@pytest.mark.parametrize("damaged", [".resume.0f3a/step-0002", "interrupt/step-0002"])
def test_the_command_fails_for_a_damaged_one_wherever_it_lies(command, damaged):
    root, call = command
    (root / "runs" / damaged / "rank-0.json").unlink()
    code, text = call()
    assert code == 1
    [row] = [line for line in text.splitlines() if line.startswith(damaged)]
    assert "NO:" in row
    _, verdicts = read_verdicts(root / "checks" / "checkpoints.json")
    assert {verdict.case for verdict in verdicts if verdict.outcome == "fail"} == {damaged} - {".resume.0f3a/step-0002"}


def test_only_working_checkpoints_leave_no_verdicts(command):
    root, call = command
    for run in ("interrupt", "continuous", "resume"):
        shutil.rmtree(root / "runs" / run)
    assert call()[0] == 0
    assert not (root / "checks").exists()
