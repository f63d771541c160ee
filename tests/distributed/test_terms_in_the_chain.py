"""An experiment whose workload has three terms: references, gradients, verdicts, training and resume, on two ranks."""

import json

import pytest

from ddp_tokens import gradients
from ddp_tokens.checks.gradient_terms import terms_told
from ddp_tokens.controls.term_cases import TERMS
from ddp_tokens.files import read_json_lines
from ddp_tokens.judging import JUDGES
from ddp_tokens.layout import PARTS
from ddp_tokens.terms import as_formula
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import STEPS, Tiny, prepared, told_by

WORKLOAD = "ddp_tokens.controls.term_workload:InTerms"


def write_gradients(world: World, arguments: list[str]) -> dict:
    return told_by(gradients.PROGRAM, gradients.main, arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Tiny:
    tiny = prepared(tmp_path_factory.mktemp("terms") / "tiny", 2, workload=WORKLOAD)
    for rank in run_ranks(write_gradients, 2, tiny.folder, tiny.arguments(), joined=False):
        assert rank == {"code": 0, "said": ""}
    tiny.train_all()
    return tiny


def test_the_reference_tells_the_terms(trained):
    assert terms_told(trained.at.reference(PARTS)).terms == TERMS


def test_gradient_parity_is_as_expected(trained):
    verdicts = JUDGES["gradient_parity"](trained.experiment, trained.at)
    assert {verdict.case: verdict.problem for verdict in verdicts if verdict.problem} == {}
    right = [verdict for verdict in verdicts if verdict.case.startswith("token_mean")]
    assert {verdict.outcome for verdict in right} == {"pass"}
    for verdict in verdicts:
        assert verdict.observed["objective"] == as_formula(TERMS)
        assert set(verdict.observed["units_per_rank"]) == {"labels", "pooled", "weights"}
        json.dumps(verdict.observed)
    # As many rows in each microbatch of each rank, so the means over sequences are those of means.
    assert "mean_of_means in term pooled" in right[0].observed["not_seen_here"]


@pytest.mark.parametrize("check", ["window", "zero_window", "resume", "replicas", "checkpoints"])
def test_every_other_check_passes(trained, check):
    verdicts = JUDGES[check](trained.experiment, trained.at)
    assert verdicts
    assert {verdict.case: verdict.problem for verdict in verdicts if verdict.problem} == {}


def test_an_empty_window_names_the_term(trained):
    [verdict] = JUDGES["zero_window"](trained.experiment, trained.at)
    for message in verdict.observed["messages"].values():
        assert "holds no unit (token) of term 'labels' on any rank" in message


def test_records_tell_each_term(trained):
    history = read_json_lines(trained.at.run("continuous") / "history.jsonl")
    assert len(history) == STEPS
    for record in history:
        terms = record["terms"]
        assert list(terms) == ["labels", "pooled", "weights"]
        assert terms["weights"]["units"] == 4, "two microbatches on each of two ranks"
        assert terms["pooled"]["units"] == 8, "two rows in each"
        assert (record["units"], record["loss_sum"]) == (terms["labels"]["units"], terms["labels"]["sum"])
        means = {name: term["sum"] / term["units"] for name, term in terms.items()}
        assert means == {name: term["mean"] for name, term in terms.items()}
        assert record["loss"] == pytest.approx(
            means["labels"] + 0.3 * means["pooled"] + 0.1 * means["weights"], rel=1e-12
        )
