"""Every control and every right variant on real ranks, judged; and a control that slips through is noticed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddp_tokens import cli
from ddp_tokens.checks.gradient_references import REFERENCES, read_references
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.controls import gradient_cases, ranks, table
from ddp_tokens.controls.gradient_cases import ranks_layout
from ddp_tokens.controls.gradient_windows import CASES
from ddp_tokens.controls.judge import judge_gradient
from ddp_tokens.controls.prepare import prepare_controls
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.errors import EvidenceError, GateError
from ddp_tokens.files import read_json, write_json
from ddp_tokens.layout import Layout
from ddp_tokens.window_facts import window_facts
from ddp_tokens.workflow import CONTROL_WORLD_SIZES
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.helpers import PROJECT

CONFIG = PROJECT / "config" / "controls.yaml"


def prepare_alone(world: World, root: str) -> None:
    prepare_controls(load_experiment(CONFIG), Layout(Path(root)))


def run(world: World, arguments: Sequence[str]) -> int:
    return ranks.main(arguments)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Layout:
    results = tmp_path_factory.mktemp("results")
    at = Layout(results / "controls")
    run_ranks(prepare_alone, 1, results, str(at.root), joined=False)
    for size in CONTROL_WORLD_SIZES:
        arguments = ["--config", str(CONFIG), "--results", str(results)]
        assert run_ranks(run, size, results, arguments, joined=False, timeout=120) == [0] * size
    return at


@pytest.fixture
def copied(built, tmp_path) -> Layout:
    return Layout(shutil.copytree(built.root, tmp_path / "controls"))


@pytest.fixture(scope="module")
def judged(built):
    return {(one.check, one.verdict.case): one.verdict for one in table.judge_all(load_experiment(CONFIG), built)}


def judge(at: Layout):
    return table.judge_all(load_experiment(CONFIG), at)


def test_every_control_is_caught_and_no_right_variant_is_refused(judged):
    assert len(judged) > 70
    assert {name: verdict.problem for name, verdict in judged.items() if verdict.problem} == {}


def test_every_control_is_far_from_its_tolerance(judged):
    """Of those judged by a tolerance: a thousand times, or more, where it is a matter of a formula."""
    of_parity = [
        verdict for (check, _), verdict in judged.items() if check == "gradient_parity" and verdict.expected == "fail"
    ]
    assert len(of_parity) >= 15
    for verdict in of_parity:
        assert verdict.observed["error"] > 1000 * verdict.observed["tolerance"], verdict.case
        assert verdict.observed["residual"] < 1e-6 < verdict.observed["next_best_residual"], verdict.case


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("empty", ["microbatch", "rank"])
def test_a_locally_empty_microbatch_or_rank_is_a_normal_case(built, judged, empty, size):
    """In float64 too, where `weakest` has looked at both dtypes; the guard is that it is empty, and others are not."""
    name = f"empty_{empty}_w{size}"
    at = gradient_cases.case_layout(built.root, CASES[name])
    rows, _ = read_corpus(at.rows, at.lock)
    units = window_facts(read_json(at.plan)["plan"], 1, rows).units
    assert (units[-1] == (0, 0)) if empty == "rank" else (units[-1][0] == 0 < units[-1][1])
    assert sum(map(sum, units)) > 0
    variant = next(variant for variant in gradient_cases.VARIANTS if variant.name == name)
    verdicts = judge_gradient(variant, load_experiment(CONFIG).tolerances, at, ranks_layout(built.root, size))
    assert [verdict.case for verdict in verdicts] == [f"{name}.native", f"{name}.float64"]
    assert [verdict.outcome for verdict in verdicts] == ["pass", "pass"]
    assert judged["gradient_parity", name].outcome == "pass"


def test_the_training_dtype_cannot_see_what_float64_can(built, judged):
    """One unit of 239 is far below bfloat16's rounding, and far above float32's."""
    blind, seeing = (judged["gradient_parity", f"one_unit_less_in_{dtype}"] for dtype in ("bfloat16", "float32"))
    assert (blind.outcome, seeing.outcome) == ("inconclusive", "pass")
    assert blind.observed["power"] < 3 < 1000 < seeing.observed["power"]
    assert blind.observed["nearest_formula"] == "mean_of_means"
    assert blind.observed["error"] > 1000 * seeing.observed["error"], "bfloat16 was really used"


def test_equal_counts_end_inconclusive(judged):
    for name in ("equal_counts", "equal_counts_mean_of_means"):
        verdict = judged["gradient_parity", name]
        assert verdict.outcome == "inconclusive"
        assert len(set(verdict.observed["units_per_rank"])) == 1


def test_statistics_of_each_microbatch_are_told_from_every_formula(built, judged):
    """In both dtypes; the same window with frozen statistics, or with none, passes, and its wrong formulas are seen."""
    size, of_name = 2, {variant.name: variant for variant in gradient_cases.VARIANTS}
    for name in ("batch_norm_in_training", "batch_norm_frozen", "group_norm_in_training"):
        variant = of_name[name]
        at = gradient_cases.case_layout(built.root, variant.case)
        verdicts = judge_gradient(variant, load_experiment(CONFIG).tolerances, at, ranks_layout(built.root, size))
        assert [verdict.case for verdict in verdicts] == [f"{name}.native", f"{name}.float64"]
        assert [verdict.problem for verdict in verdicts] == [None, None]
        units = [verdict.observed["units_per_rank"] for verdict in verdicts]
        assert units[0] == units[1] == judged["gradient_parity", "batch_norm_frozen"].observed["units_per_rank"]
        assert len(set(units[0])) == size
        assert all(verdict.observed["power"] > 1000 for verdict in verdicts)
    refused = judged["gradient_parity", "batch_norm_in_training"]
    assert refused.diagnosis == ("statistics_of_each_microbatch",)
    assert refused.observed["residual"] < 1e-6 < 1e-2 < refused.observed["next_best_residual"]


def test_references_in_training_are_another_function(built):
    """The guard: BatchNorm's gradient of the window as one batch is neither the frozen one nor the sum of its parts."""
    windows = {name: CASES[name] for name in ("batch_norm_in_training", "batch_norm_frozen")}
    ats = {name: gradient_cases.case_layout(built.root, case) for name, case in windows.items()}
    assert ats["batch_norm_in_training"].plan.read_bytes() == ats["batch_norm_frozen"].plan.read_bytes()
    dumps = [read_arrays(at.reference("float64")) for at in ats.values()]
    assert dumps[0].keys() == dumps[1].keys()
    assert max(abs(dumps[0][name] - dumps[1][name]).max() for name in dumps[0]) > 1e-2
    paths = {name: ats["batch_norm_in_training"].reference(name) for name in REFERENCES}
    rows, _ = read_corpus(ats["batch_norm_in_training"].rows, ats["batch_norm_in_training"].lock)
    facts = {"compared": window_facts(read_json(ats["batch_norm_in_training"].plan)["plan"], 1, rows)}
    with pytest.raises(EvidenceError, match="does not add up to the reference of window 'compared'"):
        read_references(paths, facts)


@pytest.mark.parametrize("dtype", ["native", "float64"])
def test_a_control_that_no_longer_goes_wrong_makes_the_gate_fail(copied, dtype):
    """The right gradient in the place of a wrong one, in one of both dtypes."""
    left = ranks_layout(copied.root, 3)
    shutil.copy(
        gradient_cases.case_layout(copied.root, CASES["controlled"]).reference(dtype),
        left.gradients("stale_count", dtype),
    )
    write_json(copied.root / "controls.json", table.document(judge(copied)))
    with pytest.raises(GateError, match=r"^controls: stale_count \(gradient_parity\) is pass, expected fail; "):
        table.gate(copied.root / "controls.json")


def test_a_control_that_goes_wrong_in_another_way_makes_the_gate_fail(copied):
    left = ranks_layout(copied.root, 3)
    for dtype in ("native", "float64"):
        shutil.copy(left.gradients("mean_of_means", dtype), left.gradients("padding_counted", dtype))
    assert table.problems(judge(copied)) == [
        "padding_counted (gradient_parity) is diagnosed as mean_of_means, expected padding_counted"
    ]


def test_a_right_variant_that_is_refused_makes_the_gate_fail(copied):
    left = ranks_layout(copied.root, 3)
    shutil.copy(left.gradients("mean_of_means", "float64"), left.gradients("w3_a2_b3", "float64"))
    [problem] = table.problems(judge(copied))
    assert problem == "w3_a2_b3 (gradient_parity) is fail, expected pass"


def test_every_variant_is_made_anew_with_the_same_bytes(built, tmp_path):
    """Two ranks: gradients, traces, runs and scores."""
    again = Layout(tmp_path / "controls")
    shutil.copytree(built.root, again.root)
    shutil.rmtree(again.root / "ranks" / "2")
    arguments = ["--config", str(CONFIG), "--results", str(tmp_path)]
    assert run_ranks(run, 2, tmp_path, arguments, joined=False, timeout=120) == [0, 0]
    names = [path.relative_to(built.root) for path in sorted((built.root / "ranks" / "2").rglob("*")) if path.is_file()]
    assert len(names) > 100
    assert [name for name in names if (again.root / name).read_bytes() != (built.root / name).read_bytes()] == []


def test_the_controls_are_judged_again_by_hand(copied, capsys):
    """The command reads what lies there: as it was made, and with one dump in the place of another."""
    arguments = ["control-table", "--config", str(CONFIG), "--results", str(copied.root.parent)]
    assert cli.main(arguments) == 0
    assert "controls are refused" in capsys.readouterr().out
    left = ranks_layout(copied.root, 3)
    for dtype in ("native", "float64"):
        shutil.copy(left.gradients("mean_of_means", dtype), left.gradients("stale_count", dtype))
    assert cli.main(arguments) == 1
    assert "stale_count (gradient_parity) is diagnosed as mean_of_means" in capsys.readouterr().out
    assert (
        "stale_count,normalization,gradient_parity,fail,fail,mean_of_means,"
        in (copied.root / "controls.csv").read_text()
    )
