"""fsdp2 and zero1 leave the gradient of the objective, whatever ranks hold; a mean of means is refused and named."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from ddp_tokens import judging
from ddp_tokens.corpora.rows import supervised_in
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import sum_over_ranks
from ddp_tokens.errors import ConfigError
from ddp_tokens.files import read_json
from ddp_tokens.gradients import PROGRAM, main, traced
from ddp_tokens.gradients import token_mean as token_mean_way
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss
from ddp_tokens.plan import equally_many_microbatches, microbatches_of, windows_to_compare
from ddp_tokens.reference import gradients_of, reference_gradient
from ddp_tokens.strategies import (
    bare_of,
    blocks_of,
    gathers,
    optimizer_of,
    reached_by_ranks,
    reaching,
    unsynchronized,
    wrap,
)
from ddp_tokens.tensors import is_sharded, load_tensors, own_part, weights_of
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.test_gradient_on_ranks import ROUNDING, WRONG, largest_difference
from tests.distributed.tiny import SETTINGS, Tiny, prepared, told_by

STRATEGIES = ("fsdp2", "zero1")


def uneven(plan: list[Any], world_size: int) -> list[list[list[str]]]:
    """A window in which rank 0 has three microbatches, rank 1 one, of a single row, and a third rank nothing."""
    ids = [row for window in plan[:4] for of_rank in window for microbatch in of_rank for row in microbatch]
    ids = list(dict.fromkeys(ids))
    return [[ids[0:2], ids[2:4], ids[4:5]], [ids[5:6]], [[]]][:world_size]


def compare(world: World, tiny: Tiny, strategy: str, how: str) -> dict[str, Any]:
    """By formula: how far the gradient on this rank is from the reference. `how`: what is special about the window."""
    experiment, at = tiny.experiment, tiny.at
    make_deterministic(1)
    found = read_prepared(experiment, at)
    planned = uneven(found.plan, world.size)
    [window] = equally_many_microbatches([planned])
    rows = dict(found.rows)
    if how == "a rank without a label":
        rows |= {row: rows[row].unsupervised() for microbatch in window[1] for row in microbatch}
    shares = [microbatches_of(window, rank, rows) for rank in range(world.size)]
    bare = initial_model(experiment, token_labels, found.shape, at.initial, "cpu", torch.float64)
    reference = reference_gradient(bare, token_labels, [row for share in shares for rows in share for row in rows])
    model = wrap(bare.eval(), strategy)
    own = shares[world.rank]
    local, total = count_window(own, "window 1")
    formulas = {
        "token_mean": partial(global_token_loss, global_count=total, world_size=world.size),
        "mean_of_means": partial(mean_of_means_loss, local_count=local or 1),
        "forgotten_world_size": lambda value: value / total,
    }
    of_formula = {}
    for name, normalize in formulas.items():
        accumulate(model, token_labels, [token_labels.collate(rows) for rows in own], normalize)
        of_formula[name] = largest_difference(gradients_of(bare_of(model)), reference)
    return {
        "units": [supervised_in(row for rows in share for row in rows) for share in shares],
        "planned": [len(of_rank) for of_rank in planned],
        "microbatches": len(own),
        "of": of_formula,
        "sharded": [is_sharded(parameter) for parameter in bare_of(model).parameters()],
        "values": sum(own_part(parameter.detach()).numel() for parameter in bare_of(model).parameters()),
        "all_values": sum(parameter.numel() for parameter in bare_of(model).parameters()),
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("how", ["fewer microbatches", "a rank without a label"])
def test_the_gradient_is_that_of_the_objective(tmp_path, strategy, world_size, how):
    """In float64, where counts differ, ranks have fewer microbatches than others, and some have no unit at all."""
    tiny = prepared(tmp_path / "tiny", world_size)
    ranks = run_ranks(compare, world_size, tmp_path, tiny, strategy, how)
    for rank in ranks:
        assert rank["planned"] == [3, 1, 1][:world_size], "otherwise no rank has fewer"
        assert rank["microbatches"] == 3
        assert len(set(rank["units"])) > 1
        assert (rank["units"][1] == 0) == (how == "a rank without a label")
        assert world_size == 2 or rank["units"][2] == 0
        assert rank["of"]["token_mean"] < ROUNDING
        assert rank["of"]["mean_of_means"] > WRONG
        assert rank["of"]["forgotten_world_size"] > WRONG
        assert rank["of"] == ranks[0]["of"]
        assert rank["sharded"] == [strategy == "fsdp2"] * len(rank["sharded"])
    held = [rank["values"] for rank in ranks]
    assert sum(held) == ranks[0]["all_values"] * (1 if strategy == "fsdp2" else world_size), "held in parts, or whole"


def write_gradients_as_program(world: World, arguments: list[str]) -> dict[str, Any]:
    return told_by(PROGRAM, main, arguments)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_step_gradients_ends_as_expected_and_names_a_mean_of_means(tmp_path, strategy):
    tiny = prepared(tmp_path / "tiny", 2, strategy=strategy)
    done = run_ranks(write_gradients_as_program, 2, tmp_path, tiny.arguments(), joined=False)
    assert done == [{"code": 0, "said": ""}] * 2
    parity = {verdict.case: verdict for verdict in judging.gradient_parity(tiny.experiment, tiny.at)}
    assert [verdict.problem for verdict in parity.values() if not verdict.as_expected] == []
    wrong = [verdict for case, verdict in parity.items() if case.startswith("mean_of_means")]
    assert [(verdict.outcome, verdict.diagnosis) for verdict in wrong] == [("fail", ("mean_of_means",))] * 4
    right = [verdict for case, verdict in parity.items() if case.startswith("token_mean")]
    assert [verdict.outcome for verdict in right] == ["pass"] * 4
    [window] = judging.window(tiny.experiment, tiny.at)
    assert window.outcome == "pass"
    reductions = window.observed["reductions"]
    assert [of_rank[:-1] for of_rank in reductions] == [[0], [0]]
    assert all(of_rank[-1] == (2 if strategy == "fsdp2" else 1) for of_rank in reductions), (
        "the model and its one block"
    )
    assert [verdict.outcome for verdict in judging.zero_window(tiny.experiment, tiny.at)] == ["pass"]


def test_windows_in_which_ranks_have_unequally_many_microbatches_are_compared(tmp_path):
    """7 rows are 4 and 3 for two ranks, in microbatches of 3 two and one. References are of the plan, though they are
    written here with an experiment that says strategy.
    """
    uneven = {"corpus": SETTINGS["corpus"] | {"train": 7}, "sharding": "by_epoch", "batch": 3, "accumulation": 3}
    tiny = prepared(tmp_path / "tiny", 2, strategy="fsdp2", **uneven)
    done = run_ranks(write_gradients_as_program, 2, tmp_path, tiny.arguments(), joined=False)
    assert done == [{"code": 0, "said": ""}] * 2
    plan = read_json(tiny.at.plan)["plan"]
    compared = windows_to_compare(plan, read_prepared(tiny.experiment, tiny.at).rows).values()
    assert [[len(of_rank) for of_rank in plan[index]] for index in compared] == [[2, 1]] * 2
    parity = judging.gradient_parity(tiny.experiment, tiny.at)
    assert [verdict.case for verdict in parity if not verdict.as_expected] == []
    assert {verdict.outcome for verdict in parity if verdict.case.startswith("token_mean")} == {"pass"}


# `aux` is used by no loss, once in a block and once in none; `silent` by every loss, which it does not change.
WITH_UNUSED = """\
import torch
from torch import nn

from ddp_tokens import labelled


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.used, self.aux = nn.Linear(width, width), nn.Linear(width, width)
        self.silent = nn.Parameter(torch.ones(width))

    def forward(self, hidden):
        return torch.tanh(self.used(hidden)) + 0 * self.silent


class Model(nn.Module):
    def __init__(self, width, vocabulary, classes):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(vocabulary, width), nn.ModuleList([Block(width)])
        self.aux, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.blocks[0](self.tokens(tokens)))


class Work:
    def build_model(self, settings, shape):
        return Model(8, shape.vocabulary, shape.classes)

    def collate(self, rows, device="cpu"):
        return labelled.collate(rows, device)

    def forward(self, model, batch):
        return model(batch.tokens)

    def loss_sum(self, outputs, batch):
        return labelled.loss_sum(outputs, batch)

    def metrics(self, outputs, batch):
        return labelled.metrics(outputs, batch)
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_parameter_that_no_loss_uses_has_no_gradient_and_one_whose_gradient_is_zero_has_it(tmp_path, strategy):
    path = tmp_path / "with_unused.py"
    path.write_text(WITH_UNUSED)
    changes = {"workload": f"{path}:Work", "model": {"kind": "own"}, "strategy": strategy}
    tiny = prepared(tmp_path / "tiny", 2, **changes)
    done = run_ranks(write_gradients_as_program, 2, tmp_path, tiny.arguments(), joined=False)
    assert done == [{"code": 0, "said": ""}] * 2
    dump = load_tensors(tiny.at.gradients("token_mean", "float64"))
    names = {name.split("/")[1] for name in dump}
    assert {name for name in names if "aux" in name} == set()
    assert {"blocks.0.silent", "blocks.0.used.weight", "head.bias", "tokens.weight"} <= names
    assert [bool(dump[name].any()) for name in dump if name.endswith("silent")] == [False] * 2
    parity = judging.gradient_parity(tiny.experiment, tiny.at)
    assert [(verdict.case, verdict.first_difference) for verdict in parity if not verdict.as_expected] == []
    right = [verdict.outcome for verdict in parity if verdict.case.startswith("token_mean")]
    assert right == ["pass"] * 4


class OfOneRank(torch.nn.Module):
    """`own` is used where the rank is 1, in its first microbatch; `unused` nowhere; `tied` has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.own, self.unused = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))
        self.tied = torch.nn.Linear(2, 2, bias=False)
        self.tied.weight = self.all.weight

    def forward(self, inputs: torch.Tensor, with_own: bool) -> torch.Tensor:
        hidden = self.tied(inputs)
        return self.own(hidden) if with_own else hidden


def reach(world: World, strategy: str) -> list[list[list[str]]]:
    """In each of two windows of two microbatches: what this rank reaches, and what any does."""
    model, found = wrap(OfOneRank(), strategy), []
    for uses in (True, False):
        model.zero_grad(set_to_none=True)
        with reaching(model) as reached:
            for last in (False, True):
                with nullcontext() if last else unsynchronized(model):
                    model(torch.ones(1, 2), uses and world.rank == 1 and not last).sum().backward()
        found.append([sorted(reached), sorted(reached_by_ranks(model, reached, world.device))])
    return found


def test_a_parameter_that_one_rank_reaches_is_reached(tmp_path):
    """And in the next window, in which none does, it is not."""
    tied, own = ["all.weight", "tied.weight"], "own.weight"
    assert run_ranks(reach, 2, tmp_path, "fsdp2") == [
        [[tied, ["all.weight", own]], [tied, ["all.weight"]]],
        [[["all.weight", own, "tied.weight"], ["all.weight", own]], [tied, ["all.weight"]]],
    ]


class Blocks(torch.nn.Module):
    """A list of two blocks, one of which shares its weights with the head, and a sequence inside of the other."""

    def __init__(self) -> None:
        super().__init__()
        inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        self.blocks = torch.nn.ModuleList([inner, torch.nn.Linear(3, 3), torch.nn.ReLU()])
        self.head = torch.nn.Linear(3, 3)
        self.head.weight = self.blocks[1].weight


def test_blocks_are_the_outermost_parts_of_lists_that_share_nothing():
    model = Blocks()
    assert blocks_of(model) == [model.blocks[0]]
    assert blocks_of(model.blocks[0]) == [model.blocks[0][0]]
    assert blocks_of(torch.nn.Linear(3, 3)) == []


def shared_weights(world: World) -> dict[str, Any]:
    bare = Blocks()
    with torch.no_grad():
        for parameter in bare.parameters():
            parameter.fill_(0.5)
    names = list(weights_of(bare))
    return {"before": names, "after": list(weights_of(wrap(bare, "fsdp2")))}


def test_weights_that_are_shared_are_listed_once_though_parts_may_be_empty(tmp_path):
    """At three ranks each holds one row of three; at four, the last holds nothing of any tensor."""
    for ranks in (2, 4):
        for found in run_ranks(shared_weights, ranks, tmp_path):
            assert found["after"] == found["before"]
            assert len(found["before"]) == 5


def wrap_running_statistics(world: World) -> str:
    try:
        wrap(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), "fsdp2")
    except ConfigError as error:
        return str(error)
    return ""


def test_running_statistics_are_refused_under_fsdp2(tmp_path):
    said = run_ranks(wrap_running_statistics, 2, tmp_path)
    assert (
        said
        == [
            "strategy fsdp2 sends no buffers, and 1 (BatchNorm1d) keeps running statistics, which would differ between "
            "ranks: take a layer without them (model.norm group), or strategy ddp"
        ]
        * 2
    )


def trace_wrong_windows(world: World, tiny: Tiny) -> dict[str, Any]:
    """What the trace sees of windows that reduce every time, and in which weights move."""
    experiment, at = tiny.experiment, tiny.at
    found = read_prepared(experiment, at)
    own = microbatches_of(found.plan[0], world.rank, found.rows)

    def model() -> torch.nn.Module:
        bare = initial_model(experiment, token_labels, found.shape, at.initial, "cpu", torch.float32)
        return wrap(bare.eval(), "fsdp2")

    def wrong(mistake: str) -> Any:
        def way(model, workload, microbatches, name, world):
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            for rows in microbatches:
                batch = workload.collate(rows)
                loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
                loss.backward()
                if mistake == "updated inside":
                    optimizer.step()

        return way

    return {
        mistake: traced(way, model(), token_labels, own, world)
        for mistake, way in {
            "none": token_mean_way,
            **{name: wrong(name) for name in ("reduced every time", "updated inside")},
        }.items()
    }


def test_the_trace_of_a_sharded_window_sees_what_happens(tmp_path):
    tiny = prepared(tmp_path / "tiny", 2, strategy="fsdp2")
    for found in run_ranks(trace_wrong_windows, 2, tmp_path, tiny):
        seen = {name: [bool(f["reductions"]) for f in record["forwards"]] for name, record in found.items()}
        assert seen["none"] == [False, True]
        assert seen["reduced every time"] == [True, True]
        assert [f["gradients"] for f in found["none"]["forwards"]] == [False, True]
        assert [found[name]["moved"] for name in found] == [False, False, True]
        assert [f["moved"] for f in found["updated inside"]["forwards"]] == [False, True]


def shares_of_the_state(world: World) -> dict[str, Any]:
    model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), "zero1")
    optimizer = optimizer_of(model, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, "zero1")
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    own = sum(value["momentum_buffer"].numel() for value in optimizer.optim.state.values())
    return {"own": own, "all": sum_over_ranks([own]), "gathers": gathers(model)}


def test_under_zero1_each_rank_holds_its_share_of_the_state(tmp_path):
    """40 parameters: two weights of 16 values, two biases of 4."""
    for found in run_ranks(shares_of_the_state, 2, tmp_path):
        assert found == {"own": 20, "all": [40.0], "gathers": False}
