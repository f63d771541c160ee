"""What a user reads when something is wrong, and that nothing is lost."""

import json
import pydoc_data.topics
import string
from pathlib import Path

import pytest

from tests.workflow.projects import TINY, build, copy_project, digests, snakemake

GOOD_ROW = {"id": "a", "split": "train", "tokens": [0, 1], "labels": [0, 1]}


def refused(project: Path, *arguments: str) -> str:
    """The output of a call that must fail, without a traceback and without touching a result."""
    before = digests(project / "results")
    done = snakemake(project, *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout, done.stdout
    assert digests(project / "results") == before
    return done.stdout


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("bacth=4", "unknown field 'bacth', did you mean 'batch'?"),
        ("batch=eight", "field 'batch': Input should be a valid integer"),
        ("world_size=0", "field 'world_size': Input should be greater than or equal to 1"),
        ("interrupt_at=4", "interrupt_at 4 must come before the last update, steps 4"),
        ("batch=17", "accumulation x batch = 2 x 17 = 34 rows per rank and window, but the smallest pool holds 32"),
        ("name=other", "field 'name' says other"),
        ("device=cuda", "device cuda needs 2 GPUs (one per rank) and torch sees 0"),
        ("corpus={path: missing.jsonl}", "corpus.path missing.jsonl cannot be read: No such file or directory"),
        (
            "corpus={kind: verb_grammar, train: 100000}",
            "= 100600 sentences, but the grammar makes only 63569 different",
        ),
    ],
)
def test_a_bad_setting_stops_before_the_first_job(built, setting, sentence):
    if setting == "device=cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.device_count() >= 2:
            pytest.skip("this machine has the GPUs that the test needs to be missing")
    assert sentence in refused(built, "--config", setting)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{broken", "rows.jsonl, line 2: broken JSON"),
        (json.dumps(GOOD_ROW), "rows.jsonl, line 2: duplicate id 'a'"),
        (json.dumps(GOOD_ROW | {"id": "b", "tokens": [], "labels": []}), "line 2, id 'b': the row has no token"),
        (
            json.dumps(GOOD_ROW | {"id": "b", "labels": [0, 9]}),
            "line 2, id 'b': label 9 is outside the classes, 0 to 3",
        ),
    ],
)
def test_a_bad_row_stops_before_the_first_job(built, line, sentence):
    rows = built / "rows.jsonl"
    rows.write_text(json.dumps(GOOD_ROW) + "\n" + line + "\n")
    try:
        assert sentence in refused(built, "--config", f"corpus={{path: {rows}, classes: 4}}")
    finally:
        rows.unlink()


def test_an_unproven_gradient_is_not_trained_on_unless_asked(tmp_path):
    """A tolerance below rounding refuses the right formula too."""
    exact = TINY + "tolerances: {float64: 1.0e-30}\n"
    project = copy_project(tmp_path / "project", exact)
    done = snakemake(project, "results/tiny/gate.txt")
    assert done.returncode != 0
    assert "training is refused; set train_anyway to train all the same" in done.stdout
    assert not list((project / "results/tiny/runs").glob("*/step-*"))
    document = json.loads((project / "results/tiny/checks/gradient_parity.json").read_text())
    assert any(verdict["outcome"] != verdict["expected"] for verdict in document["verdicts"])

    done = snakemake(project, "results/tiny/gate.txt", "--config", "train_anyway=true")
    assert done.returncode != 0, "the gate must still fail"
    assert "token_mean.float64.first" in done.stdout
    assert (project / "results/tiny/evaluation.json").is_file()
    assert (project / "results/tiny/summary.csv").is_file(), "the evidence must survive the gate"
    assert not (project / "results/tiny/gate.txt").exists()
    assert "train_anyway" in (project / "results/tiny/report/verdicts.html").read_text()
    shown = ("results/tiny/summary.json", "results/tiny/figures/tokens.png")
    report = snakemake(project, *shown, "--report", "results/report.zip", "--config", "train_anyway=true")
    assert report.returncode == 0, report.stdout
    assert (project / "results/report.zip").is_file()


def test_an_override_that_fits_one_experiment_builds_that_one(tmp_path):
    """`second` is refused wherever it may be built, and not read where only `tiny` is named, in a child neither."""
    project = copy_project(tmp_path / "project")
    (project / "config/second.yaml").write_text(TINY + "optimizer: {kind: adamw}\n")
    (project / "config/config.yaml").write_text("experiments: [tiny, second]\n")
    override = ("--config", "optimizer={momentum: 0.5}", "batch=3")
    sentence = "config/second.yaml, as overridden on the command line: field 'optimizer.momentum' belongs to kind sgd"
    hint = "; to build one experiment only, name its target, such as results/tiny/gate.txt"
    for everything in ((), ("all",), ("results/tiny/gate.txt", "controls")):
        said = refused(project, *everything, "--dry-run", *override)
        assert sentence in said
        assert hint in said
    said = refused(project, "results/second/gate.txt", "--dry-run", *override)
    assert sentence in said
    assert hint not in said

    build(project, "results/tiny/gate.txt", "--dry-run", *override)
    build(project, "results/tiny/corpus/lock.json", *override)
    settings = json.loads((project / "results/tiny/settings/prepare.json").read_text())
    assert settings["settings"]["batch"] == 3
    assert (project / "results/tiny/corpus/lock.json").is_file()
    assert not (project / "results/second").exists()
    job = ("--target-jobs", "prepare:experiment=tiny", "--allowed-rules", "prepare", "--force", "--no-hooks")
    build(project, *job, *override)  # a job in a process of its own, as other executors start it


def paragraphs() -> list[str]:
    """Real text of very unequal paragraphs that every Python carries."""
    text = "\n\n".join(pydoc_data.topics.topics[topic] for topic in sorted(pydoc_data.topics.topics)[:24])
    return [" ".join(part.split())[:300] for part in text.split("\n\n") if part.strip()]


def character_class(character: str) -> int:
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits, string.whitespace)
    return next((index for index, kind in enumerate(kinds) if character in kind), len(kinds))


def test_own_rows_of_real_text_go_through_the_whole_chain(tmp_path):
    experiment = TINY.replace(TINY.splitlines()[0], "corpus: {path: rows.jsonl}")
    project = copy_project(tmp_path / "project", experiment)
    texts = paragraphs()
    assert max(map(len, texts)) > 10 * min(map(len, texts))
    with open(project / "rows.jsonl", "w") as stream:
        for index, text in enumerate(texts):
            split = "test" if index % 10 == 0 else "train"
            labels = [character_class(character) for character in text]
            stream.write(json.dumps({"id": f"p{index}", "split": split, "tokens": list(text), "labels": labels}) + "\n")
    build(project, "results/tiny/gate.txt")
    lock = json.loads((project / "results/tiny/corpus/lock.json").read_text())
    assert lock["shape"] == {"vocabulary": len(set("".join(texts))), "classes": 5, "positions": max(map(len, texts))}
    assert (project / "results/tiny/gate.txt").is_file()
    scores = json.loads((project / "results/tiny/evaluation.json").read_text())
    assert scores["test"]["units"] == sum(len(text) for text in texts[::10])
