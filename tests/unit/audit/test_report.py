"""What an audit says, word by word."""

import json
import logging
from dataclasses import asdict

import pytest

from ddp_tokens.audit.judging import not_comparable
from ddp_tokens.audit.report import Report
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.errors import AuditError

CRITERION = (
    "each parameter's error against the objective's gradient, computed in float64 in one process, is at most 4 times "
    "that of one process in the dtype of the run"
)
NUMBERS = {
    "error": 1.5e-8,
    "tolerance": 3e-8,
    "parameter": "head.weight",
    "power": 12345.6,
    "nearest_formula": "mean_of_means",
    "units_per_rank": [12, 36],
}


def verdict(outcome="pass", diagnosis=(), criterion=CRITERION, number=1, **observed):
    made = Verdict(f"window {number}", "pass", outcome, criterion, NUMBERS | observed, {}, diagnosis=tuple(diagnosis))
    return plain(made)


def plain(made):
    """As JSON has it."""
    return json.loads(json.dumps(asdict(made)))


def window(number=1, of=None, notes=(), **how):
    return {
        "window": number,
        "verdict": of or verdict(number=number, **how),
        "seen": {
            "world_size": 2,
            "microbatches": [2, 2],
            "units": [[4, 8], [9, 27]],
            "rows": [[1, 1], [1, 1]],
            "positions": [[4, 8], [9, 27]],
            "collectives": [[0, 1], [None, 1]],
        },
        "notes": list(notes),
        "seconds": {"window": 1.25, "audit": 0.5},
    }


def report(*windows, asked=2):
    made = Report(lambda loader: ("watched", loader), asked)
    made.windows.extend(windows)
    return made


FAILED = {"outcome": "fail", "diagnosis": ["mean_of_means"], "error": 3e-5, "residual": 1.2e-7}
DOUBTED = {"outcome": "inconclusive", "criterion": f"{CRITERION}; x is y; z is w"}


def fail(number=1, **how):
    return window(number, **FAILED | how)


def doubt(number=1, **how):
    return window(number, **DOUBTED | how)


def test_a_loader_is_watched_by_the_audit():
    assert report().watch("loader") == ("watched", "loader")


@pytest.mark.parametrize(
    ("windows", "outcome"),
    [
        ([], "inconclusive"),
        ([window()], "pass"),
        ([window(), window(2)], "pass"),
        ([window(), doubt(2)], "pass"),
        ([doubt(), window(2)], "pass"),
        ([doubt(), doubt(2)], "inconclusive"),
        ([window(), fail(2)], "fail"),
        ([fail(), window(2)], "fail"),
        ([doubt(), fail(2)], "fail"),
    ],
)
def test_the_outcome_of_windows(windows, outcome):
    made = report(*windows)
    assert made.outcome == made.document()["outcome"] == outcome
    assert made.sentence.startswith(f"{outcome}: ")
    assert made.document()["sentence"] == made.sentence == made.text().split("\n\n")[0].replace("\n  ", " ")


def test_the_sentence_of_a_pass():
    assert report(window(), doubt(2)).sentence == (
        "pass: the gradient is that of the mean over all supervised units (1 of 2 windows)"
    )


def test_the_sentence_of_a_pass_counts_different_notes():
    assert report(window(notes=["a", "b"]), window(2, notes=["b", "c"])).sentence == (
        "pass, with 3 notes: the gradient is that of the mean over all supervised units (2 of 2 windows)"
    )


def test_the_sentence_of_a_failure():
    assert report(window(), fail(2)).sentence == (
        "fail: the gradient is off by 1,000 tolerances in window 2, parameter head.weight: mean_of_means (each rank "
        "divides by its own units)"
    )


def test_the_sentence_of_several_names():
    assert report(fail(diagnosis=["mean_of_means", "stale_count"], error=9e-8)).sentence == (
        "fail: the gradient is off by 3 tolerances in window 1, parameter head.weight: mean_of_means or stale_count "
        "(each rank divides by its own units; or the window before gave the denominator)"
    )


def test_the_sentence_of_no_name():
    assert report(fail(diagnosis=[])).sentence == (
        "fail: the gradient is off by 1,000 tolerances in window 1, parameter head.weight: no known mistake explains it"
    )


@pytest.mark.parametrize("error", ["nan", "inf"])
def test_the_sentence_of_what_is_not_a_number(error):
    assert report(fail(diagnosis=[], error=error)).sentence == (
        "fail: the gradient is not finite in window 1, parameter head.weight: no known mistake explains it"
    )


@pytest.mark.parametrize("numbers", [{"tolerance": 0.0}, {"error": None, "tolerance": None}])
def test_the_sentence_of_an_error_without_a_measure(numbers):
    assert report(fail(**numbers)).sentence == (
        "fail: the gradient is another one in window 1, parameter head.weight: mean_of_means (each rank divides by its "
        "own units)"
    )


def test_the_sentence_of_a_mistake_that_left_the_gradient_of_rank_0_right():
    """What is off by half a tolerance is not off."""
    made = report(fail(diagnosis=["weights_differ_between_ranks"], error=1.5e-8))
    assert made.sentence == (
        "fail: the gradient is within its tolerance, and yet in window 1: weights_differ_between_ranks (ranks hold "
        "other weights, so each applies the gradient to another model)"
    )


def test_the_sentence_of_a_doubt():
    assert report(doubt(), doubt(2)).sentence == "inconclusive: window 1: x is y; z is w"


def test_the_sentence_of_a_window_that_was_not_compared_has_all_doubts():
    made = report(window(of=plain(not_comparable("window 1", [3], ["x is y", "z is w"]))))
    assert made.sentence == "inconclusive: window 1: x is y; z is w"


def test_the_sentence_of_nothing():
    assert report().sentence == "inconclusive: no window was audited"


def test_the_document():
    windows = [window(), fail(2)]
    made = report(*windows)
    assert made.document() == {
        "outcome": "fail",
        "sentence": made.sentence,
        "world_size": 2,
        "windows": windows,
    }
    assert json.loads(json.dumps(made.document(), allow_nan=False)) == made.document()
    assert report().document()["world_size"] is None


def test_the_text_of_a_pass():
    assert report(window(notes=["rank 1: so it is"]), window(2)).text().split("\n\n")[:2] == [
        "pass, with 1 note: the gradient is that of the mean over all supervised units (2 of 2 windows)",
        "window 1: pass\n"
        "  ranks 2, microbatches per rank [2, 2]\n"
        "  supervised units per rank and microbatch [[4, 8], [9, 27]]\n"
        "  collectives in each microbatch's backward [[0, 1], [none, 1]]\n"
        "  error 1.5e-08, tolerance 3e-08, in parameter head.weight\n"
        "  the nearest wrong formula, mean_of_means, would be 12,346 tolerances away\n"
        "  judged by: each parameter's error against the objective's gradient, computed in float64 in one\n"
        "    process, is at most 4 times that of one process in the dtype of the run\n"
        "  note: rank 1: so it is\n"
        "  the window took 1.25 s, its audit 0.50 s",
    ]


def test_the_text_of_a_failure():
    made = report(fail(power="inf"), asked=1)
    assert made.text().split("\n") == [
        "fail: the gradient is off by 1,000 tolerances in window 1, parameter head.weight: mean_of_means",
        "  (each rank divides by its own units)",
        "",
        "window 1: fail",
        "  ranks 2, microbatches per rank [2, 2]",
        "  supervised units per rank and microbatch [[4, 8], [9, 27]]",
        "  collectives in each microbatch's backward [[0, 1], [none, 1]]",
        "  error 3e-05, tolerance 3e-08, in parameter head.weight",
        "  the nearest wrong formula, mean_of_means, would be inf tolerances away",
        "  it is mean_of_means, residual 1.2e-07: each rank divides by its own units",
        "  judged by: each parameter's error against the objective's gradient, computed in float64 in one",
        "    process, is at most 4 times that of one process in the dtype of the run",
        "  the window took 1.25 s, its audit 0.50 s",
    ]


def test_the_text_of_a_window_that_was_not_compared():
    made = report(window(of=plain(not_comparable("window 1", [3], ["x is y", "z is w"]))), asked=1)
    assert made.text().split("\n")[2:] == [
        "window 1: inconclusive",
        "  ranks 2, microbatches per rank [2, 2]",
        "  supervised units per rank and microbatch [[4, 8], [9, 27]]",
        "  collectives in each microbatch's backward [[0, 1], [none, 1]]",
        "  judged by: no number is compared; x is y; z is w",
        "  the window took 1.25 s, its audit 0.50 s",
    ]


def test_a_name_without_a_meaning_stands_alone():
    assert "  it is something new\n" in report(fail(diagnosis=["something new"], residual=None)).text()


def test_positions_with_padding_are_told():
    padded = window()
    padded["seen"]["positions"] = [[8, 8], [30, 1000]]
    assert "[[4, 8], [9, 27]], of 1,046 positions with padding\n" in report(padded).text()


def test_windows_that_were_not_made_are_told():
    assert report(window(), asked=3).text().endswith("\n\n1 of 3 windows were audited: the loop made no more updates")
    assert "were audited" not in report(window(), window(2), asked=2).text()
    assert report().text() == (
        "inconclusive: no window was audited\n\n0 of 2 windows were audited: the loop made no more updates"
    )


def test_a_text_can_be_read_in_100_columns():
    """But for what is one word."""
    long = "a doubt that goes on and on, " * 12
    many = window(of=verdict("inconclusive", criterion=f"{CRITERION}; {long}"), notes=[long])
    many["seen"]["units"] = [[123] * 40] * 2
    name = "a" * 110
    text = report(many, fail(2, parameter=name, diagnosis=["mean_of_means", "weights_differ_between_ranks"])).text()
    for line in text.split("\n"):
        assert len(line) <= 100 or name in line, line
        assert line == line.rstrip()
    assert str(many["seen"]["units"]) in " ".join(text.split()).replace("\n", " ")


def test_a_report_is_saved_by_the_first_rank_only(tmp_path):
    made = report(window())
    made.is_main = False
    made.save(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []
    made.is_main = True
    made.save(str(tmp_path / "folder" / "report.json"))
    assert json.loads((tmp_path / "folder" / "report.json").read_text()) == made.document()


@pytest.mark.parametrize("is_main", [True, False])
def test_what_fails_raises_on_every_rank(is_main):
    made = report(fail())
    made.is_main = is_main
    with pytest.raises(AuditError) as raised:
        made.raise_if_wrong()
    assert str(raised.value) == (
        f"the gradient that the optimizer applies is not that of the objective: {made.sentence}"
    )


def test_what_passes_raises_nothing(caplog):
    report(window()).raise_if_wrong()
    assert caplog.records == []


def test_what_is_not_judged_is_warned_of_once(caplog):
    made = report(doubt())
    with caplog.at_level(logging.WARNING):
        made.raise_if_wrong()
        made.is_main = False
        made.raise_if_wrong()
    assert [record.getMessage() for record in caplog.records] == ["the audit is inconclusive: window 1: x is y; z is w"]
