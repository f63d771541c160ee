"""From files as `measure` and `prepare` leave them to prediction.*, as the rule and the command do."""

import json
from itertools import pairwise

import matplotlib
import pytest
from matplotlib.text import Text

from ddp_tokens.cli import main
from ddp_tokens.errors import EvidenceError
from ddp_tokens.figures import use_style
from ddp_tokens.files import sha256
from ddp_tokens.options import run_as_program
from ddp_tokens.prediction_figure import prediction_figure
from ddp_tokens.prediction_results import RANKS, write_prediction
from ddp_tokens.prepare import prepare
from ddp_tokens.ring import Link, ring_s
from ddp_tokens.steps import view
from tests.helpers import tiny_experiment, write_lines
from tests.unit.test_scaling_results import measured_at

LINK = Link(1e-4, 1e-9)
MADE = ("prediction.json", "prediction.md", "prediction.png", "prediction.svg", "prediction.pdf")


def experiment(**changes):
    return tiny_experiment(steps=10, interrupt_at=5, **changes)


def prepared_at(folder, **changes):
    """Four rows per window and rank, two ranks, 32 rows; a link of 100 us and 1,000 MB/s, twice as slow for four."""
    at = measured_at(folder)
    prepare(experiment(**changes), at.rows, at.lock, at.plan)
    swept = [
        {"processes": processes, "bytes": size, "repeat": 1}
        | {"seconds": [max(1, processes / 2) * ring_s(processes, size, LINK)] * processes}
        for processes in (2, 4)
        for size in (4096, 10**6)
    ]
    write_lines(at.all_reduces, *swept)
    return at


def written(at, **changes):
    write_prediction(view(experiment(**changes), "predict"), at)
    return json.loads(at.prediction.read_text())


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    return prepared_at(tmp_path_factory.mktemp("predicted"))


@pytest.fixture(scope="module")
def document(at):
    return written(at)


def test_the_network_is_the_fitted_one_and_its_errors_are_told(document):
    assert document["networks"] == {
        "measured": {"latency_us": pytest.approx(100), "bandwidth_mb_s": pytest.approx(1000)}
    }
    residuals = document["fit"]["residuals"]
    assert [(each["processes"], each["bytes"], each["used"]) for each in residuals] == [
        (processes, size, processes == 2) for processes in (2, 4) for size in (4096, 10**6)
    ]
    assert all(abs(each["relative_error"]) < 1e-6 for each in residuals)


def test_each_measured_number_of_processes_stands_beside_its_prediction(document):
    rows = document["validation"]
    assert [(each["scaling"], each["processes"]) for each in rows] == [
        (scaling, processes) for scaling in ("strong", "weak") for processes in (1, 2, 4)
    ]
    one = rows[0]
    assert (one["measured_ms"], one["relative_error"]) == (pytest.approx(40), pytest.approx(0, abs=1e-9))
    assert all(abs(each["relative_error"]) > 0.001 for each in rows[1:]), "the others were not fitted to"
    assert all(each["measured_min_ms"] < each["measured_ms"] < each["measured_max_ms"] for each in rows)


def test_weak_goes_to_1024_and_strong_as_far_as_each_rank_has_a_row(document):
    """A window has 2 * 2 * 2 rows."""
    found = [(each["scaling"], each["ranks"]) for each in document["predictions"]]
    assert found == [("strong", ranks) for ranks in (1, 2, 4, 8)] + [("weak", ranks) for ranks in RANKS]
    assert RANKS == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    for each in document["predictions"]:
        assert each["overlapped_ms"] <= each["step_ms"]
        assert (each["overlapped_ms"] < each["step_ms"]) == (each["ranks"] > 1)


def test_what_unequal_rows_cost_is_told_by_sharding_and_for_the_plan(document):
    """The plan has 10 windows of two shares: for 16 ranks there are as many, for 32 not."""
    ranks = {}
    for each in document["unequal"]:
        ranks.setdefault(each["source"], []).append(each["ranks"])
        assert each["lost"] == pytest.approx(1 - 1 / each["ratio"], abs=1e-4)
    assert ranks == {"plan": [1, 2, 4, 8, 16], "by_index": list(RANKS), "by_length": list(RANKS)}
    lost = {each["source"]: each["lost"] for each in document["unequal"] if each["ranks"] == 2}
    assert lost["by_length"] > lost["by_index"] > 0


def test_weak_scaling_is_predicted_for_the_experiments_own_sharding(tmp_path, document):
    by_index = written(prepared_at(tmp_path, sharding="by_index"), sharding="by_index")
    for found, source in ((document, "by_length"), (by_index, "by_index")):
        loads = {each["ranks"]: each for each in found["unequal"] if each["source"] == source}
        for each in found["predictions"]:
            if each["scaling"] == "weak":
                computed = each["compute_ms"] + each["waiting_ms"]
                assert computed == pytest.approx(
                    found["costs"]["position_ms"] * loads[each["ranks"]]["slowest"], rel=1e-4
                )


def test_a_given_network_is_predicted_beside_the_measured_one(at):
    found = written(at, network={"latency_us": 10})
    assert found["networks"]["given"] == {"latency_us": 10, "bandwidth_mb_s": pytest.approx(1000)}
    small = {each["network"]: each["small_ms"] for each in found["predictions"] if each["ranks"] == 1024}
    assert small["given"] == pytest.approx(small["measured"] / 10)
    assert "the given network" in at.prediction.with_suffix(".md").read_text()


def test_the_bytes_are_the_same_each_time(tmp_path):
    digests = []
    for name in ("once", "again"):
        at = prepared_at(tmp_path / name)
        written(at)
        digests.append([sha256(at.scaling / made) for made in MADE])
    assert digests[0] == digests[1]


def test_by_hand_the_tables_are_told(at, caplog, capsys):
    config = at.root / "tiny.yaml"
    values = experiment().model_dump(mode="json", include={"corpus", "steps", "interrupt_at", "batch", "accumulation"})
    config.write_text(json.dumps(values))
    assert run_as_program("cli", main, ["predict", "--config", str(config), "--results", str(at.root.parent)]) == 0
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert at.prediction.with_suffix(".md").read_text() in said
    assert "| strong    | 1           | 40.0 (39.2 to 40.8)" in said
    assert said.count("Predicted against measured") == 1
    assert [line.split("/")[-1] for line in capsys.readouterr().out.splitlines()] == list(MADE)


@pytest.mark.parametrize("missing", ["all_reduces", "timings", "runs_in_turn", "machine", "step_parts"])
def test_what_was_not_measured_is_named(tmp_path, missing):
    at = prepared_at(tmp_path)
    getattr(at, missing).unlink()
    with pytest.raises(EvidenceError, match=getattr(at, missing).name):
        written(at)


@pytest.fixture
def drawn(at, document):
    with matplotlib.rc_context():
        use_style()
        figure = prediction_figure(document)
        figure.draw_without_rendering()
        yield figure


def test_the_figure_shows_what_the_document_holds(drawn, document):
    weak, strong, unequal = drawn.axes
    lines = {line.get_label(): line for line in weak.get_lines()}
    predicted = [each for each in document["predictions"] if each["scaling"] == "weak"]
    assert list(lines["predicted, measured network"].get_xdata()) == list(RANKS)
    assert list(lines["predicted, measured network"].get_ydata()) == [each["step_ms"] for each in predicted]
    assert len(strong.get_lines()[0].get_xdata()) == 4
    assert weak.get_ylim() == strong.get_ylim()
    shown = {line.get_label(): line for line in unequal.get_lines()}
    assert set(shown) == {"by length, simulated", "by index, simulated", "the plan's own shares"}
    assert len({(line.get_linestyle(), line.get_marker()) for line in shown.values()}) == 3, "told apart without colour"


def test_texts_are_at_least_7_points_and_inside(drawn):
    texts = [text for text in drawn.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 7
    assert drawn.get_size_inches()[0] == 3.4
    titles = [axes.title.get_window_extent() for axes in drawn.axes]
    assert all(not left.overlaps(right) for left, right in pairwise(titles))
    for axes in drawn.axes:
        ticks = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(not left.overlaps(right) for left, right in pairwise(ticks))
    for text in [*drawn.legends[0].get_texts(), *(axes.title for axes in drawn.axes)]:
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1
