import hashlib
import struct

import matplotlib
import pytest
from matplotlib.text import Text

from ddp_tokens.figures import use_style
from ddp_tokens.scaling_figure import save_scaling, scaling_figure
from tests.unit.test_scaling import measured

FASTER = {"strong": {1: 40.0, 2: 27.0, 4: 29.0}, "weak": {1: 20.0, 2: 27.0, 4: 50.0}}
LARGE = {"strong": {1: 0.04, 2: 0.03, 8: 0.01}, "weak": {1: 0.02, 2: 0.02, 8: 0.02}, "hook": {2: 0.001, 8: 0.002}}


@pytest.fixture
def drawn():
    """A function that draws in the figure's own style."""
    with matplotlib.rc_context():
        use_style()

        def draw(**figures):
            points, _, on = measured(**figures)
            figure = scaling_figure(points, on.cores, on.unit)
            figure.draw_without_rendering()
            return figure

        yield draw


def lines_of(axes):
    """Label -> heights; errorbar gives its line no label of its own."""
    lines = {line.get_label(): line for line in axes.get_lines() if line.get_linestyle() != "None"}
    [measured_line] = [line for label, line in lines.items() if label.startswith("_")]
    return {"measured": measured_line} | {label: line for label, line in lines.items() if not label.startswith("_")}


def test_each_panel_shows_what_was_measured_expected_and_ideal(drawn):
    """400 tokens per update, strong: 40, 50 and 60 ms; expected 40, 25 and 28. Weak: 400 / 30 ms with two processes."""
    strong, weak = drawn().axes
    assert [axes.get_title().split(":")[0] for axes in (strong, weak)] == ["strong", "weak"]
    lines = lines_of(strong)
    assert {tuple(line.get_xdata()) for line in lines.values()} == {(1, 2, 4)}
    heights = {label: list(line.get_ydata()) for label, line in lines.items()}
    assert heights["measured"] == pytest.approx([10000, 8000, 400 / 0.06])
    assert heights["expected"] == pytest.approx([10000, 16000, 400 / 0.028])
    assert heights["ideal"] == pytest.approx([10000, 20000, 40000])
    assert list(lines_of(weak)["measured"].get_ydata()) == pytest.approx([10000, 400 / 0.03, 800 / 0.06])
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines.values()}) == 3, "told apart without colour"


def test_whiskers_go_from_the_slowest_to_the_fastest_repeat(drawn):
    """Of two processes, strong: 8,000 tokens/s at 50 ms, 49 ms and 51 ms in the other repeats."""
    [whiskers] = drawn().axes[0].collections
    ends = [segment[:, 1] for segment in whiskers.get_segments()]
    assert list(ends[1]) == pytest.approx([400 / 0.051, 400 / 0.049])


def test_axes_start_at_nothing_and_name_only_what_was_measured(drawn):
    figure = drawn(strong={1: 40.0, 2: 27.0}, weak={1: 20.0, 2: 27.0})
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]
        assert list(axes.get_xticks()) == [1, 2]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert figure.get_supxlabel() == "processes, on 2 cores"


@pytest.mark.parametrize("figures", [{}, FASTER, LARGE], ids=["slower", "faster", "large numbers"])
def test_everything_measured_and_expected_is_inside_and_the_legend_covers_nothing(drawn, figures):
    figure = drawn(**figures)
    for axes in figure.axes:
        for label, line in lines_of(axes).items():
            assert label == "ideal" or max(line.get_ydata()) < axes.get_ylim()[1]
        [legend] = figure.legends
        assert not legend.get_window_extent().overlaps(axes.get_tightbbox())


@pytest.mark.parametrize("figures", [{}, FASTER, LARGE], ids=["slower", "faster", "large numbers"])
def test_texts_are_at_least_7_points_inside_the_column_and_apart(drawn, figures):
    figure = drawn(**figures)
    assert figure.get_size_inches()[0] == 3.4
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert len(texts) > 10
    assert min(text.get_fontsize() for text in texts) >= 7
    titles = [axes.title.get_window_extent() for axes in figure.axes]
    assert not titles[0].overlaps(titles[1])
    for text in [*figure.legends[0].get_texts(), *(axes.title for axes in figure.axes)]:
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_bytes_are_the_same_each_time_whatever_the_readers_style(tmp_path):
    names = ("scaling.png", "scaling.svg", "scaling.pdf")
    points, _, on = measured()
    save_scaling(points, on, [tmp_path / "once" / name for name in names])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        save_scaling(points, on, [tmp_path / "again" / name for name in names])
        assert matplotlib.rcParams["font.size"] == 30
    once, again = (
        [hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest() for name in names]
        for folder in ("once", "again")
    )
    assert once == again
    width, _ = struct.unpack(">II", (tmp_path / "once" / "scaling.png").read_bytes()[16:24])
    assert width == 1020  # 3.4 inches, 300 dots each
    assert "dc:date" not in (tmp_path / "once" / "scaling.svg").read_text()
