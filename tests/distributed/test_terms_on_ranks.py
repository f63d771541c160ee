"""A loss of three terms on real ranks: right in both dtypes, and each mistake refused and named."""

from pathlib import Path

import pytest

from ddp_tokens.checks.verdict import FAIL, PASS
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.control_settings import require_suitable
from ddp_tokens.controls.gradient_cases import PARITY, RIGHT, VARIANTS, case_layout, ranks_layout
from ddp_tokens.controls.judge import judge_gradient
from ddp_tokens.controls.prepare import _write_case
from ddp_tokens.controls.ranks import run_variant
from ddp_tokens.controls.term_cases import TERM_CASES
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.helpers import PROJECT

CONFIG = PROJECT / "config" / "controls.yaml"
OF_TERMS = [variant for variant in VARIANTS if variant.case.name in TERM_CASES]


def prepare_alone(world: World, root: str) -> None:
    experiment = load_experiment(CONFIG)
    for case in TERM_CASES.values():
        _write_case(case, experiment, require_suitable(experiment), case_layout(Path(root), case))


def run(world: World, root: str) -> None:
    experiment, at = load_experiment(CONFIG), Path(root)
    for variant in OF_TERMS:
        if variant.case.world_size == world.size:
            run_variant(variant, experiment, case_layout(at, variant.case), ranks_layout(at, world.size), world)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("terms")
    run_ranks(prepare_alone, 1, root, str(root), joined=False)
    for size in (2, 3):
        run_ranks(run, size, root, str(root), timeout=120)
    return root


def judged(root: Path, variant):
    tolerances = load_experiment(CONFIG).tolerances
    return judge_gradient(
        variant, tolerances, case_layout(root, variant.case), ranks_layout(root, variant.case.world_size)
    )


def test_both_numbers_of_ranks_and_all_mistakes_are_here():
    assert {variant.case.world_size for variant in OF_TERMS} == {2, 3}
    assert {name for variant in OF_TERMS for name in variant.diagnosis} == {
        "shared_denominator",
        "regularizer_times_world_size",
        "regularizer_times_microbatches",
        "coefficient_forgotten",
        "term_forgotten",
        "mean_of_means",
    }
    assert len([variant for variant in OF_TERMS if variant.kind == RIGHT]) == 4


@pytest.mark.parametrize("variant", OF_TERMS, ids=lambda variant: variant.name)
def test_a_loss_of_terms_is_judged_as_it_must(built, variant):
    assert variant.check == PARITY
    verdicts = judged(built, variant)
    assert [verdict.case for verdict in verdicts] == [f"{variant.name}.native", f"{variant.name}.float64"]
    for verdict in verdicts:
        assert (verdict.outcome, verdict.diagnosis) == (variant.expected, variant.diagnosis), verdict
        assert verdict.observed["power"] > 1000
        if verdict.outcome == FAIL:
            assert verdict.observed["error"] > 1000 * verdict.observed["tolerance"]
            assert verdict.observed["residual"] < 1e-6 < verdict.observed["next_best_residual"]
        else:
            assert verdict.outcome == PASS
