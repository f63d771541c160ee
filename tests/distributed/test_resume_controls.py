"""Each known mistake of a resume, made on two real ranks, is refused and named; right resumes are not."""

from pathlib import Path

import pytest
import torch

from ddp_tokens.checks.verdict import FAIL, PASS, diagnosis_of
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.controls.judge import judge_resume
from ddp_tokens.controls.resume_cases import RESUME, SHARED, Case, of_world_size
from ddp_tokens.controls.resumes import VARIANTS, run_all
from ddp_tokens.files import read_json, read_json_lines, sha256
from ddp_tokens.layout import Layout
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import INTERRUPT_AT, STEPS, Tiny, prepared

CASES = of_world_size(2)  # those of more ranks: test_controls_on_ranks.py
OF_RESUMES = [case for case in CASES if case.check == RESUME]
FAULTS = [case for case in CASES if case.expected == FAIL]


def run_all_controls(world: World, config: str, source: str, folder: str) -> None:
    torch.use_deterministic_algorithms(True)
    run_all(load_experiment(config), Layout(Path(source)), lambda name: Layout(Path(folder) / name), world)


@pytest.fixture(scope="module")
def controls(tmp_path_factory) -> Tiny:
    """All variants, made in one launch; their results lie in a folder each."""
    tiny = prepared(tmp_path_factory.mktemp("controls"), 2)
    run_ranks(run_all_controls, 2, tiny.folder, str(tiny.config), str(tiny.at.root), str(tiny.folder / "controls"))
    return tiny


@pytest.fixture
def into(controls):
    return lambda name: Layout(controls.folder / "controls" / name)


def named(case: Case) -> str:
    return case.name


def test_every_case_of_the_table_has_its_variant():
    assert {case.name for case in CASES} < set(VARIANTS)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_variant_is_judged_and_diagnosed_as_what_it_is(controls, into, case):
    verdicts = judge_resume(case, controls.experiment, into)
    outcome = FAIL if any(verdict.outcome == FAIL for verdict in verdicts) else PASS
    assert (outcome, diagnosis_of(verdicts)) == (case.expected, case.diagnosis)
    assert {verdict.outcome for verdict in verdicts} <= {PASS, FAIL}
    assert {verdict.case for verdict in verdicts if verdict.diagnosis} == WHERE.get(case.name, set())


BOTH = {"start_rank_0", "start_rank_1"}
# The verdicts that see the cause. What only follows from it, other weights at the end for one, is not diagnosed.
WHERE = {
    "generators_not_restored": BOTH,
    "only_seed_restored": BOTH,
    "restored_before_a_skip_that_draws": BOTH,
    "momentum_lost": BOTH,
    "schedule_lost": BOTH,
    "scaler_lost": BOTH,
    "position_off_by_one": {"rows_rank_0", "rows_rank_1"},
    "position_reset": {"rows_rank_0", "rows_rank_1"},
    "another_corpus": {"identity"},
    "rank_files_swapped": BOTH,
    "history_not_continued": {"history", *BOTH},
    "weights_perturbed_after_wrapping": {"continuous"},
    "all_reduce_skipped_in_training": {"continuous"},
    "buffers_kept_apart": {"continuous"},
}


def weights_of(into, case: Case) -> list[str]:
    """Digests of each rank's parameters at the end."""
    run = into(case.name).run("resume" if case.check == RESUME else "continuous")
    return [sha256(run / "ranks" / f"state-rank-{rank}.safetensors") for rank in range(2)]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_fault_fired_and_the_right_variants_follow_the_continuous_path(into, case):
    """Lost records are the one fault that leaves the weights right. A path of its own is really another one."""
    shared = sha256(into(SHARED).checkpoint("continuous", STEPS) / "model.safetensors")
    right = sha256(into(case.name).checkpoint("continuous", STEPS) / "model.safetensors") if case.alone else shared
    assert (right != shared) == case.alone
    found = weights_of(into, case)
    if case in FAULTS and case.name != "history_not_continued":
        assert any(digest != right for digest in found)
    else:
        assert found == [right, right]


@pytest.mark.parametrize("case", OF_RESUMES, ids=named)
def test_a_resume_starts_where_the_interruption_was(into, case):
    """Every variant resumed: it started at the interruption, not at 0, and made the updates that were left."""
    begun_at = INTERRUPT_AT + case.twice
    run = into(case.name).run("resume")
    for rank in range(2):
        assert read_json(run / "ranks" / f"start-rank-{rank}.json")["step"] == begun_at
        records = read_json_lines(run / "ranks" / f"rank-{rank}.jsonl")
        assert [record["step"] for record in records][begun_at - STEPS :] == list(range(begun_at + 1, STEPS + 1))


def test_the_loader_drew_two_words_per_window(controls, into):
    """random_() of one int64 takes 64 bits; three windows were skipped."""
    [case] = [case for case in CASES if case.name == "restored_before_a_skip_that_draws"]
    verdicts = {verdict.case: verdict for verdict in judge_resume(case, controls.experiment, into)}
    for rank in range(2):
        verdict = verdicts[f"start_rank_{rank}"]
        assert verdict.observed["words_drawn_after_restoring"] == 2 * INTERRUPT_AT
        assert verdict.first_difference == {"rank": rank, "state": "torch_cpu"}


def test_lost_records_are_those_before_the_last_resume(into):
    records = read_json_lines(into("history_not_continued").run("resume") / "history.jsonl")
    assert [record["step"] for record in records] == [5, 6]


def test_perturbed_weights_differ_on_rank_1_only(into):
    at = into("weights_perturbed_after_wrapping").run("continuous") / "ranks"
    right = into(SHARED).run("continuous") / "ranks"
    models = [
        read_json(folder / f"start-rank-{rank}.json")["held"]["model.safetensors"]
        for folder in (right, at)
        for rank in range(2)
    ]
    assert models[0] == models[1] == models[2] != models[3]
