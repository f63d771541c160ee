import json
from dataclasses import replace

import pytest

from ddp_tokens.checks.replicas import ATOL
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import to_json
from ddp_tokens.lesson import lesson_notes
from ddp_tokens.scaling_manifest import NOTHING_TO_REDUCE, manifest
from ddp_tokens.steps import view
from tests.helpers import tiny_experiment
from tests.unit.test_lesson import replicas
from tests.unit.test_scaling import machine, measured

FIRST = [
    *("seed", "lab", "launcher", "backend", "world_size", "model_params", "steps"),
    *("allreduce_p50_ms", "allreduce_p95_ms", "tokens_per_sec_1proc", "tokens_per_sec_2proc", "byte_equivalent"),
    *("lesson_notes", "machine"),
]


def manifest_of(world_size=2, verdict=None, **figures):
    points, reduced, on = measured(**figures)
    experiment = view(tiny_experiment(world_size=world_size), "scaling")
    return manifest(experiment, on, points, reduced, verdict or replicas())


def test_the_labs_fields_come_first_and_hold_what_was_measured():
    """The hook saw 5 ms and 1 ms of waiting in every step, so p50 = p95 = 6; tokens as in test_scaling.py."""
    found = manifest_of()
    assert list(found)[: len(FIRST)] == FIRST
    assert json.loads(to_json(found, sort_keys=False)) == found
    points, reduced, on = measured()
    assert {name: found[name] for name in FIRST} == {
        "seed": 17,
        "lab": "01-ddp-on-cpu",
        "launcher": "fork",
        "backend": "gloo",
        "world_size": 2,
        "model_params": 1000,
        "steps": 4,
        "allreduce_p50_ms": pytest.approx(6),
        "allreduce_p95_ms": pytest.approx(6),
        "tokens_per_sec_1proc": pytest.approx(10000),
        "tokens_per_sec_2proc": pytest.approx(8000),
        "byte_equivalent": True,
        "lesson_notes": lesson_notes(points, reduced[2], on, replicas()),
        "machine": {"cpu": "A CPU", "cores": 2, "torch": "2.13.0", "threads": 1},
    }
    assert list(found["machine"]) == ["cpu", "cores", "torch", "threads"]


def test_the_all_reduce_is_that_of_the_experiments_ranks():
    """With four ranks 8 ms and 1 ms of waiting."""
    assert manifest_of(world_size=4)["allreduce_p50_ms"] == pytest.approx(9)


def test_one_rank_has_nothing_to_reduce_and_says_so():
    found = manifest_of(world_size=1, verdict=replicas("inconclusive", None))
    assert (found["allreduce_p50_ms"], found["allreduce_p95_ms"], found["byte_equivalent"]) == (None, None, None)
    assert found["allreduce"] == NOTHING_TO_REDUCE
    assert found["lesson_notes"].endswith("One rank has no replica to be compared with.")
    assert "nothing to reduce" not in manifest_of()["allreduce"]


def test_ranks_that_were_not_timed_are_named():
    with pytest.raises(EvidenceError) as caught:
        manifest_of(world_size=3)
    assert str(caught.value) == (
        "timings.jsonl holds no step of the experiment's 3 ranks; "
        "delete this experiment's folder scaling/ and measure again"
    )


def test_a_careful_reader_finds_both_variants_of_each_world_size():
    found = manifest_of(difference={2: -1, 4: 8})
    assert [of_size["world_size"] for of_size in found["timings"]] == [2, 4]
    two = found["timings"][0]
    for name, ms in (("difference", -1), ("hook_with_waiting", 6), ("hook_without_waiting", 5), ("backward_alone", 20)):
        key = f"{name}_ms"
        assert two[key] == {"mean": pytest.approx(ms), "p50": pytest.approx(ms), "p95": pytest.approx(ms)}
        assert name in found["meanings"]
    assert (two["bytes"], two["buckets"]) == (4000, 2)
    assert (found["warm_up_steps"], found["python"]) == (2, "3.11.2")
    assert list(found["runs"]) == ["1proc", "2proc", "4proc"]
    assert found["runs"]["2proc"] == {
        "repeats": 3,
        "updates": 10,
        "tokens_per_update": 400,
        "tokens_per_sec_min": pytest.approx(400 / 0.051),
        "tokens_per_sec_max": pytest.approx(400 / 0.049),
    }


def test_the_options_of_ddp_are_those_that_were_measured():
    on = machine(bucket_cap_mb=None, gradient_as_bucket_view=True)
    ddp = manifest_of(on=on)["ddp"]
    assert (ddp["find_unused_parameters"], ddp["bucket_cap_mb"], ddp["gradient_as_bucket_view"]) == (False, None, True)
    assert "the runs that prove the exact resume set find_unused_parameters to true, since" in ddp["in_the_proof"]


def test_replicas_that_differ_are_in_the_manifest():
    verdict = replicas(bit_equal=False, largest=2**-17)
    verdict = replace(verdict, observed={**verdict.observed, "parameter": "head.bias"})
    found = manifest_of(verdict=verdict)
    assert found["byte_equivalent"] is False
    assert found["replicas"] == {
        "outcome": "pass",
        "max_abs_difference": 7.62939e-06,  # 2**-17, to six digits
        "parameter": "head.bias",
        "allowed": ATOL,
    }
