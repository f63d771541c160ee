import hashlib
import struct
from itertools import combinations, pairwise

import matplotlib
import pytest

from ddp_tokens.figures import use_style
from ddp_tokens.trainers.figure import Line, lines, save_trainers, trainers_figure, wrapped_setting
from tests.unit.trainers.synthetic import CASES, missed, run, trainers, window


@pytest.fixture
def rows(tmp_path):
    return trainers(tmp_path).rows


def drawn(of_lines):
    with matplotlib.rc_context():
        use_style()
        figure = trainers_figure(of_lines)
        figure.draw_without_rendering()
    return figure


def marks(figure, marker):
    [axes] = figure.axes
    return [line.get_xdata()[0] for line in axes.get_lines() if line.get_marker() == marker]


def test_settings_stand_below_the_name_of_their_trainer(rows):
    found = lines(rows)
    assert [line.label for line in found if not line.outcome] == [
        *("plain DDP", "Hugging Face Trainer", "plain DDP", "DeepSpeed ZeRO")
    ]
    assert [line.label for line in found if line.outcome] == [case.setting for case in CASES]
    assert [line.speed for line in found if line.outcome] == ["0.99", "0.90", "0.75", "0.76", "0.90", "\u2013"]


def test_notes_say_what_the_scale_cannot(tmp_path, rows):
    assert [line.note for line in lines(rows) if line.outcome] == [
        *("", "mean of means", "", "mean of microbatch means", "cannot be decided", "not run here")
    ]
    odd = {**missed(), "bare": run(window(1, "pass", 0.0))}
    odd |= {"hf": run(window(1, "fail", "nan")), "equal": run(window(1, "inconclusive", None, None))}
    found = {line.label: line for line in lines(trainers(tmp_path / "odd", **odd).rows)}
    assert found[CASES[0].setting].note == "exactly 0"
    assert found[CASES[1].setting].note == "NOT as expected"
    assert found[CASES[2].setting].note == "nan; NOT as expected"
    assert not found[CASES[2].setting].as_expected
    undecided = found[CASES[4].setting]
    assert (undecided.note, undecided.of_tolerance) == ("cannot be decided", None)
    assert marks(drawn([undecided]), "s") == []


def test_marks_stand_at_their_ratio(rows):
    """0.4 = 4e-7 / 1e-6, of the worst window; 0.5 / 1e-6 = 5e5."""
    figure = drawn(lines(rows))
    assert marks(figure, "o") == pytest.approx([0.4, 0.3])
    assert marks(figure, "X") == pytest.approx([5e5, 1.7e4])
    assert marks(figure, "s") == pytest.approx([0.3])


def test_what_has_no_place_on_a_log_scale_stands_inside_the_ends():
    figure = drawn([Line("a", "pass", 0.0, "exactly 0"), Line("b", "fail", float("inf"), "nan")])
    [axes] = figure.axes
    low, high = axes.get_xlim()
    assert low < marks(figure, "o")[0] < 0.1
    assert 1e3 < marks(figure, "X")[0] < high


def test_line_at_one_and_both_columns_are_named(rows):
    [axes] = drawn(lines(rows)).axes
    assert axes.get_xscale() == "log"
    assert [1, 1] in [list(line.get_xdata()) for line in axes.get_lines()]
    assert {"tolerance", "speed /\nbare loop"} < {text.get_text() for text in axes.texts}


def test_nothing_overlaps_and_everything_lies_inside_the_column(tmp_path, rows):
    """Also with an error just above its tolerance, and with a note that is long."""
    near = {"hf": run(window(1, "fail", 2e-6, diagnosis=["mean_of_means", "stale_count", "one_rank_only"]))}
    for of_lines in (lines(rows), lines(trainers(tmp_path / "near", **near).rows)):
        figure = drawn(of_lines)
        assert figure.get_size_inches()[0] == 3.4
        [axes] = figure.axes
        labels = axes.get_yticklabels()
        assert min(text.get_fontsize() for text in [*labels, *axes.get_xticklabels(), *axes.texts]) >= 7
        boxes = [text.get_window_extent() for text in [*labels, *axes.texts]]
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        of_labels = [label.get_window_extent() for label in labels]
        assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(of_labels)), "from top to bottom"
        texts = [text.get_window_extent() for text in axes.texts if text.get_text()]
        assert not any(one.overlaps(other) for one, other in combinations(texts, 2))
        notes, speeds = of_kind(axes, "note"), of_kind(axes, "speed")
        assert len(speeds) == len(CASES)
        assert max(box.x1 for box in notes) < min(box.x0 for box in speeds)


def of_kind(axes, kind):
    """Notes stand on a white ground."""
    has_ground = kind == "note"
    texts = [text for text in axes.texts if (text.get_bbox_patch() is not None) == has_ground]
    heads = ("tolerance", "speed /\nbare loop")
    return [text.get_window_extent() for text in texts if text.get_text() not in heads]


def test_long_settings_are_broken_between_words_and_inside_long_ones():
    long = "average_tokens_across_devices=True, forward names num_items_in_batch"
    assert wrapped_setting(Line(long, "pass")) == (
        "average_tokens_across_\ndevices=True, forward names\nnum_items_in_batch"
    )
    assert (
        wrapped_setting(Line("each rank's mean over its own tokens", "pass")) == "each rank's mean over its\nown tokens"
    )
    assert wrapped_setting(Line("a trainer's name that is not broken")) == "a trainer's name that is not broken"


def test_bytes_are_the_same_each_time_whatever_the_readers_style(tmp_path, rows):
    names = ("trainers.png", "trainers.svg", "trainers.pdf")
    save_trainers(rows, [tmp_path / "once" / name for name in names])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        save_trainers(rows, [tmp_path / "again" / name for name in names])
    once, again = (
        [hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest() for name in names]
        for folder in ("once", "again")
    )
    assert once == again
    width, _ = struct.unpack(">II", (tmp_path / "once" / "trainers.png").read_bytes()[16:24])
    assert width == 1020
    assert "dc:date" not in (tmp_path / "once" / "trainers.svg").read_text()
