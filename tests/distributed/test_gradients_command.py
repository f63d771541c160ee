"""ddp_tokens.gradients on real ranks: its dumps are judged as expected, and so training goes ahead without a word."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddp_tokens import gradients
from ddp_tokens.checks.gradient_parity import check_gradient_parity, count_windows
from ddp_tokens.checks.gradient_references import REFERENCES
from ddp_tokens.checks.loss import check_loss
from ddp_tokens.checks.verdict import Verdict, write_verdicts
from ddp_tokens.checks.zero_window import check_zero_window
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.files import read_json, sha256
from ddp_tokens.normalization import FORMULAS, MEAN_OF_MEANS, TOKEN_MEAN
from ddp_tokens.plan import windows_to_compare
from ddp_tokens.reference import DTYPES
from ddp_tokens.world import World
from tests.distributed.faults import REACHED, inject
from tests.distributed.ranks import ends_of_ranks, run_ranks
from tests.distributed.tiny import Tiny, prepared, told_by


def dump(world: World, arguments: Sequence[str]) -> int:
    return gradients.main(arguments)


def with_gradients(tiny: Tiny) -> Tiny:
    ranks = run_ranks(dump, tiny.world_size, tiny.folder, tiny.arguments(), joined=False)
    assert ranks == [0] * tiny.world_size
    return tiny


def parity(tiny: Tiny) -> list[Verdict]:
    return check_gradient_parity(
        tiny.experiment.tolerances,
        {name: tiny.at.reference(name) for name in REFERENCES},
        {(formula, dtype): tiny.at.gradients(formula, dtype) for formula in FORMULAS for dtype in DTYPES},
        count_windows(tiny.at.rows, tiny.at.lock, tiny.at.plan),
    )


@pytest.fixture(scope="module", params=[1, 2, 3])
def dumped(request, tmp_path_factory):
    return with_gradients(prepared(tmp_path_factory.mktemp("gradients") / "tiny", request.param))


def test_every_gradient_is_judged_as_expected(dumped):
    """2 formulas, 2 dtypes, 2 windows.

    With three ranks the most unequal window happens to hold 38 units in both microbatches, so that weighing
    microbatches alike is the token mean there; by arithmetic, so it is expected.
    """
    verdicts = parity(dumped)
    assert len(verdicts) == 8
    assert [verdict.case for verdict in verdicts if not verdict.as_expected] == []
    # One rank cannot tell the formulas apart; with more, counts are unequal and a mean of means is wrong by far.
    control = "inconclusive" if dumped.world_size == 1 else "fail"
    undecidable = dumped.world_size == 3
    for verdict in verdicts:
        formula, _, window = verdict.case.split(".")
        right = "inconclusive" if undecidable and window == "most_unequal" else "pass"
        assert verdict.outcome == {TOKEN_MEAN: right, MEAN_OF_MEANS: control}[formula]
        assert len(set(verdict.observed["units_per_rank"])) == dumped.world_size
        assert verdict.observed["values"] > 500
        if verdict.outcome == "fail":
            assert verdict.observed["max_abs_error"] > 1e-3
            assert verdict.first_difference is not None


def test_an_empty_window_is_refused_by_every_rank_and_moves_nothing(dumped):
    [verdict] = check_zero_window(dumped.at.zero_window)
    assert verdict.outcome == "pass"
    assert verdict.observed["ranks_that_refused"] == dumped.world_size
    assert all("window 1" in message for message in verdict.observed["messages"].values())


def test_gradients_are_the_same_bits_every_time(dumped):
    paths = [dumped.at.gradients(formula, dtype) for formula in FORMULAS for dtype in DTYPES]
    before = [sha256(path) for path in paths]
    with_gradients(dumped)
    assert [sha256(path) for path in paths] == before
    assert len(set(before)) == (2 if dumped.world_size == 1 else 4)


def test_training_with_both_verdicts_as_expected_warns_of_nothing(tmp_path):
    tiny = with_gradients(prepared(tmp_path / "tiny", 2))
    write_verdicts(tiny.at.check("loss"), "loss", check_loss())
    write_verdicts(tiny.at.check("gradient_parity"), "gradient_parity", parity(tiny))
    assert {verdict["expected"] for verdict in read_json(tiny.at.check("gradient_parity"))["verdicts"]} == {
        "pass",
        "fail",
    }
    for rank in tiny.train():
        assert rank["code"] == 0
        assert "warning" not in rank["said"]


def test_fewer_ranks_in_the_same_folder_leave_nothing_of_the_earlier_ones(tmp_path):
    with_gradients(prepared(tmp_path / "tiny", 3))
    tiny = with_gradients(prepared(tmp_path / "tiny", 2))
    [verdict] = check_zero_window(tiny.at.zero_window)
    assert verdict.outcome == "pass"
    assert verdict.observed["ranks_that_refused"] == 2


def dump_with(world: World, arguments: Sequence[str], fault: str, faulty_rank: int, folder: str) -> dict[str, Any]:
    """In the second microbatch of the second window that is compared, of the plan's most unequal one."""
    if world.rank == faulty_rank:
        inject(fault, 4, Path(folder))
    return told_by(gradients.PROGRAM, gradients.main, arguments)


def test_a_rank_that_is_killed_is_named_by_the_others(tmp_path):
    tiny = prepared(tmp_path / "tiny", 3)
    found = ends_of_ranks(dump_with, 3, tiny.folder, tiny.arguments("--timeout-s", "3"), "die", 2, str(tiny.folder))
    assert (tiny.folder / "reached").read_text() == REACHED
    assert [end["exit"] for end in found] == [0, 0, -9]
    window = windows_to_compare(read_json(tiny.at.plan)["plan"], read_corpus(tiny.at.rows, tiny.at.lock)[0])
    for rank in (0, 1):
        assert found[rank]["returned"]["code"] == 2
        who = "ddp_tokens.gradients" if rank == 0 else f"ddp_tokens.gradients, rank {rank}"
        said = found[rank]["returned"]["said"].splitlines()[-1]
        assert said.startswith(f"{who}: rank 2 was killed in update {window['most_unequal'] + 1}, microbatch 2 (")
        assert said.endswith(f"while rank {rank} was in the all-reduce of the gradients")
