"""What trainers are given: the plan's windows, a model without dropout; how updates are timed; the bare loop."""

import math
from itertools import chain

import pytest
import torch
from torch import distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddp_tokens.errors import ConfigError, EvidenceError, LaunchError
from ddp_tokens.layout import Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import reference_gradient, write_initial_weights
from ddp_tokens.tensors import load_tensors
from ddp_tokens.trainers.windows import AUDITED, TIMED, Clock, Windows, loss_sum, train_bare
from ddp_tokens.world import World
from tests.helpers import tiny_experiment

STEPS = AUDITED + TIMED


def prepared(folder, **changes):
    experiment = tiny_experiment(**{"steps": STEPS, "interrupt_at": 2} | changes)
    at = Layout(folder / experiment.name)
    prepare(experiment, at.rows, at.lock, at.plan)
    write_initial_weights(experiment, at)
    return experiment, at


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    experiment, at = prepared(tmp_path_factory.mktemp("windows"))
    return [Windows.read(experiment, at, World(rank, rank, 2)) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One rank in a process group of its own."""
    experiment, at = prepared(tmp_path_factory.mktemp("alone"), world_size=1)
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Windows.read(experiment, at, World())
    distributed.destroy_process_group()


def test_ranks_are_given_the_rows_of_the_plan(of_ranks):
    own = of_ranks[0]
    for rank, windows in enumerate(of_ranks):
        for planned, given in zip(own.prepared.plan, windows.of_rank(), strict=True):
            assert len(planned[rank]) == len(given)
            for ids, batch in zip(planned[rank], given, strict=True):
                rows = [own.prepared.rows[row] for row in ids]
                lengths = [len(row.tokens) for row in rows]
                found = [tuple(of_row[:n].tolist()) for of_row, n in zip(batch["labels"], lengths, strict=True)]
                assert found == [row.labels for row in rows]
                assert (~batch["padding"]).sum(1).tolist() == lengths


def test_the_loader_gives_the_same_batches_one_by_one(of_ranks):
    expected = list(chain.from_iterable(of_ranks[1].of_rank()))
    state = torch.get_rng_state()
    given = list(of_ranks[1].loader())
    assert torch.equal(torch.get_rng_state(), state), "a loader draws nothing from the run's generator"
    assert len(given) == len(expected) == 2 * STEPS
    assert all(torch.equal(a[name], b[name]) for a, b in zip(given, expected, strict=True) for name in a)


def test_units_are_those_of_all_ranks(of_ranks):
    labels = [[torch.cat([b["labels"].flatten() for b in window]) for window in each.of_rank()] for each in of_ranks]
    counted = [sum(int((of_rank[index] != -100).sum()) for of_rank in labels) for index in range(STEPS)]
    assert [of_ranks[0].units(index) for index in range(STEPS)] == counted
    assert len(set(counted)) > 1


def test_the_model_has_the_initial_weights_and_no_dropout(of_ranks):
    model = of_ranks[0].model().train()
    weights = load_tensors(of_ranks[0].at.initial)
    assert set(weights) == set(model.state_dict())
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    batch = next(of_ranks[0].of_rank())[0]
    first, second = (model(batch["tokens"], batch["padding"]) for _ in range(2))
    assert torch.equal(first, second)
    assert of_ranks[0].experiment.model.dropout > 0


def test_the_loss_sum_leaves_out_what_is_not_supervised():
    """Two positions, of which one counts: -log(2 / (1 + 1 + 2)) = log 2."""
    logits = torch.tensor([[[0.0, 0.0, math.log(2)], [5.0, 1.0, 0.0]]])
    assert float(loss_sum(logits, torch.tensor([[2, -100]]))) == pytest.approx(math.log(2))


def test_other_ranks_than_planned_are_refused(of_ranks):
    with pytest.raises(LaunchError, match="1 ranks were started but the experiment says world_size 2"):
        Windows.read(of_ranks[0].experiment, of_ranks[0].at, World())


def test_a_plan_that_is_too_short_is_refused(tmp_path):
    experiment, at = prepared(tmp_path, steps=STEPS - 1)
    with pytest.raises(
        ConfigError, match=f"plan.json holds {STEPS - 1} windows, of {STEPS} that are needed: raise steps"
    ):
        Windows.read(experiment, at, World(0, 0, 2))


def test_another_kind_of_work_is_refused(of_ranks):
    other = of_ranks[0].experiment.model_copy(update={"workload": "causal_lm"})
    with pytest.raises(ConfigError, match="workload is causal_lm: examples label tokens"):
        Windows.read(other, of_ranks[0].at, World(0, 0, 2))


def test_the_bare_loop_applies_the_gradient_of_the_mean_over_all_units(alone):
    seen = []

    def look(optimizer, *_):
        seen.append([parameter.grad.clone() for parameter in optimizer.param_groups[0]["params"]])

    hook = register_optimizer_step_pre_hook(look)
    try:
        clock = train_bare(alone)
    finally:
        hook.remove()
    assert len(seen) == STEPS
    rows = [alone.prepared.rows[row] for batch in alone.prepared.plan[0][0] for row in batch]
    expected = list(reference_gradient(alone.model(), alone.workload, rows).values())
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(seen[0], expected, strict=True))
    assert any(bool(b.abs().max() > 1e-3) for b in expected)
    timed = sum(alone.units(index) for index in range(AUDITED, STEPS))
    assert alone.per_second(clock) == pytest.approx(timed / clock.seconds(AUDITED, STEPS))


def test_a_clock_counts_the_updates_of_the_first_optimizer_inside_its_block():
    first, other = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(2))
    first.step()
    with Clock() as clock:
        for _ in range(3):
            first.step()
            other.step()
    first.step()
    assert clock.seconds(1, 3) > clock.seconds(2, 3) > 0
    with pytest.raises(EvidenceError, match="3 updates were made where 4 were planned"):
        clock.seconds(2, 4)
