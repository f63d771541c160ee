"""The cosine schedule through the real command: the rate of every record, per epoch and per update, also after a resume
inside an epoch; and working checkpoints at the ends of epochs.
"""

import math
import shutil
from typing import Any

import pytest

from ddp_tokens.files import read_json_lines
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.test_interrupted import continued, kept, of_run, outputs, stopped
from tests.distributed.tiny import STEPS, Tiny, prepared
from tests.distributed.tiny_images import EPOCHS, IMAGES, LR, WINDOWS_PER_EPOCH, kill_in

FINAL = 0.0625
SCHEDULES: dict[str, dict[str, Any]] = {
    "epoch": {"schedule": {"kind": "cosine", "final_lr": FINAL}},
    "update": {"schedule": {"kind": "cosine", "final_lr": FINAL, "per": "update"}},
    "inside": {"schedule": {"kind": "cosine", "final_lr": FINAL}, "steps": STEPS - 1},
}


def rate(done: int, whole: int) -> float:
    return FINAL + (LR - FINAL) * (1 + math.cos(math.pi * done / whole)) / 2


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory):
    """Schedule -> a tiny experiment of images; all but `inside` with its three runs done. Read only."""
    done: dict[str, Tiny] = {}

    def of(name: str) -> Tiny:
        if name not in done:
            done[name] = prepared(tmp_path_factory.mktemp(name) / "tiny", 2, **IMAGES | SCHEDULES[name])
            if name == "inside":
                assert [rank["code"] for rank in done[name].train("--continuous")] == [0, 0]
            else:
                done[name].train_all()
        return done[name]

    return of


def rates(tiny: Tiny, run: str) -> list[float]:
    return [record["lr"] for record in read_json_lines(tiny.at.run(run) / "history.jsonl")]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_record_holds_the_rate_of_its_update(scheduled, name):
    """A run of five updates ends inside its third epoch, which counts. 1e-12: torch works out one rate from another."""
    tiny = scheduled(name)
    if name == "update":
        expected = [rate(step, STEPS) for step in range(STEPS)]
    else:
        expected = [rate(step // WINDOWS_PER_EPOCH, EPOCHS) for step in range(STEPS - (name == "inside"))]
    found = rates(tiny, "continuous")
    assert found == pytest.approx(expected, rel=1e-12)
    assert len(set(found)) == (STEPS if name == "update" else EPOCHS)


@pytest.mark.parametrize("name", ["epoch", "update"])
def test_a_resume_inside_an_epoch_has_the_same_rates_and_bits(scheduled, name):
    tiny = scheduled(name)
    assert rates(tiny, "resume") == rates(tiny, "continuous")
    verdicts = tiny.resume_verdicts()
    assert {case: verdict.first_difference for case, verdict in verdicts.items() if not verdict.as_expected} == {}
    moved = verdicts["weights_moved"].observed["max_abs_difference"]
    assert moved > 1e-3


def test_epochs_are_those_of_the_plan_also_where_its_windows_are_dealt_to_fewer_ranks(copied):
    """Planned for one rank, 13 rows would make four windows and not two: the rate would not fall after update 2."""
    assert [rank["code"] for rank in copied.train("--interrupt-at", "1")] == [0, 0]
    interrupted, alone = copied.at.checkpoint("interrupt", 1), Tiny(copied.folder, 1)
    more = ("--resume", str(interrupted), "--world-size", "1", "--allow-repartition")
    assert [rank["code"] for rank in alone.train(*more)] == [0]
    assert rates(alone, "resume") == rates(copied, "continuous")


@pytest.fixture
def copied(scheduled, tmp_path) -> Tiny:
    return Tiny(shutil.copytree(scheduled("epoch").folder, tmp_path / "tiny"), 2)


@pytest.mark.parametrize(
    ("save_every", "left"), [("1", ["step-0002", "step-0004", "step-0005"]), ("2", ["step-0004", "step-0005"])]
)
def test_working_checkpoints_at_the_ends_of_epochs_in_place_of_every_few_updates(copied, save_every, left):
    """Stopped in update 5, which is kept besides."""
    before = outputs(copied)
    arguments = [*of_run(copied, "continuous"), "--save-every", save_every, "--checkpoint-every", "1", "--keep", "9"]
    stopped(copied, *arguments, after=5)
    assert kept(copied, "continuous") == left
    continued(copied, *arguments, after=5)
    assert outputs(copied) == before


def test_a_killed_run_goes_on_from_the_end_of_the_last_whole_epoch(copied):
    before = outputs(copied)
    arguments = [*of_run(copied, "continuous"), "--save-every", "1"]
    with pytest.raises(RankError, match="rank 1 ended with exit code -9"):
        run_ranks(kill_in, 2, copied.folder, copied.arguments(*arguments), 4, joined=False)
    assert kept(copied, "continuous") == ["step-0002"]
    continued(copied, *arguments, after=2)
    assert outputs(copied) == before
