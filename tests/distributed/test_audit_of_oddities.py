"""Audits where ranks differ, where a forward is not local, where states are sharded, and where they are misused."""

from typing import Any

import pytest
import torch

from ddp_tokens import audit
from ddp_tokens.errors import AuditError
from ddp_tokens.world import World
from tests.distributed import audited_oddities as odd
from tests.distributed.audited import Loop, Words, clipped, loss_sum, run_cases
from tests.distributed.ranks import run_ranks


def unequal(world: World) -> dict[str, Any]:
    return run_cases(
        world,
        {
            "none on a rank": lambda w: odd.ReducedByHand(w).audited(),
            "uneven": lambda w: odd.Uneven(w).audited(),
            "uneven means": lambda w: odd.Uneven(w, way="mean_of_microbatch_means").audited(),
            "no units": lambda w: odd.WithoutUnits(w).audited(),
            "no units, sums": lambda w: odd.WithoutUnits(w, way="sums").audited(),
            "no units on 1 of 1": lambda w: odd.WithoutUnits(w).audited(lambda o, b: (o.sum() * 0, 0)),
            "batch norm": lambda w: Loop(w, odd.RowsNorm).audited(),
            "communicates": lambda w: Loop(w, odd.Communicates).audited(),
            "backward communicates": lambda w: Loop(w, odd.CommunicatesInBackward).audited(),
            "sharded": lambda w: odd.Sharded(w).audited(),
            "sharded clipped": lambda w: clipped(odd.Sharded(w), odd.clip).audited(),
            "sharded clipped while scaled": lambda w: clipped(odd.Sharded(w), odd.clip_while_scaled).audited(),
            "clipped while scaled": lambda w: clipped(Loop(w), odd.clip_while_scaled).audited(),
            "in half clipped": lambda w: clipped(odd.ShardedInHalf(w), odd.clip).audited(),
            "in half clipped while scaled": lambda w: clipped(odd.ShardedInHalf(w), odd.clip_while_scaled).audited(),
            "sharded means": lambda w: odd.Sharded(w, way="mean_of_means").audited(),
            "in half": lambda w: odd.ShardedInHalf(w).audited(),
            "in half means": lambda w: odd.ShardedInHalf(w, way="mean_of_means").audited(),
            "compressed": lambda w: odd.compressing(Loop(w)).audited(),
            "zero": lambda w: odd.with_shards_of_state(Loop(w)).audited(),
            "zero means": lambda w: odd.with_shards_of_state(Loop(w, way="mean_of_means")).audited(),
            "zero not named": lambda w: odd.with_shards_of_state(Loop(w)).audited(optimizer=None),
            "two": odd.two_audits,
            "hooks": odd.hooks_of,
            "groups": odd.groups_of,
            "buffer": lambda w: Loop(w, odd.Decaying, broadcast_buffers=False).audited(),
            "buffer means": lambda w: Loop(w, odd.Decaying, way="mean_of_means", broadcast_buffers=False).audited(),
        },
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    ranks = run_ranks(unequal, 2, tmp_path_factory.mktemp("odd"))
    assert ranks[0] == ranks[1]
    return ranks[0]


@pytest.mark.parametrize(
    "case",
    [
        *("none on a rank", "uneven", "no units", "sharded", "in half", "zero", "zero not named"),
        *("sharded clipped", "in half clipped", "buffer"),
    ],
)
def test_it_passes(found, case):
    assert found[case].get("outcomes") == ["pass", "pass"], found[case]


@pytest.mark.parametrize(
    ("case", "diagnosis"),
    [
        ("uneven means", ["mean_of_microbatch_means"]),
        ("no units, sums", ["not_divided"]),
        ("sharded means", ["mean_of_means"]),
        ("in half means", ["mean_of_means"]),
        ("zero means", ["mean_of_means"]),
        ("buffer means", ["mean_of_means"]),
        ("clipped while scaled", ["clipped_while_scaled"]),
        ("sharded clipped while scaled", ["clipped_while_scaled"]),
        ("in half clipped while scaled", ["clipped_while_scaled"]),
    ],
)
def test_it_fails(found, case, diagnosis):
    assert (found[case].get("outcome"), found[case].get("diagnosis")) == ("fail", diagnosis), found[case]
    assert found[case]["moved"]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("batch norm", "norm is batch normalization in training mode"),
        ("compressed", "the communication hook fp16_compress_hook: that may have changed it, so leave it out"),
        ("communicates", "the module's forward itself communicates with other ranks"),
    ],
)
def test_it_cannot_be_told(found, case, said):
    assert found[case].get("outcome") == "inconclusive", found[case]
    assert said in found[case]["sentence"]
    assert found[case]["moved"]


def test_a_backward_that_communicates_is_not_computed_again(found):
    """Rank 0 would wait for ranks that wait for it."""
    assert found["backward communicates"] == {
        "error": "the module's backward communicates with other ranks, so that one process cannot compute it: audit a "
        "loop whose backward is local"
    }


def test_what_ranks_did_is_said(found):
    [seen, _] = found["none on a rank"]["seen"]
    assert seen["microbatches"] == [0, 2]
    [seen, _] = found["uneven"]["seen"]
    assert seen["microbatches"] == [3, 2]


def test_audits_of_two_models_at_once_do_not_disturb_each_other(found):
    of_both = found["two"]
    assert (of_both["first"]["outcomes"], of_both["second"]["outcomes"]) == (["pass"], ["fail", "fail"])
    assert of_both["second"]["diagnosis"] == ["mean_of_means"]
    for one in (of_both["first"], of_both["second"]):
        assert len([note for note in one["notes"] if note.startswith("clipped")]) == len(one["outcomes"])
    assert of_both["same"]


def test_nothing_stays_of_an_audit(found):
    """Nor of one whose block an exception leaves, which passes through as it is."""
    of_hooks = found["hooks"]
    assert not of_hooks["inside"]
    assert of_hooks["after the last window"]
    assert of_hooks["after"]
    assert of_hooks["after an exception"]
    assert of_hooks["exception"] == ["Own", "as it is", True, True]
    assert of_hooks["windows"] == 1


def test_the_groups_of_an_audit_are_gone_after_it(found):
    of_groups = found["groups"]
    before, inside, after, again = of_groups["numbers"]
    assert (inside, after, again) == (before + 2, before, before)
    assert of_groups["outcomes"] == ["pass", "pass"]
    assert of_groups["total"] == 2.0


def test_ranks_with_other_numbers_of_updates_do_not_wait_forever(tmp_path):
    """Within DDP's join rank 0 makes three updates and rank 1 two."""
    ranks = run_ranks(odd.uneven_updates, 2, tmp_path)
    assert "rank 0 is at its update of window 3 and another rank did not come to it within 2 s" in ranks[0]["error"]
    assert "let all ranks make the same number of updates" in ranks[0]["error"]
    assert [rank["windows"] for rank in ranks] == [2, 2]


def alone(world: World) -> dict[str, Any]:
    assert not torch.distributed.is_initialized()
    ways = ("right", "mean_of_microbatch_means", "mean_of_means", "loss_scale_kept")
    return {way: Loop(world, way=way).audited() for way in ways}


def test_one_process_without_a_group(tmp_path):
    """Of one rank, the mean of its units is the mean of all."""
    [found] = run_ranks(alone, 1, tmp_path, joined=False)
    assert found["right"]["outcomes"] == found["mean_of_means"]["outcomes"] == ["pass", "pass"]
    assert "mean_of_microbatch_means" in found["mean_of_microbatch_means"]["diagnosis"]
    assert found["loss_scale_kept"]["outcome"] == "inconclusive"
    assert found["right"]["seen"][0]["world_size"] == 1


def misused(world: World) -> dict[str, Any]:
    def of_all(**named: Any) -> dict[str, Any]:
        return Loop(world).audited(**named)

    def returns(value: Any) -> Any:
        return of_all(loss=lambda outputs, batch: value(outputs))

    def no_parameter_of_it() -> dict[str, Any]:
        return Loop(world).audited(optimizer=torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))

    def no_optimizer() -> dict[str, Any]:
        return Loop(world).audited(optimizer=object())

    def another_model() -> dict[str, Any]:
        loop = Loop(world)
        loop.model, trained = Words(), loop.model
        try:
            with audit(loop.model, None, loss_sum=loss_sum, timeout_s=20):
                loop.model = trained
                loop.windows(1)
        except AuditError as error:
            return {"error": str(error)}
        return {}

    cases = {
        "no update": lambda: odd.OnlyForwards(world).audited(),
        "no call": lambda: odd.NoForward(world).audited(),
        "no units": lambda: returns(lambda outputs: (outputs.sum(), 0)),
        "raises": lambda: of_all(loss=odd.raising_on_rank_1(world)),
        "no scalar": lambda: returns(lambda outputs: (outputs, 3)),
        "no pair": lambda: returns(lambda outputs: outputs.sum()),
        "less than none": lambda: returns(lambda outputs: (outputs.sum(), -0.5)),
        "lock": lambda: odd.GivesLock(world, odd.TakesLock).audited(),
        "another optimizer": no_parameter_of_it,
        "no optimizer": no_optimizer,
        "another model": another_model,
        "no name": lambda: of_all(loss="perplexity"),
        "no function": lambda: of_all(loss=3),
        "no windows": lambda: of_all(count=0),
        "no float64": lambda: Loop(world, odd.NotInFloat64).audited(),
        "no room": lambda: of_all(record_mib=0),
    }
    return {name: case() for name, case in cases.items()}


SENTENCES = {
    "no update": "nothing was audited: Words ran, but the optimizer made no update inside the block: let it train",
    "no call": "nothing was audited: Words never ran with gradients enabled inside the block: pass the module",
    "no units": "window 1: loss_sum counts no supervised unit on any rank, so there is no mean: check how it counts",
    "raises": "rank 1, window 1: loss_sum raising fails on what the module returned, a Tensor, and the batch, "
    "['labels', 'tokens']: ArithmeticError: no such loss",
    "no scalar": "and 3: let it return the sum of the losses, a scalar tensor, and how many supervised units",
    "no pair": "returns a Tensor of shape () and no number: let it return the sum of the losses, a scalar tensor",
    "less than none": "window 1: loss_sum <lambda> returns a Tensor of shape () and -0.5: let it return the sum",
    "lock": "rank 1, window 1: an input[1].lock is a lock, which cannot be taken to another rank: call the module with",
    "another optimizer": "the optimizer, a SGD, updates no parameter of Words: pass the model that it updates",
    "no optimizer": "the optimizer is a object, which is no torch.optim.Optimizer: pass that one",
    "another model": "nothing was audited: the optimizers that made updates hold no parameter of Words: pass the model",
    "no name": "loss_sum is 'perplexity', which is none of causal-lm, token-classification, classification: take one",
    "no function": "loss_sum is a int: pass a function of outputs and batch",
    "no float64": "window 1 cannot be computed again in one process: ArithmeticError: no float64 here; it is",
    "no windows": "windows is 0: audit one or more",
}


def test_a_misuse_is_one_sentence_on_every_rank(tmp_path):
    ranks = run_ranks(misused, 2, tmp_path)
    assert ranks[0] == ranks[1]
    for case, sentence in SENTENCES.items():
        said = ranks[0][case].get("error", "")
        assert sentence in said, (case, ranks[0][case])
        assert "\n" not in said
    no_room = ranks[0]["no room"]
    assert no_room["outcomes"] == ["inconclusive", "inconclusive"], no_room
    assert (
        "the inputs of a window, and buffers that forward changes, take more than 0 MiB: pass a larger record_mib"
        in no_room["sentence"]
    )
