"""What may differ between the run that wrote a checkpoint and the one that goes on from it."""

import argparse
from pathlib import Path

import pytest

from ddp_tokens.errors import CheckpointError, ConfigError
from ddp_tokens.identity import (
    NOTHING,
    Allowed,
    add_flags,
    allowed_by,
    continued,
    damaged_past,
    first_update_of_rank_histories,
    told,
)

WRITTEN = {"seed": 1, "threads_per_rank": 1, "world_size": 2, "torch": "2.13", "python": "3.11"}
INEXACT, REPARTITION = Allowed(inexact=True), Allowed(repartition=True)


def test_the_same_identity_is_accepted_in_any_order():
    now = dict(reversed(WRITTEN.items())) | {"model": {"width": 8}}
    assert continued("step", WRITTEN | {"model": {"width": 8}}, now, 3) == now


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        ({"seed": 2, "batch": 4}, "step-0002 was written with seed 1, this run has 2: resume with the same settings"),
        ({"seed": 1}, "written with batch 4, this run has None"),
        ({"seed": 1, "batch": 4, "code": "c"}, "written with code None, this run has c"),
    ],
)
def test_another_identity_is_refused_by_field(now, problem):
    with pytest.raises(CheckpointError, match=problem):
        continued("step-0002", {"seed": 1, "batch": 4}, now, 3, Allowed(True, True))


@pytest.mark.parametrize(("name", "value"), [("threads_per_rank", 2), ("torch", "2.14"), ("python", "3.12")])
def test_what_only_threatens_bits_needs_the_flag_and_is_recorded(name, value):
    now = WRITTEN | {name: value}
    for allowed in (NOTHING, REPARTITION):
        with pytest.raises(CheckpointError, match=f"{name} .* can change bits: .* or add --allow-inexact"):
            continued("step", WRITTEN, now, 3, allowed)
    goes_on = continued("step", WRITTEN, now, 3, INEXACT)
    assert goes_on == now | {"inexact": [{"step": 3, name: {"from": WRITTEN[name], "to": value}}]}
    assert told(goes_on) == [f"inexact since update 3: {name} {WRITTEN[name]} -> {value}"]


def test_another_number_of_ranks_needs_the_flag_and_is_recorded():
    now = WRITTEN | {"world_size": 3}
    for allowed in (NOTHING, INEXACT):
        with pytest.raises(CheckpointError, match="world_size 2, this run has 3: start 2 ranks, or add --allow-repart"):
            continued("step", WRITTEN, now, 3, allowed)
    goes_on = continued("step", WRITTEN, now, 3, REPARTITION)
    assert goes_on == now | {"repartitioned": [{"step": 3, "world_size": {"from": 2, "to": 3}}]}
    assert first_update_of_rank_histories(goes_on) == 4
    assert first_update_of_rank_histories(now) == 1


def test_a_plan_made_anew_for_other_ranks_is_refused_with_advice():
    with pytest.raises(
        CheckpointError, match=r"plan\.json a, this run has b: prepare with the world_size that the first"
    ):
        continued("step", WRITTEN | {"plan.json": "a"}, WRITTEN | {"plan.json": "b"}, 3, REPARTITION)


def test_flags_without_a_difference_record_nothing():
    assert continued("step", WRITTEN, WRITTEN, 3, Allowed(True, True)) == WRITTEN


@pytest.mark.parametrize(
    ("name", "flag", "allowed", "now"),
    [
        ("inexact", "--allow-inexact", INEXACT, WRITTEN | {"torch": "2.14"}),
        ("repartitioned", "--allow-repartition", REPARTITION, WRITTEN | {"world_size": 3}),
    ],
)
def test_a_run_that_went_on_differently_stays_so(name, flag, allowed, now):
    """Also where its second resume finds nothing new; a third that differs again is recorded beside."""
    second = continued("step", WRITTEN, now, 3, allowed)
    with pytest.raises(CheckpointError, match=f"is of a run that is {name} since update 3: .*: add {flag}"):
        continued("step", second, now, 4)
    assert continued("step", second, now, 4, allowed) == second
    third = continued("step", second, WRITTEN, 5, allowed)
    assert [entry["step"] for entry in third[name]] == [3, 5]
    assert len(told(third)) == 2


@pytest.mark.parametrize(
    "entries", [True, {}, [1], [{"step": 3}], [{"step": "3", "torch": {"from": 1, "to": 2}}], [{"step": 3, "torch": 2}]]
)
@pytest.mark.parametrize("name", ["inexact", "repartitioned"])
def test_what_was_never_recorded_so_is_damaged(name, entries):
    assert damaged_past({name: entries}) == name
    assert damaged_past({name: [{"step": 3, "torch": {"from": 1, "to": 2}}]}) is None


@pytest.mark.parametrize("flag", ["--allow-inexact", "--allow-repartition"])
def test_flags_go_with_a_resume(flag):
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", type=Path)
    add_flags(parser)
    assert allowed_by(parser.parse_args([])) == NOTHING
    expected = INEXACT if flag == "--allow-inexact" else REPARTITION
    assert allowed_by(parser.parse_args([flag, "--resume", "step-0050"])) == expected
    with pytest.raises(ConfigError, match=f"{flag} goes with --resume PATH"):
        allowed_by(parser.parse_args([flag]))
