import hashlib
import math
import struct
from itertools import pairwise

import matplotlib
import pytest

from ddp_tokens.controls.figure import controls_figure, lines, ratio, save_controls, wrapped_name
from ddp_tokens.figures import use_style
from tests.unit.controls.synthetic import caught, judged, missed


def by_label(of_lines):
    return {line.label: line for line in of_lines}


def of_errors(error, tolerance):
    return judged("a", "resume", "resume", "fail", "fail", ["x"], error=error, tolerance=tolerance)


def points(figure, marker):
    """Where the marks of one kind stand, as (x, line)."""
    [axes] = figure.axes
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.get_lines() if line.get_marker() == marker]


@pytest.mark.parametrize(
    ("error", "tolerance", "expected"),
    [
        (1e-3, 1e-6, 1000.0),
        (0.0, 1e-6, 0.0),
        (0.0, 0, 0.0),
        (3, 0, math.inf),
        ("inf", 1e-6, math.inf),
        (None, None, math.inf),
    ],
)
def test_ratio_is_infinite_where_none_is_allowed_or_there_is_no_number(error, tolerance, expected):
    assert ratio(of_errors(error, tolerance)) == pytest.approx(expected)


def test_controls_have_a_line_each_and_right_variants_share_one_by_check():
    found = lines(caught())
    assert [line.label for line in found] == [
        *("normalization", "mean_of_means"),
        *("resume", "momentum_lost", "history_not_continued"),
        *("right variants, by check", "gradient_parity", "resume"),
        *("cannot be decided", "equal_counts"),
    ]
    assert [line.label for line in found if not line.marks] == [
        *("normalization", "resume", "right variants, by check", "cannot be decided")
    ]


def test_notes_say_what_the_scale_cannot():
    found = {line.label: line.note for line in lines(caught()) if line.marks}
    assert found == {
        "mean_of_means": "",
        "momentum_lost": "0.159",
        "history_not_continued": "exactly 0: refused for something else than weights",
        "gradient_parity": "2 variants, largest 0.5",
        "resume": "1 variant, exactly 0",
        "equal_counts": "nearest wrong formula 0.25 tolerances away",
    }


def test_what_is_not_as_expected_has_a_line_of_its_own_that_says_so():
    found = by_label(lines(missed()))
    assert {label for label, line in found.items() if not line.as_expected} == {
        *("mean_of_means", "momentum_lost", "w2_a2_b4")
    }
    assert found["w2_a2_b4"].note == "NOT as expected: see the table"
    assert found["gradient_parity"].note == "1 variant, largest 0.5"


def test_marks_stand_at_their_ratio_and_else_at_the_edges():
    figure = controls_figure(lines(caught()))
    # Ratios go from 0.2 to 5e5: edges at 10^(-1-1) and 10^(6+2). Rows are counted from 0, headings included; a line
    # whose note takes three rows stands at the second.
    crosses = points(figure, "X")
    assert [place for _, place in crosses] == [1, 3, 5]
    assert [where for where, _ in crosses] == pytest.approx([5e5, 1e8, 1e-2])
    circles = points(figure, "o")
    assert [where for where, _ in circles] == pytest.approx([0.2, 0.5, 1e-2])
    assert points(figure, "s") == [(pytest.approx(0.3), 11.5)]


def test_line_at_one_and_edges_are_named():
    [axes] = controls_figure(lines(caught())).axes
    assert axes.get_xscale() == "log"
    assert {"exactly\n0", "tolerance", "none\nallowed"} < {text.get_text() for text in axes.texts}
    assert [1, 1] in [list(line.get_xdata()) for line in axes.get_lines()]


def test_every_label_and_note_lies_inside_the_column():
    """The longest note beside the mark that is farthest to the right."""
    with matplotlib.rc_context():
        use_style()
        figure = controls_figure(lines([*caught(), *missed()]))
        figure.draw_without_rendering()
    assert figure.get_size_inches()[0] == 3.4
    [axes] = figure.axes
    labels = axes.get_yticklabels()
    assert min(text.get_fontsize() for text in [*labels, *axes.get_xticklabels(), *axes.texts]) >= 7
    for text in [*labels, *axes.texts]:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
    boxes = [label.get_window_extent() for label in labels]
    assert all(above.y0 > below.y0 for above, below in pairwise(boxes)), "from top to bottom"


def test_long_names_are_broken_behind_an_underscore_and_headings_are_not():
    assert wrapped_name("mean_of_means", [1]) == "mean_of_means"
    long = "weights_updated_between_microbatches"
    assert wrapped_name(long, [1]) == "weights_updated_\nbetween_microbatches"
    assert wrapped_name("right variants, by every check", []) == "right variants, by every check"


def test_bytes_are_the_same_each_time_whatever_the_readers_style(tmp_path):
    names = ("controls.png", "controls.svg", "controls.pdf")
    save_controls(caught(), [tmp_path / "once" / name for name in names])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        save_controls(caught(), [tmp_path / "again" / name for name in names])
    once, again = (
        [hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest() for name in names]
        for folder in ("once", "again")
    )
    assert once == again
    width, _ = struct.unpack(">II", (tmp_path / "once" / "controls.png").read_bytes()[16:24])
    assert width == 1020
    assert "dc:date" not in (tmp_path / "once" / "controls.svg").read_text()
