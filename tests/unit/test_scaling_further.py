"""Where an update's time goes and how long it takes to learn, from rows as `measure` writes them."""

import matplotlib
import pytest
from matplotlib.text import Text

from ddp_tokens.errors import EvidenceError
from ddp_tokens.figures import use_style
from ddp_tokens.scaling_further import NOT_COUNTED, further
from ddp_tokens.scaling_rows import PARTS, Reached, StepParts
from ddp_tokens.step_figure import means_ms, step_figure

# ms: 100 in all
OF_AN_UPDATE = {"data": 4, "forward": 26, "backward": 50, "communication": 14, "optimizer": 5, "other": 1}


def parts(processes, step, rank, **changed):
    seconds = {f"{part}_s": ms / 1000 for part, ms in (OF_AN_UPDATE | changed).items()}
    return StepParts.model_validate({"processes": processes, "step": step, "rank": rank} | seconds)


def reached(processes, repeat, seconds, updates=20, reached=True):
    fields = {"processes": processes, "repeat": repeat, "reached": reached, "accuracy": 0.75}
    return Reached.model_validate(fields | {"updates": updates, "seconds": seconds})


def test_parts_are_means_over_updates_and_ranks_and_add_up_to_the_update():
    """Two processes, two updates: communication 14, 14, 14 and 54 ms, mean 24; the update then takes 110 ms."""
    rows = [parts(2, step, rank) for step in (3, 4) for rank in (0, 1)]
    rows[3] = parts(2, 4, 1, communication=54)
    found = means_ms([parts(1, 3, 0), *rows])
    assert list(found) == [1, 2]
    assert found[1] == pytest.approx(OF_AN_UPDATE)
    assert found[2]["communication"] == pytest.approx(24)
    assert sum(found[2].values()) == pytest.approx(110)


def test_the_manifest_tells_percent_of_the_update():
    told = further([parts(1, 3, 0), parts(2, 3, 0), parts(2, 3, 1)], [], 0.6)["step_parts"]
    assert told["1proc"]["update_ms"] == pytest.approx(100)
    assert told["2proc"]["percent"] == pytest.approx(OF_AN_UPDATE)
    assert list(told["2proc"]["ms"]) == list(PARTS)


def test_the_time_to_an_accuracy_is_the_median_of_the_repeats():
    runs = [reached(1, 1, 9.0), reached(1, 2, 4.0), reached(1, 3, 5.0), reached(2, 1, 3.0, 22), reached(2, 2, 5.0, 24)]
    told = further([parts(1, 3, 0)], runs, 0.6)["time_to_accuracy"]
    assert told == {
        "accuracy": 0.6,
        "1proc": {
            "reached": True,
            "repeats": 3,
            "updates": 20,
            "seconds": 5.0,
            "seconds_min": 4.0,
            "seconds_max": 9.0,
        },
        "2proc": {
            "reached": True,
            "repeats": 2,
            "updates": 23.0,
            "seconds": 4.0,
            "seconds_min": 3.0,
            "seconds_max": 5.0,
        },
    }


def test_a_run_that_did_not_get_there_says_so():
    runs = [reached(1, 1, 9.0), reached(1, 2, 9.0, updates=52, reached=False)]
    assert further([parts(1, 3, 0)], runs, 0.9)["time_to_accuracy"]["1proc"]["reached"] is False


def test_a_workload_that_counts_nothing_has_no_such_time():
    told = further([parts(1, 3, 0)], [], 0.6)["time_to_accuracy"]
    assert told == {"accuracy": None, "reason": NOT_COUNTED}


def test_without_updates_there_is_nothing_to_tell():
    with pytest.raises(EvidenceError, match=r"step_parts.jsonl holds no update; delete .* and measure again"):
        further([], [], 0.6)


@pytest.fixture
def figure():
    with matplotlib.rc_context():
        use_style()
        drawn = step_figure([parts(1, 3, 0, communication=0.01), parts(2, 3, 0), parts(2, 3, 1)])
        drawn.draw_without_rendering()
        yield drawn


def test_bars_are_stacked_in_the_order_of_an_update(figure):
    """One process: 86.01 ms, without the 14 of communication; two: 100. Each part begins where the one before ends."""
    bars = figure.axes[0].patches
    assert len(bars) == 2 * len(PARTS)
    for row, whole in ((bars[: len(PARTS)], 86.01), (bars[len(PARTS) :], 100)):
        ends = [bar.get_x() + bar.get_width() for bar in row]
        assert [bar.get_x() for bar in row] == pytest.approx([0, *ends[:-1]])
        assert ends[-1] == pytest.approx(whole)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["1 process", "2 processes"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(PARTS)


def test_what_has_room_states_its_percentage(figure):
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == ["30 %", "58 %", "26 %", "50 %", "14 %"]  # of 86.01 and of 100 ms; the others are too narrow


def test_texts_are_at_least_7_points_and_inside(figure):
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 7
    for text in [*figure.legends[0].get_texts(), *figure.axes[0].texts]:
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1
