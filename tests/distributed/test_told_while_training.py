"""What two real ranks tell while they train on images by epoch: lines, epochs, event files, profiles.

11 images on two ranks, two per rank and window: an epoch has three windows, and in its last one rank 0 holds two images
and rank 1 one. The interruption after update 4 lies inside the second epoch.
"""

import gzip
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddp_tokens import train as train_module
from ddp_tokens.event_files import find_spec
from ddp_tokens.files import digests, read_json, read_json_lines
from ddp_tokens.layout import operators_file, trace_file
from ddp_tokens.training_log import text_log
from ddp_tokens.workloads import images
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import Tiny, prepared, train_as_program

IMAGES, WINDOWS, STEPS, INTERRUPT_AT, STOPPED_AT = 11, 3, 9, 4, 5
SETTINGS = {
    "corpus": {"kind": "images", "train": IMAGES, "validation": 2, "test": 3, "size": 8, "classes": 3},
    "workload": "images",
    "model": {"kind": "resnet", "stages": [4], "blocks": 1},
    "schedule": {"kind": "cosine"},
    "sharding": "by_epoch",
    "augmentation": "shift",
    "steps": STEPS,
    "interrupt_at": INTERRUPT_AT,
    "batch": 2,
    "accumulation": 1,
    "log_interval": 2,
}
TOLD = ("--tensorboard", "--profile", "--log-interval", "4")


def train_counting(world: World, arguments: list[str]) -> dict[str, Any]:
    """ddp_tokens.train as a command; `correct`: what this rank got right in each window, counted by the test."""
    count, counts = images.correct, []

    def counted(outputs: Any, batch: Any) -> Any:
        counts.append(int((outputs.argmax(-1) == batch.labels).sum()))
        return count(outputs, batch)

    images.correct = counted
    return train_as_program(world, arguments) | {"correct": counts}


def train_stopped(world: World, arguments: list[str], after: int) -> dict[str, Any]:
    """Rank 1 is asked to stop in update `after`."""
    train = train_module.train

    def signalled(*given: Any) -> Iterator[dict[str, Any]]:
        for record in train(*given):
            if record["step"] == after and world.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield record

    train_module.train = signalled
    return train_as_program(world, arguments)


def delivered(tiny: Tiny, run: str) -> dict[str, str]:
    """Path -> digest."""
    folder = tiny.at.run(run)
    found = digests(path for path in folder.rglob("*") if path.is_file())
    return {str(Path(path).relative_to(folder)): digest for path, digest in found.items()}


@dataclass(frozen=True)
class Done:
    """`plain`: what the continuous run delivered and `said` what its ranks said, without event files and profiles.
    `told`: what it delivered with both, stopped after update 5 and continued.
    """

    tiny: Tiny
    plain: dict[str, str]
    said: list[dict[str, Any]]
    told: dict[str, str]

    def history(self, run: str = "continuous") -> list[dict[str, Any]]:
        return read_json_lines(self.tiny.at.run(run) / "history.jsonl")

    def epochs(self, run: str = "continuous") -> list[dict[str, Any]]:
        return read_json_lines(self.tiny.at.run(run) / "epochs.jsonl")

    def log(self, rank: int, run: str = "continuous") -> list[str]:
        """Without the times."""
        lines = text_log(self.tiny.at.rank_logs(run), rank).read_text().splitlines()
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
        return [line.partition(" ")[2] for line in lines]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    tiny = prepared(tmp_path_factory.mktemp("images") / "tiny", 2, **SETTINGS)
    continuous = tiny.arguments("--continuous")
    said = run_ranks(train_counting, 2, tiny.folder, continuous, joined=False)
    assert [rank["code"] for rank in said] == [0, 0], said
    plain = delivered(tiny, "continuous")
    shutil.rmtree(tiny.at.run("continuous"))
    stopped = run_ranks(train_stopped, 2, tiny.folder, [*continuous, *TOLD], STOPPED_AT, joined=False)
    assert [rank["code"] for rank in stopped] == [128 + signal.SIGTERM] * 2, stopped
    for rank in (0, 1):
        table = operators_file(tiny.at.profile("continuous"), rank)
        assert read_json(table)["updates"] == [3, 4, 5]
        table.unlink()
    went_on = tiny.train("--continuous", *TOLD)
    assert [rank["code"] for rank in went_on] == [0, 0], went_on
    for more in ([], ["--resume", str(tiny.at.checkpoint("interrupt", INTERRUPT_AT))]):
        assert [rank["code"] for rank in tiny.train(*more)] == [0, 0]
    return Done(tiny, plain, said, delivered(tiny, "continuous"))


def test_event_files_and_a_profile_change_no_bit_of_the_run(done):
    assert {"history.jsonl", "epochs.jsonl", f"step-{STEPS:04d}/model.safetensors"} < set(done.plain)
    assert done.told == done.plain
    assert len({record["loss"] for record in done.history()}) == STEPS, "it trained"


def test_an_epochs_loss_and_accuracy_are_over_all_its_images_on_both_ranks(done):
    """By hand, from what each rank summed and counted; the mean of the ranks' means would be another number."""
    ranks = [read_json_lines(done.tiny.at.run("continuous") / "ranks" / f"rank-{rank}.jsonl") for rank in (0, 1)]
    correct = [rank["correct"] for rank in done.said]
    assert len(done.epochs()) == STEPS // WINDOWS
    for number, summary in enumerate(done.epochs()):
        of_epoch = slice(number * WINDOWS, (number + 1) * WINDOWS)
        units = [sum(record["units"] for record in rank[of_epoch]) for rank in ranks]
        losses = [sum(record["loss_sum"] for record in rank[of_epoch]) for rank in ranks]
        right = [sum(counts[of_epoch]) for counts in correct]
        assert units == [6, 5]
        assert (summary["epoch"], summary["updates"], summary["units"]) == (number + 1, WINDOWS, IMAGES)
        # The same six float64 numbers, added in another order.
        assert summary["loss"] == pytest.approx(sum(losses) / IMAGES, rel=1e-14)
        assert (summary["correct"], summary["accuracy"]) == (sum(right), sum(right) / IMAGES)
        assert summary["loss"] != pytest.approx(numpy.mean([losses[0] / 6, losses[1] / 5]), rel=1e-6)
        assert summary["lr"] == done.history()[of_epoch][-1]["lr"]
    assert sum(sum(counts) for counts in correct) > 0


def test_after_a_resume_inside_an_epoch_its_summary_is_whole(done):
    [first, begun] = done.epochs("interrupt")
    assert first == done.epochs()[0]
    assert (begun["epoch"], begun["updates"], begun["windows"]) == (2, INTERRUPT_AT - WINDOWS, WINDOWS)
    assert done.epochs("resume") == done.epochs()
    whole = done.epochs()[1]
    told = f"epoch 2 of 3: loss {whole['loss']:.4f} over 11 images in 3 updates, accuracy "
    assert next(line for line in done.log(1, "resume") if line.startswith("epoch 2")).startswith(told)


def test_rank_0_tells_the_terminal_and_every_rank_its_file(done):
    first, second = done.said
    lines = [line for line in first["said"].splitlines() if not line.startswith("warning: ")]
    assert re.fullmatch(r"rank 0 of 2 \(process \d+ on \S+\): cpu, .+ GiB; backend gloo, 1 thread, float32", lines[0])
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "update 2 of 9 (epoch 1, window 2 of 3)",
        "epoch 1 of 3",
        "update 4 of 9 (epoch 2, window 1 of 3)",
        "update 6 of 9 (epoch 2, window 3 of 3)",
        "epoch 2 of 3",
        "update 8 of 9 (epoch 3, window 2 of 3)",
        "update 9 of 9 (epoch 3, window 3 of 3)",
        "epoch 3 of 3",
    ]
    record = done.history()[5]
    assert (
        f": loss {record['loss']:.4f} over 3 images, accuracy {100 * record['correct'] / 3:.1f} %, "
        f"lr {record['lr']:.4g}, " in lines[4]
    )
    assert re.search(r"lr \S+, [\d.,]+ images per second$", lines[4])
    assert second["said"] == ""
    assert done.log(1)[0].startswith("warning: "), "that nothing is proven stands in every file"
    logs = [[line for line in done.log(rank) if not line.startswith("warning: ")] for rank in (0, 1)]
    assert logs[0][: len(lines)] == lines
    assert re.match(r"rank 1 of 2 \(process \d+ on \S+\): cpu, ", logs[1][0])
    told = [[re.sub(r"[\d.,]+ images per second", "", line) for line in log[1 : len(lines)]] for log in logs]
    assert told[0] == told[1], "both tell the same global numbers"


def test_a_ranks_file_goes_on_over_restarts(done):
    """Three starts of the continuous run; the second was stopped after update 5."""
    for rank in (0, 1):
        log = done.log(rank)
        assert sum(line.startswith(f"rank {rank} of 2") for line in log) == 3
        assert sum(line.startswith("ddp_tokens.train: stopped by SIGTERM after update 5 of 9") for line in log) == 1
        assert sum(line.startswith("continuing after update 5 of 9") for line in log) == 1
        assert sum(line.startswith("update 8 of 9") for line in log) == 2


def test_event_files_hold_the_history_each_step_once(done):
    """Also over the restart. They hold float32."""
    found = EventAccumulator(str(done.tiny.at.event_files("continuous")))
    found.Reload()
    points = {tag: {point.step: point.value for point in found.Scalars(tag)} for tag in found.Tags()["scalars"]}
    assert all(len(points[tag]) == len(found.Scalars(tag)) for tag in points)
    history, epochs = done.history(), done.epochs()
    assert points["train/loss"] == {record["step"]: numpy.float32(record["loss"]) for record in history}
    assert points["train/lr"] == {record["step"]: numpy.float32(record["lr"]) for record in history}
    accuracy = {record["step"]: numpy.float32(record["correct"] / record["units"]) for record in history}
    assert points["train/accuracy"] == accuracy
    assert points["epoch/loss"] == {3 * summary["epoch"]: numpy.float32(summary["loss"]) for summary in epochs}
    assert set(points["epoch/accuracy"]) == {3, 6, 9}
    assert set(points["train/images_per_second"]) == {4, 8, 9}
    assert not done.tiny.at.event_files("interrupt").exists()


def test_each_rank_leaves_a_trace_that_opens_and_a_table(done):
    """The second start goes on after update 5 and so makes four: it passes over one."""
    for rank in (0, 1):
        with gzip.open(trace_file(done.tiny.at.profile("continuous"), rank), "rt") as stream:
            events = json.load(stream)["traceEvents"]
        names = [event.get("name", "") for event in events]
        assert "aten::convolution" in names
        assert "aten::convolution_backward" in names
        for part in (
            "data",
            "forward",
            "backward",
            "optimizer",
            "all-reduce of the count",
            "all-reduce of the loss sum",
        ):
            assert sum(event.get("cat") == "user_annotation" for event in events if event.get("name") == part) == 3, (
                part
            )
        table = read_json(operators_file(done.tiny.at.profile("continuous"), rank))
        assert (table["rank"], table["updates"], table["device"]) == (rank, [7, 8, 9], "cpu")
        rows = table["operators"]
        assert len(rows) == 20 <= table["all_operators"]
        assert [row["self_cpu_ms"] for row in rows] == sorted((row["self_cpu_ms"] for row in rows), reverse=True)
        assert {"forward", "data", "optimizer"}.isdisjoint(row["name"] for row in rows)
        assert 0.5 < sum(row["share"] for row in rows) <= 1.001
        assert not list(done.tiny.at.profile("continuous").glob(".*"))
    assert not done.tiny.at.profile("interrupt").exists()


def without_tensorboard(world: World, arguments: list[str]) -> dict[str, Any]:
    from ddp_tokens import event_files

    event_files.find_spec = lambda name: None if name == "tensorboard" else find_spec(name)
    return train_as_program(world, arguments)


def test_without_the_package_all_ranks_say_what_to_do_and_nothing_is_trained(done, tmp_path):
    arguments = done.tiny.arguments("--continuous", "--tensorboard")
    ranks = run_ranks(without_tensorboard, 2, tmp_path, arguments, joined=False)
    assert [rank["code"] for rank in ranks] == [2, 2]
    sentence = "tensorboard: true needs the package tensorboard: pip install tensorboard, or leave it out\n"
    assert [rank["said"] for rank in ranks] == [
        f"ddp_tokens.train: {sentence}",
        f"ddp_tokens.train, rank 1: {sentence}",
    ]
    assert delivered(done.tiny, "continuous") == done.told
