"""What is written for TensorBoard, read back by TensorBoard's own reader."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddp_tokens import event_files
from ddp_tokens.errors import ConfigError
from ddp_tokens.event_files import EventFiles, require_tensorboard


def points(folder):
    """Tag -> [(step, value), ...]."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def write(folder, after, until, loss):
    events = EventFiles(folder, after)
    for step in range(after + 1, until + 1):
        events.update(step, {"loss": loss, "lr": 0.5, "gradient_norm": None})
    events.close()


def test_values_are_read_back_and_what_there_is_none_of_is_left_out(tmp_path):
    write(tmp_path, 0, 2, loss=0.25)
    assert points(tmp_path) == {"train/loss": [(1, 0.25), (2, 0.25)], "train/lr": [(1, 0.5), (2, 0.5)]}


def test_a_start_that_goes_on_before_the_last_point_leaves_no_step_twice(tmp_path):
    """Killed after update 4 and gone on from a checkpoint of update 2: the first start's points 3 and 4 are void."""
    write(tmp_path, 0, 4, loss=1.0)
    write(tmp_path, 2, 5, loss=2.0)
    assert points(tmp_path)["train/loss"] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]


def test_nothing_is_held_back(tmp_path):
    """A process that is killed closes nothing."""
    events = EventFiles(tmp_path, 0)
    events.update(1, {"loss": 0.5})
    assert points(tmp_path) == {"train/loss": [(1, 0.5)]}
    events.close()


def test_an_epoch_is_a_point_at_its_last_update(tmp_path):
    events = EventFiles(tmp_path, 0)
    events.epoch(13, {"epoch": 1, "loss": 0.5, "lr": 0.25, "units": 203})
    events.close()
    assert points(tmp_path) == {"epoch/loss": [(13, 0.5)], "epoch/lr": [(13, 0.25)]}


def test_a_missing_package_is_named_with_what_to_do(monkeypatch):
    require_tensorboard(True)
    monkeypatch.setattr(event_files, "find_spec", lambda name: None)
    require_tensorboard(False)
    with pytest.raises(ConfigError) as raised:
        require_tensorboard(True)
    assert str(raised.value) == (
        "tensorboard: true needs the package tensorboard: pip install tensorboard, or leave it out"
    )
