"""The gradient that DDP leaves is that of the objective, for any world size and accumulation; near misses are not."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss
from ddp_tokens.plan import make_plan
from ddp_tokens.reference import gradients_of, reference_gradient
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import SquaredError, Theta, prepared, row, units_by_rank

# In float64 a gradient value of at most about 1 is a sum of some hundred terms, each rounded by 1e-16 of its size: two
# orders of summation differ by about 1e-15 to 1e-14. A wrong formula differs by more than 1e-3 (asserted below).
ROUNDING = 1e-12
WRONG = 1e-3

Gradients = dict[str, torch.Tensor]


def largest_difference(left: Gradients, right: Gradients) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def different_counts(window: list[list[list[Row]]]) -> int:
    return len({supervised_in(rows) for of_rank in window for rows in of_rank})


def scaled(gradients: Gradients, factor: float) -> Gradients:
    return {name: gradient * factor for name, gradient in gradients.items()}


def compare_formulas(world: World, config: str, root: str, accumulation: int) -> dict[str, Any]:
    """By formula: the largest difference from the reference, and from what the formula's derivation says it leaves."""
    experiment = load_experiment(config)
    at = Layout(Path(root))
    make_deterministic(1)
    prepared_ = read_prepared(experiment, at)
    training = TrainingRows(row for row in prepared_.rows.values() if row.split == "train")
    plan = make_plan(training, seed=1, steps=20, world_size=world.size, accumulation=accumulation, batch=2)
    windows = [[[[prepared_.rows[i] for i in ids] for ids in of_rank] for of_rank in window] for window in plan]
    shares = max(windows, key=different_counts)
    bare = initial_model(experiment, token_labels, prepared_.shape, at.initial, "cpu", torch.float64)
    reference_of = partial(reference_gradient, bare, token_labels)
    flat = [[row for microbatch in share for row in microbatch] for share in shares]
    reference = reference_of([row for share in flat for row in share])
    of_ranks = [reference_of(share) for share in flat]
    of_microbatches = [reference_of(microbatch) for share in shares for microbatch in share]

    own = shares[world.rank]
    local, total = count_window(own, "window 1")
    right = partial(global_token_loss, global_count=total, world_size=world.size)
    # formula -> (what turns a microbatch's loss sum into the loss, the gradient that this leaves after the averaging)
    formulas: dict[str, tuple[Callable[[int], Callable[[Any], Any]], Gradients]] = {
        "token_mean": (lambda _: right, reference),
        "mean_of_means": (lambda _: partial(mean_of_means_loss, local_count=local), average(of_ranks)),
        "extra_division": (lambda _: lambda value: right(value) / accumulation, scaled(reference, 1 / accumulation)),
        "forgotten_world_size": (lambda _: lambda value: value / total, scaled(reference, 1 / world.size)),
        "mean_of_microbatch_means": (
            lambda index: lambda value: value / supervised_in(own[index]) / accumulation,
            average(of_microbatches),
        ),
    }
    model = wrap_for_ddp(bare).eval()
    found = {}
    for formula, (normalize_at, predicted) in formulas.items():
        observed = accumulate_each(model, own, normalize_at)
        found[formula] = {
            "from_reference": largest_difference(observed, reference),
            "from_prediction": largest_difference(observed, predicted),
            "values": {name: gradient.flatten().tolist() for name, gradient in observed.items()},
        }
    microbatch_units = [[supervised_in(rows) for rows in share] for share in shares]
    return {"units": microbatch_units, "largest": largest_difference(reference, scaled(reference, 0)), "of": found}


def accumulate_each(model, microbatches: list[list[Row]], normalize_at: Callable) -> Gradients:
    """accumulate, with a formula that may depend on the microbatch's index."""
    turn = iter(range(len(microbatches)))
    batches = [token_labels.collate(rows) for rows in microbatches]
    accumulate(model, token_labels, batches, lambda value: normalize_at(next(turn))(value))
    return gradients_of(model.module)


def average(gradients: list[Gradients]) -> Gradients:
    return {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}


@pytest.fixture(scope="module", params=[1, 2, 3])
def experiment(request, tmp_path_factory):
    return prepared(tmp_path_factory.mktemp(f"world{request.param}"), request.param)


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_only_the_token_mean_leaves_the_gradient_of_the_objective(experiment, accumulation):
    ranks = run_ranks(
        compare_formulas,
        experiment.world_size,
        experiment.folder,
        str(experiment.config),
        str(experiment.at.root),
        accumulation,
    )
    several_ranks, several_microbatches = experiment.world_size > 1, accumulation > 1
    differs = {
        "token_mean": False,
        "mean_of_means": several_ranks,
        "extra_division": several_microbatches,
        "forgotten_world_size": several_ranks,
        "mean_of_microbatch_means": several_ranks or several_microbatches,
    }
    for rank in ranks:
        of_ranks = [sum(units) for units in rank["units"]]
        assert len(set(of_ranks)) == experiment.world_size, "with equal counts both means are the same"
        assert all(len(set(units)) == accumulation for units in rank["units"])
        assert rank["largest"] > 0.01
        for formula, wrong in differs.items():
            found = rank["of"][formula]
            assert found["from_prediction"] < ROUNDING, formula
            assert (found["from_reference"] > WRONG) if wrong else (found["from_reference"] < ROUNDING), formula
        assert rank["of"] == ranks[0]["of"], "after the averaging, every rank holds the same bits"


def theta_gradients(world: World, shares: list[list[Row]]) -> dict[str, float]:
    """The gradient of theta under both formulas; one microbatch per rank."""
    workload, model = SquaredError(), wrap_for_ddp(Theta())
    own = [shares[world.rank]]
    local, total = count_window(own, "window 1")
    formulas = {
        "token_mean": partial(global_token_loss, global_count=total, world_size=world.size),
        "mean_of_means": partial(mean_of_means_loss, local_count=local),
    }
    found = {}
    for name, normalize in formulas.items():
        accumulate(model, workload, [workload.collate(rows) for rows in own], normalize)
        found[name] = float(model.module.theta.grad)
    return found


def weights_of_tokens(world: World, tokens: list[int]) -> list[dict[str, float]]:
    """Weight of each token in the mean: its target is 1 and all others are 0, so the gradient at 0 is -2 * weight."""
    weights = []
    for chosen in range(sum(tokens)):
        targets = iter([int(index == chosen) for index in range(sum(tokens))])
        shares = [[row(*[next(targets) for _ in range(count)])] for count in tokens]
        weights.append({name: value / -2 for name, value in theta_gradients(world, shares).items()})
    return weights


def test_lone_token_weighs_what_every_token_weighs(tmp_path):
    """Known failure lone-token: 5 and 1 tokens. Each weighs 1/6; in a mean of means 1/10 and, for the lone one, 1/2."""
    for weights in run_ranks(weights_of_tokens, 2, tmp_path, [5, 1]):
        assert [weight["token_mean"] for weight in weights] == pytest.approx([1 / 6] * 6, rel=1e-14)
        assert [weight["mean_of_means"] for weight in weights] == pytest.approx([0.1] * 5 + [0.5], rel=1e-14)


def test_local_counts_four_ranks_divide_by_the_sum_of_counts(tmp_path):
    """Known failure local-counts-four-ranks. Targets: 1 | 2, 2 | 3, 3, 3 | 4 six times, so 12 units.

    Gradient at theta = 0: -2 * (1 + 4 + 9 + 24) / 12 = -19/3. Mean of the local means: -2 * (1 + 2 + 3 + 4) / 4 = -5.
    """
    shares = [[row(1)], [row(2, 2)], [row(3), row(3, 3)], [row(4, 4, 4), row(4, 4, 4)]]
    assert units_by_rank(shares) == [1, 2, 3, 6]
    together = reference_gradient(Theta(), SquaredError(), [row for share in shares for row in share])
    assert float(together["theta"]) == pytest.approx(-19 / 3, rel=1e-14)
    for found in run_ranks(theta_gradients, 4, tmp_path, shares):
        assert found["token_mean"] == pytest.approx(-19 / 3, rel=1e-14)
        assert found["mean_of_means"] == pytest.approx(-5.0, rel=1e-14)


def test_equal_losses_can_have_unequal_gradients(tmp_path):
    """12 targets at +1, 36 at -1: both losses are 1; the gradients are 0 (mean of means) and -2*(12 - 36)/48 = 1."""
    shares = [[row(*[1] * 12)], [row(*[-1] * 36)]]
    for found in run_ranks(theta_gradients, 2, tmp_path, shares):
        assert found == {"token_mean": pytest.approx(1.0, rel=1e-14), "mean_of_means": pytest.approx(0.0, abs=1e-15)}
