from pathlib import Path

from ddp_tokens.layout import Layout, all_checkpoints_in, checkpoint_name, checkpoints_in

AT = Layout(Path("results/minimum"))


def test_files_lie_where_the_rules_expect_them():
    assert str(AT.rows) == "results/minimum/corpus/rows.jsonl"
    assert str(AT.lock) == "results/minimum/corpus/lock.json"
    assert str(AT.plan) == "results/minimum/plan.json"
    assert str(AT.reference("float64")) == "results/minimum/reference/float64.safetensors"
    assert str(AT.gradients("token_mean", "native")) == "results/minimum/gradients/token_mean.native.safetensors"
    assert str(AT.check("loss")) == "results/minimum/checks/loss.json"
    assert str(AT.checkpoint("resume", 100)) == "results/minimum/runs/resume/step-0100"


def test_names_of_checkpoints_sort_by_step():
    assert [checkpoint_name(step) for step in (7, 50, 1000)] == ["step-0007", "step-0050", "step-1000"]


def test_only_whole_checkpoints_are_listed(tmp_path):
    for name in ("step-0050", "step-0007", ".step-0060.tmp", "ranks"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-notes.txt").write_text("a file")
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-0007", "step-0050"]


def test_checkpoints_of_finished_and_of_unfinished_runs(tmp_path):
    """A folder that is still being written has another name, and no file is a checkpoint."""
    for name in (
        "resume/step-0004",
        ".resume.0f3a/step-0002",
        "interrupt/step-0002",
        "interrupt/.step-0004.tmp",
        "other",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "resume" / "step-0005").touch()
    found = [str(path.relative_to(tmp_path)) for path in all_checkpoints_in(tmp_path)]
    assert found == [".resume.0f3a/step-0002", "interrupt/step-0002", "resume/step-0004"]
