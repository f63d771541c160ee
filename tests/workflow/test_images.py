"""A third kind of work through the same rules: images, epochs of a sampler, BatchNorm, a loader, a profiler."""

import gzip
import json

import pytest
from safetensors.numpy import load_file

from tests.workflow.projects import build, copy_project, digests, rules_to_run
from tests.workflow.test_rebuild import verdicts

# 25 images over two ranks, 2 x 2 rows a window: 4 windows an epoch, and the last holds one row, of rank 0.
TINY_IMAGES = """\
seed: 42
corpus: {kind: images, train: 25, validation: 4, test: 7, classes: 3, size: 8, noise: 0.5}
workload: images
model: {kind: resnet, stages: [4, 8], blocks: 1}
optimizer: {lr: 0.01, momentum: 0.9, weight_decay: 0.0001}
schedule: {kind: cosine}
sharding: by_epoch
augmentation: shift_and_flip
epochs: 2
interrupt_at: 6
batch: 2
accumulation: 2
workers: 1
save_every: 1
profile: true
"""
WINDOWS = 4


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Built. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("images") / "project", TINY_IMAGES)
    build(project, "results/tiny/gate.txt")
    return project


def read(project, name):
    return json.loads((project / "results/tiny" / name).read_text())


def lines(project, name):
    return [json.loads(line) for line in (project / "results/tiny" / name).read_text().splitlines()]


def test_everything_that_is_proven_for_tokens_is_proven_for_images(images):
    parity = verdicts(images, "gradient_parity")
    for dtype in ("native", "float64"):
        unequal = parity[f"token_mean.{dtype}.most_unequal"]
        assert (unequal["outcome"], len(set(unequal["observed"]["units_per_rank"]))) == ("pass", 2)
        control = parity[f"mean_of_means.{dtype}.most_unequal"]
        assert (control["expected"], control["outcome"]) == ("fail", "fail")
        assert parity[f"token_mean.{dtype}.first"]["outcome"] == "inconclusive", "equal counts tell nothing"
    for check in ("loss", "window", "resume", "replicas", "checkpoints", "zero_window"):
        assert {verdict["outcome"] for verdict in verdicts(images, check).values()} == {"pass"}
    assert verdicts(images, "resume")["weights_moved"]["observed"]["unmoved"] == 0


def test_the_resume_goes_on_inside_an_epoch(images):
    """Interrupted after update 6 of 8, of which 5 to 8 are the second epoch."""
    assert 6 % WINDOWS > 0
    parameters = verdicts(images, "resume")["parameters"]
    assert (parameters["outcome"], parameters["observed"]["max_abs_difference"]) == ("pass", 0)
    rates = [record["lr"] for record in lines(images, "runs/resume/history.jsonl")]
    assert rates == [0.01] * WINDOWS + [0.005] * WINDOWS  # 0.01 x (1 + cos(pi / 2)) / 2 in the second of two epochs


def test_each_row_counts_once_per_epoch(images):
    """The sampler repeats a row to give both ranks 13; that one is in no window."""
    plan = read(images, "plan.json")["plan"]
    assert len(plan) == 2 * WINDOWS
    for epoch in (plan[:WINDOWS], plan[WINDOWS:]):
        dealt = [row for window in epoch for of_rank in window for microbatch in of_rank for row in microbatch]
        assert sorted(dealt) == [f"train-{index:05d}" for index in range(25)]
    units = [record["units"] for record in lines(images, "runs/continuous/history.jsonl")]
    assert units == [8, 8, 8, 1] * 2
    test = read(images, "evaluation.json")["test"]
    assert (test["rows"], test["units"], test["unit"]) == (7, 7, "image")


def test_buffers_are_in_the_checkpoint_and_the_same_on_all_ranks(images):
    at = images / "results/tiny/runs/continuous"
    kept, *of_ranks = (
        load_file(path)
        for path in (
            at / "step-0008/model.safetensors",
            at / "ranks/state-rank-0.safetensors",
            at / "ranks/state-rank-1.safetensors",
        )
    )
    buffers = [name for name in kept if "running" in name or "num_batches" in name]
    assert len(buffers) == 3 * 6  # the stem's norm, two in each of two blocks, one beside the second's shortcut
    start = load_file(images / "results/tiny/initial.safetensors")
    for name in buffers:
        assert (kept[name] != start[name]).any(), "statistics moved"
        assert all((kept[name] == held[name]).all() for held in of_ranks)


def test_the_report_speaks_of_images(images):
    page = (images / "results/tiny/report/scores.html").read_text()
    assert "Loss per image" in page
    assert "token" not in page
    assert "frozen statistics" in (images / "results/tiny/report/verdicts.html").read_text()


def test_epochs_are_summed_up(images):
    first, second = lines(images, "runs/continuous/epochs.jsonl")
    assert [(epoch["epoch"], epoch["updates"], epoch["units"]) for epoch in (first, second)] == [(1, 4, 25), (2, 4, 25)]
    history = lines(images, "runs/continuous/history.jsonl")
    assert second["loss"] == pytest.approx(sum(record["loss_sum"] for record in history[WINDOWS:]) / 25)
    assert second["accuracy"] == sum(record["correct"] for record in history[WINDOWS:]) / 25


def test_the_trace_opens_and_the_report_holds_it(images):
    folder = images / "results/tiny/logs/profile/continuous"
    for rank in range(2):
        trace = json.loads(gzip.decompress((folder / f"rank-{rank}.json.gz").read_bytes()))
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"aten::conv2d", "forward"} <= names
    page = (images / "results/tiny/report/profile.html").read_text()
    assert "aten::" in page
    assert "data:application/gzip;base64," in page


def test_a_profile_and_workers_change_no_result(images, tmp_path):
    """The same experiment in a folder of its own, without either: the runs' files are the same bytes."""
    plain = TINY_IMAGES.replace("workers: 1", "workers: 0").replace("profile: true", "profile: false")
    assert plain != TINY_IMAGES
    project = copy_project(tmp_path / "project", plain)
    build(project, "results/tiny/checks/resume.json")
    ours, theirs = (
        {
            name: digest
            for name, digest in digests(of / "results/tiny").items()
            if name.startswith(("runs/", "plan", "corpus")) and "timestamp" not in name
        }
        for of in (project, images)
    )
    assert ours
    assert ours == theirs


def test_a_second_build_does_nothing(images):
    assert rules_to_run(images, "results/tiny/gate.txt") == set()
