import pytest

from ddp_tokens.checks.zero_window import check_zero_window
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, write_json

MESSAGE = "window 1 holds no supervised unit on any rank"


def report(rank, error=MESSAGE, moved=False, world_size=2):
    return {"rank": rank, "world_size": world_size, "window": "window 1", "error": error, "parameters_moved": moved}


def verdict_on(folder, *reports):
    for each in reports:
        write_json(folder / f"rank-{each['rank']}.json", each)
    [verdict] = check_zero_window(folder)
    return verdict


def test_the_same_refusal_on_every_rank_passes(tmp_path):
    verdict = verdict_on(tmp_path, report(0), report(1))
    assert (verdict.case, verdict.expected, verdict.outcome) == ("empty_window", "pass", "pass")
    assert verdict.first_difference is None
    assert verdict.observed == {
        "ranks_that_refused": 2,
        "ranks_whose_parameters_moved": [],
        "messages": {"0": MESSAGE, "1": MESSAGE},
    }
    assert verdict.evidence == digests(tmp_path.glob("*.json"))
    assert "all 2 ranks raise the same error" in verdict.criterion


def test_a_rank_that_did_not_refuse_fails(tmp_path):
    verdict = verdict_on(tmp_path, report(0), report(1, error=None))
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"messages": [MESSAGE, None]}
    assert verdict.observed["ranks_that_refused"] == 1


def test_no_rank_refusing_fails(tmp_path):
    assert verdict_on(tmp_path, report(0, error=None), report(1, error=None)).outcome == "fail"


def test_different_messages_fail(tmp_path):
    verdict = verdict_on(tmp_path, report(0), report(1, error="the gradient is NaN"))
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"messages": [MESSAGE, "the gradient is NaN"]}


def test_parameters_that_moved_fail_and_the_rank_is_named(tmp_path):
    verdict = verdict_on(tmp_path, report(0), report(1, moved=True))
    assert verdict.outcome == "fail"
    assert verdict.observed["ranks_whose_parameters_moved"] == [1]
    assert verdict.first_difference == {"ranks_whose_parameters_moved": [1]}


def test_a_rank_without_a_report_fails(tmp_path):
    assert verdict_on(tmp_path, report(0)).outcome == "fail"


def test_an_error_that_does_not_name_the_window_fails(tmp_path):
    """The criterion says that the error names it."""
    verdict = verdict_on(tmp_path, report(0, error="no"), report(1, error="no"))
    assert verdict.outcome == "fail"


def test_no_report_at_all_is_an_error(tmp_path):
    with pytest.raises(EvidenceError, match=r"holds no rank-R\.json: run gradients again"):
        check_zero_window(tmp_path)
