"""The lines of a run; those of real runs are in tests/distributed/test_told_while_training.py."""

import errno
import io
import logging
import re

import pytest
from tqdm import tqdm

from ddp_tokens.training_log import (
    Course,
    Lines,
    RankFile,
    Terminal,
    epoch_line,
    logged_in,
    start_lines,
    text_log,
    update_line,
)
from tests.helpers import tiny_experiment

IMAGES = Course(steps=52, until=52, windows=13, unit="image")
TOKENS = Course(steps=100, until=50, windows=None, unit="token")
RECORD = {"step": 23, "loss": 1.96, "units": 16}


def test_an_update_is_told_with_its_place_in_the_epoch():
    """Update 23 of epochs of 13 windows is window 10 of epoch 2."""
    assert update_line(RECORD | {"correct": 4}, IMAGES, 0.0085, 1234.4, None) == (
        "update 23 of 52 (epoch 2, window 10 of 13): loss 1.9600 over 16 images, accuracy 25.0 %, lr 0.0085, "
        "1,234 images per second"
    )


def test_where_there_are_no_epochs_and_no_accuracy_none_are_told():
    assert update_line(RECORD | {"units": 1}, TOKENS, 0.02, 17.26, None) == (
        "update 23 of 50: loss 1.9600 over 1 token, lr 0.02, 17.3 tokens per second"
    )


@pytest.mark.parametrize(
    ("skipped", "norm", "told"),
    [
        (0, 3.14159, "gradient norm 3.142, loss scale 65536, 2,000"),
        (1, None, "gradient norm not finite, loss scale 65536, 1 update skipped, 2,000"),
        (2, 3.0, "gradient norm 3, loss scale 65536, 2 updates skipped, 2,000"),
    ],
)
def test_norm_scale_and_skipped_updates_are_told_where_there_are_any(skipped, norm, told):
    record = RECORD | {"gradient_norm": norm, "scale": 65536.0}
    assert f"lr 0.02, {told} tokens per second" in update_line(record, TOKENS, 0.02, 2000.0, skipped)


def test_an_epoch_is_told_with_its_own_sums():
    summary = {"epoch": 1, "windows": 13, "updates": 13, "units": 203, "loss": 1.5, "lr": 0.01, "accuracy": 0.5}
    assert epoch_line(summary, IMAGES) == (
        "epoch 1 of 4: loss 1.5000 over 203 images in 13 updates, accuracy 50.0 %, lr 0.01"
    )
    assert epoch_line(summary | {"skipped": 1}, IMAGES).endswith("lr 0.01, 1 update skipped")


def test_lines_come_at_the_interval_and_at_the_last_update(caplog, monkeypatch):
    """6 units in a second, then 6 in half of one. The clock is read as an interval begins and as it ends."""
    clock = iter([0.0, 1.0, 1.0, 1.5, 1.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    lines = Lines(Course(3, 3, None, "token"), interval=2)
    with caplog.at_level(logging.INFO):
        rates = [
            lines.update({"step": step, "loss": 1.0, "loss_sum": 1.0, "units": 2 * step}, 0.1) for step in (1, 2, 3)
        ]
    assert rates == [None, 6.0, 12.0]
    assert [line.partition(":")[0] for line in caplog.messages] == ["update 2 of 3", "update 3 of 3"]


def lines_of(clock_of):
    return clock_of.read_text().splitlines()


def test_each_start_goes_on_in_the_ranks_file_with_the_time(tmp_path):
    """A line that a kill cut off is ended first."""
    path = text_log(tmp_path / "logs", 1)
    assert path.name == "rank-1.log"
    with logged_in(path):
        logging.getLogger("ddp_tokens.train").warning("first")
    with path.open("a") as stream:
        stream.write("half a l")
    with logged_in(path):
        logging.getLogger("ddp_tokens.train").warning("second")
    logging.getLogger("ddp_tokens.train").warning("outside")
    first, half, second = lines_of(path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ first", first)
    assert half == "half a l"
    assert second.endswith("Z second")


def test_what_ended_a_run_stands_in_the_file(tmp_path):
    with pytest.raises(ArithmeticError), logged_in(text_log(tmp_path, 0)):
        raise ArithmeticError("went wrong")
    assert lines_of(text_log(tmp_path, 0))[-1].endswith("Z ended by ArithmeticError: went wrong")


def test_a_full_disk_names_the_file(tmp_path):
    """/dev/full is a disk on which no byte can be written."""
    file = RankFile(tmp_path / "rank-0.log")
    file.close()
    file.baseFilename = "/dev/full"
    file.stream = file._open()
    record = logging.LogRecord("a", logging.INFO, __file__, 0, "a line", None, None)
    with pytest.raises(OSError, match="No space left") as raised:
        file.emit(record)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
    with pytest.raises(OSError, match="No space left"):
        file.close()


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_line_stands_above_the_progress_bar():
    """The bar is wiped, the line written, the bar drawn again below it."""
    screen = Screen()
    record = logging.LogRecord("a", logging.INFO, __file__, 0, "update 1 of 2", None, None)
    with tqdm(total=2, file=screen, disable=None) as bar:
        bar.update()
        Terminal(screen).emit(record)
        before, _, after = screen.getvalue().rpartition("update 1 of 2\n")
        assert before.endswith("\r")
        assert "1/2" in after


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "1 thread, float32"),
        ({"use_amp": True}, "1 thread, mixed precision of float32 and bfloat16, losses are not scaled"),
        (
            {"use_amp": True, "amp_dtype": "float16", "threads_per_rank": 2},
            "2 threads, mixed precision of float32 and float16, losses are scaled",
        ),
    ],
)
def test_a_rank_says_what_it_computes_on_and_in_which_precision(settings, told):
    [line] = start_lines(tiny_experiment(**settings), "cpu, A Processor, 2 cores, 7.8 GiB", 1)
    assert re.fullmatch(
        r"rank 1 of 2 \(process \d+ on \S+\): cpu, A Processor, 2 cores, 7.8 GiB; backend gloo, (.*)", line
    )[1] == (told)
