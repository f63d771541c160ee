import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy
import pytest
from matplotlib import font_manager
from matplotlib.text import Text
from safetensors.numpy import save_file

from ddp_tokens import figures
from ddp_tokens.config import Tolerance
from ddp_tokens.errors import EvidenceError
from tests.helpers import write_lines

TOLERANCE = Tolerance(atol=1e-6, rtol=1e-4)
DRAW = """
import sys
from pathlib import Path
from tests.unit.test_figures import draw_all
draw_all(Path(sys.argv[1]), Path(sys.argv[2]))
assert "torch" not in sys.modules
"""


def write_inputs(folder, ranks=3):
    for run, first, last in (("interrupt", 1, 2), ("continuous", 1, 4), ("resume", 1, 4)):
        (folder / run / "ranks").mkdir(parents=True)
        steps = range(first, last + 1)
        write_lines(folder / run / "history.jsonl", *({"step": step, "loss": 1 / step} for step in steps))
        for rank in range(ranks):
            records = ({"step": step, "units": step * rank} for step in steps)
            write_lines(folder / run / "ranks" / f"rank-{rank}.jsonl", *records)
    reference = numpy.linspace(-1, 1, 50, dtype=numpy.float32)
    for name, shift in (("reference", 0), ("token_mean", 1e-8), ("mean_of_means", 1e-2)):
        arrays = {f"{window}/w": (reference + shift).astype(numpy.float32) for window in ("first", "most_unequal")}
        save_file(arrays, folder / f"{name}.safetensors")
    return folder


def draw_all(folder, target):
    def outputs(name):
        return figures.outputs_of(target / name)

    gradients = {formula: folder / f"{formula}.safetensors" for formula in ("token_mean", "mean_of_means")}
    figures.save_tokens(folder / "continuous", outputs("tokens"))
    figures.save_gradients(TOLERANCE, folder / "reference.safetensors", gradients, outputs("gradients"))
    runs = {run: folder / run for run in ("interrupt", "continuous", "resume")}
    figures.save_resume(2, runs, outputs("resume"))


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def lines_of(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def history(steps, loss=lambda step: 1 / step):
    return [{"step": step, "loss": loss(step)} for step in steps]


def test_figures_are_the_same_bytes_in_two_processes(tmp_path):
    inputs = write_inputs(tmp_path / "inputs")
    for target in ("once", "again"):
        command = [sys.executable, "-c", DRAW, str(inputs), str(tmp_path / target)]
        subprocess.run(command, check=True, cwd=Path(__file__).resolve().parents[2])
    assert len(digests(tmp_path / "once")) == 9
    assert digests(tmp_path / "once") == digests(tmp_path / "again")


def test_a_readers_own_style_changes_no_bytes(tmp_path):
    inputs = write_inputs(tmp_path / "inputs")
    draw_all(inputs, tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none", "pdf.fonttype": 3}):
        draw_all(inputs, tmp_path / "styled")
        assert matplotlib.rcParams["font.size"] == 30
    assert digests(tmp_path / "plain") == digests(tmp_path / "styled")


def test_png_is_a_column_wide_at_300_dots_per_inch_and_svg_has_no_date(tmp_path):
    draw_all(write_inputs(tmp_path / "inputs"), tmp_path / "out")
    width, _ = struct.unpack(">II", (tmp_path / "out" / "tokens.png").read_bytes()[16:24])
    assert width == 1020  # 3.4 inches
    assert "dc:date" not in (tmp_path / "out" / "tokens.svg").read_text()


def test_pdf_is_a_column_wide_embeds_its_fonts_and_names_no_date_and_no_program(tmp_path):
    draw_all(write_inputs(tmp_path / "inputs"), tmp_path / "out")
    for path in (tmp_path / "out").glob("*.pdf"):
        written = path.read_bytes()
        assert b"/MediaBox [ 0 0 244.8 " in written  # points: 3.4 inches of 72
        assert b"/FontFile2" in written, "TrueType, embedded"
        assert b"/Type3" not in written
        assert not any(name in written for name in (b"/CreationDate", b"/Producer", b"/Creator"))


def test_texts_are_at_least_7_points_inside_the_column_and_legends_cover_no_panel():
    with matplotlib.rc_context():
        figures.use_style()
        ratios = {name: {f: numpy.full(1234567, 1e-3) for f in figures.CURVES} for name in ("first", "most_unequal")}
        runs = history(range(1, 51)), history(range(1, 101)), history(range(51, 101))
        for figure in (
            figures.tokens_figure([[{"step": step, "units": 1234567} for step in range(1, 101)]] * 4),
            figures.gradients_figure(ratios, TOLERANCE),
            figures.resume_figure(50, *runs),
        ):
            figure.draw_without_rendering()
            texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
            assert len(texts) > 10
            assert min(text.get_fontsize() for text in texts) >= 7
            drawn = figure.get_tightbbox()
            assert 0 <= drawn.x0 < drawn.x1 <= 3.4
            [legend] = figure.legends
            assert not any(legend.get_window_extent().overlaps(axes.get_tightbbox()) for axes in figure.axes)


def test_font_is_the_one_that_comes_with_matplotlib():
    assert font_manager.findfont("DejaVu Sans").startswith(matplotlib.get_data_path())


def test_tokens_shows_every_rank_and_the_equal_share():
    ranks = [[{"step": step, "units": units * step} for step in (1, 2)] for units in (0, 1000, 2000)]
    [axes] = figures.tokens_figure(ranks).axes
    assert lines_of(axes) == {
        "rank 0: 0 in all": ([1, 2], [0, 0]),
        "rank 1: 3,000 in all": ([1, 2], [1000, 2000]),
        "rank 2: 6,000 in all": ([1, 2], [2000, 4000]),
        "equal share": ([1, 2], [1000, 2000]),
    }


def test_tokens_of_a_single_rank_need_no_equal_share():
    [axes] = figures.tokens_figure([[{"step": 1, "units": 5}]]).axes
    assert list(lines_of(axes)) == ["rank 0: 5 in all"]


def test_ranks_are_taken_in_order_of_their_number(tmp_path, monkeypatch):
    (tmp_path / "ranks").mkdir()
    for rank in range(11):
        write_lines(tmp_path / "ranks" / f"rank-{rank}.jsonl", {"step": 1, "units": rank})
    seen = []
    monkeypatch.setattr(figures, "tokens_figure", seen.append)
    monkeypatch.setattr(figures, "save", lambda figure, outputs: None)
    figures.save_tokens(tmp_path, [])
    assert [records[0]["units"] for records in seen[0]] == list(range(11))


def test_run_without_ranks_is_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"ranks holds no rank's history: train again"):
        figures.save_tokens(tmp_path, [])


def test_error_ratio_is_the_error_in_tolerances_largest_first():
    reference = {"a": numpy.array([0.0, 1.0]), "b": numpy.array([[10.0]])}
    observed = {"a": numpy.array([2e-6, 1.0]), "b": numpy.array([[10.0 + 1.001e-3 / 2]])}
    ratios = figures.error_ratios(observed, reference, TOLERANCE)
    assert ratios == pytest.approx([2.0, 0.5, 0.0])


def test_value_that_is_not_a_number_is_outside_and_a_missing_name_is_left_out():
    observed = {"a": numpy.array([numpy.nan, 1.0]), "extra": numpy.zeros(3)}
    ratios = figures.error_ratios(observed, {"a": numpy.ones(2), "b": numpy.ones(2)}, TOLERANCE)
    assert list(ratios) == [numpy.inf, 0.0]


def test_gradients_shows_how_many_values_are_outside():
    ratios = {"first": {"token_mean": numpy.full(4, 1e-3), "mean_of_means": numpy.array([9.0, 3.0, 2.0, 0.5])}}
    [axes] = figures.gradients_figure(ratios, TOLERANCE).axes
    title = axes.get_title(loc="left").splitlines()
    assert title == ["window: first", "token mean: 0 of 4 outside", "mean of means: 3 of 4 outside"]
    assert axes.get_yscale() == "log"
    lines = lines_of(axes)
    assert lines["mean of means"] == ([25, 50, 75, 100], [9.0, 3.0, 2.0, 0.5])
    assert lines["tolerance: 1e-06 + 0.0001 x |ref|"][1] == [1, 1]


def test_curve_leaves_out_what_a_log_scale_cannot_show():
    share, ratios = figures.curve(numpy.array([numpy.inf, 4.0, 0.0, 0.0]))
    assert (list(share), list(ratios)) == ([50], [4.0])
    assert figures.curve(numpy.empty(0))[0].size == 0


def test_curve_of_many_values_is_short_and_keeps_both_ends():
    share, ratios = figures.curve(numpy.geomspace(1e3, 1e-3, 300_000))
    assert len(share) < 1500
    assert (share[-1], ratios[0]) == (100, 1e3)
    assert ratios[-1] == pytest.approx(1e-3)


def test_equal_losses_are_said_to_be_exactly_equal():
    resumed = history((1, 2), lambda step: 99.0) + history((3, 4))
    top, bottom = figures.resume_figure(2, history((1, 2)), history((1, 2, 3, 4)), resumed).axes
    assert bottom.get_title(loc="right") == "exactly 0 at all 4 updates"
    assert lines_of(top)["interrupted"][0] == [1, 2]
    assert lines_of(top)["resumed"] == ([3, 4], [1 / 3, 1 / 4])


def test_smallest_difference_is_not_called_zero():
    off = history((1, 2)) + history((3, 4), lambda step: numpy.nextafter(1 / step, 1))
    _, bottom = figures.resume_figure(2, history((1, 2)), history((1, 2, 3, 4)), off).axes
    assert bottom.get_title(loc="right") == "largest: 5.55e-17"


def test_errors_that_are_all_0_leave_no_curve_and_are_told():
    ratios = {"first": {"token_mean": numpy.zeros(3), "mean_of_means": numpy.array([2.0, 0.0, 0.0])}}
    figure = figures.gradients_figure(ratios, TOLERANCE)
    title = figure.axes[0].get_title(loc="left").splitlines()
    assert title == ["window: first", "token mean: all 3 errors are 0", "mean of means: 1 of 3 outside"]
