"""What counts as the same but for rounding. Distances are chosen so that they are exact or far from the tolerance."""

import json

import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.archive.nearness import (
    NUMBERS,
    SCORES,
    TENSORS,
    compare_scores,
    is_exact,
    must_hold,
    relative_distance,
    unlike,
    unlike_arrays,
    unlike_rows,
    unlike_values,
    unlike_verdicts,
)

A, B = "a" * 64, "b" * 64


def array(*values, dtype=numpy.float32):
    return numpy.array(values, dtype=dtype)


def never(archived, rebuilt):
    return False


def test_the_distance_is_a_fraction_of_the_archived_norm():
    assert relative_distance(array(3, 4), array(3, 4)) == 0
    assert relative_distance(array(3, 4), array(3, 4.5)) == 0.1  # 0.5 of 5
    assert relative_distance(array(0, 0), array(0, 0.5)) == numpy.inf
    assert relative_distance(array(0.0), array(-0.0)) == 0


def test_what_is_not_finite_must_stand_at_the_same_place():
    assert relative_distance(array(numpy.nan, 3, 4), array(numpy.nan, 3, 4.5)) == 0.1
    assert relative_distance(array(numpy.inf, 1), array(numpy.inf, 1)) == 0
    for other in (array(1, numpy.nan), array(numpy.nan, numpy.nan), array(1, numpy.inf), array(1, 2)):
        assert relative_distance(array(numpy.nan, 2), other) == numpy.inf


@pytest.mark.parametrize("dtype", [numpy.int64, numpy.uint8, numpy.bool_])
def test_integers_must_be_equal(dtype):
    assert relative_distance(array(1, 0, dtype=dtype), array(1, 1, dtype=dtype)) == numpy.inf


def test_of_several_tensors_the_farthest_is_named():
    archived = {"a": array(1.0), "b": array(1.0), "c": array(1.0)}
    near = {name: values * (1 + TENSORS / 2) for name, values in archived.items()}
    assert unlike_arrays(archived, near) is None
    assert unlike_arrays(archived, near | {"b": array(1.5), "c": array(1.25)}) == "b: 0.5 of its norm"


@pytest.mark.parametrize(
    ("rebuilt", "told"),
    [
        ({}, "a: missing on one side"),
        ({"a": array(1.0), "b": array(1.0)}, "b: missing on one side"),
        ({"a": array(1.0, 2.0)}, "a: float32[1] against float32[2]"),
        ({"a": array(1.0, dtype=numpy.float64)}, "a: float32[1] against float64[1]"),
    ],
)
def test_tensors_of_another_shape(rebuilt, told):
    assert unlike_arrays({"a": array(1.0)}, rebuilt) == told


@pytest.mark.parametrize(
    ("archived", "rebuilt", "told"),
    [
        ({"a": [1, 2.0, None, True, "x"]}, {"a": [1, 2.0 * (1 + NUMBERS / 2), None, True, "x"]}, None),
        ({"a": 2.0}, {"a": 2.0 * (1 + NUMBERS * 2)}, "a: 2.0 archived, 2.0004 rebuilt"),
        ({"a": 10**6}, {"a": 10**6 + 1}, "a: 1000000 archived, 1000001 rebuilt"),
        ({"a": 0.0}, {"a": 1e-30}, "a: 0.0 archived, 1e-30 rebuilt"),
        ({"a": 1}, {"a": 1.0}, "a: 1 archived, 1.0 rebuilt"),
        ({"a": True}, {"a": 1}, "a: true archived, 1 rebuilt"),
        ({"a": 1}, {"b": 1}, "a: 1 archived, missing rebuilt"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, "a.c: missing archived, 2 rebuilt"),
        ([1, 2], [1], "the whole: a list of 2 archived, a list of 1 rebuilt"),
        ([{"a": "x"}], [{"a": "y"}], '[0].a: "x" archived, "y" rebuilt'),
        ({"a": A}, {"a": B}, f'a: "{A}" archived, "{B}" rebuilt'),
        ({"a": "x"}, {"a": None}, 'a: "x" archived, null rebuilt'),
    ],
)
def test_values(archived, rebuilt, told):
    assert unlike_values(archived, rebuilt, never) == told


def test_a_digest_may_follow_from_another_file():
    asked = []
    assert unlike_values([A], [B], lambda archived, rebuilt: asked.append((archived, rebuilt)) or True) is None
    assert asked == [(A, B)]
    assert unlike_values([A], ["short"], lambda archived, rebuilt: True) is not None


def test_rows():
    assert unlike_rows([{"a": "x", "b": "1.0"}], [{"a": "x", "b": "1.00001"}]) is None
    assert unlike_rows([{"a": "x"}], [{"a": "y"}]) == 'row 1.a: "x" archived, "y" rebuilt'
    assert unlike_rows([{"a": "x", "b": "1"}], [{"a": "x", "b": "2"}], only=("a",)) is None
    assert unlike_rows([{"a": "x"}], []) == "1 rows archived, 0 rebuilt"


@pytest.mark.parametrize("deeper", [False, True])
def test_of_verdicts_only_the_conclusion_counts(deeper):
    def document(outcome, error):
        verdict = {"case": "a", "expected": "pass", "outcome": outcome, "diagnosis": [], "observed": {"error": error}}
        return {"verdicts": [{"check": "c", "verdict": verdict} if deeper else verdict]}

    assert unlike_verdicts(document("pass", 1e-9), document("pass", 5e-9)) is None
    told = unlike_verdicts(document("pass", 1e-9), document("fail", 1e-9))
    assert told == 'verdicts[0].outcome: "pass" archived, "fail" rebuilt'


def scored(accuracy):
    return {"verdicts": [], "evaluation": {"test": {"accuracy": accuracy, "units": 1000}}}


def problems(archived, rebuilt, units=1000):
    """Of test scores."""
    rebuilt = {"test": rebuilt | {"units": units}, "samples": ["x"]}
    return {row["name"]: row["problem"] for row in compare_scores({"test": archived, "checkpoint": "y"}, rebuilt)}


@pytest.mark.parametrize(
    ("archived", "rebuilt", "holds"),
    [
        ({"loss": 0.0153}, {"loss": 0.0163}, True),  # as measured
        ({"loss": 0.5}, {"loss": 0.5 + SCORES * 0.9}, True),
        ({"loss": 0.5}, {"loss": 0.5 + SCORES * 1.1}, False),
        ({"loss": 0.5}, {"loss": 0.5 - SCORES * 1.1}, False),
        ({"perplexity": 5.0}, {"perplexity": 5 + 5 * SCORES * 0.9}, True),
        ({"perplexity": 5.0}, {"perplexity": 5 + 5 * SCORES * 1.1}, False),
        ({"accuracy": 0.99}, {"accuracy": 0.54}, False),
        ({"accuracy": 1.0}, {"accuracy": None}, False),
        ({"accuracy": None}, {"accuracy": None}, True),
        ({"accuracy": 1.0}, {}, False),
        ({}, {"accuracy": 1.0}, False),
    ],
)
def test_scores(archived, rebuilt, holds):
    [[name, problem]] = problems(archived, rebuilt).items()
    assert (problem is None) == holds
    if not holds:
        a, b = (json.dumps(side[name]) if name in side else "missing" for side in (archived, rebuilt))
        assert problem == f"was {a}, rebuilt {b}"


def test_of_few_units_one_may_be_judged_otherwise():
    assert problems({"accuracy": 3 / 8}, {"accuracy": 4 / 8}, units=8) == {"accuracy": None}
    assert problems({"accuracy": 3 / 8}, {"accuracy": 5 / 8}, units=8)["accuracy"] is not None
    assert problems({"loss": 3 / 8}, {"loss": 4 / 8}, units=8)["loss"] is not None


def test_what_was_not_scored_again():
    [row] = compare_scores({"test": {"loss": 1.0}}, {})
    assert row == {"split": "test", "name": "loss", "archived": 1.0, "rebuilt": None} | {
        "problem": "was 1.0, rebuilt missing"
    }


@pytest.mark.parametrize(
    ("name", "must"),
    [
        ("results/tiny/plan.json", True),
        ("results/tiny/initial.safetensors", True),
        ("results/controls/cases/a/initial.safetensors", True),
        ("results/tiny/reference/parts.safetensors", True),
        ("results/tiny/gradients/token_mean.float64.safetensors", True),
        ("results/tiny/checks/loss.json", True),
        ("results/tiny/summary.json", True),
        ("results/controls/controls.csv", True),
        ("results/tiny/evaluation.json", False),  # its scores are told by themselves
        ("results/tiny/runs/resume/step-0004/model.safetensors", False),
        ("results/tiny/runs/resume/history.jsonl", False),
        ("results/tiny/figures/tokens.svg", False),
    ],
)
def test_what_no_other_machine_changes(name, must):
    assert must_hold(name) == must


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("results/tiny/config.yaml", True),
        ("results/tiny/plan.json", True),
        ("results/tiny/corpus/rows.jsonl", True),
        ("results/controls/cases/a/corpus/lock.json", True),
        ("results/corpus.json", False),
        ("results/tiny/evaluation.json", False),
    ],
)
def test_what_holds_no_rounding(name, exact):
    assert is_exact(name) == exact


def written(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict) and name.endswith(".safetensors"):
        save_file(content, path)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "archived", "rebuilt", "told"),
    [
        ("results/tiny/initial.safetensors", {"a": array(1.0)}, {"a": array(1.001)}, None),
        ("results/tiny/initial.safetensors", {"a": array(1.0)}, {"a": array(2.0)}, "a: 1 of its norm"),
        ("results/tiny/initial.safetensors", {"a": array(1.0)}, "nonsense", "cannot be read"),
        ("results/tiny/plan.json", [1.0], [1.00001], "other bytes, where nothing is rounded"),
        ("results/tiny/evaluation.json", [1.0], [1.00001], None),
        ("results/tiny/evaluation.json", [1.0], "[NaN]", "cannot be read"),
        ("results/tiny/runs/resume/history.jsonl", '{"a": 1.0}\n{"a": 2.0}\n', '{"a": 1.0}\n{"a": 2.00001}\n', None),
        ("results/tiny/runs/resume/history.jsonl", '{"a": 1.0}\n', '{"a": 3.0}\n', "[0].a: 1.0 archived"),
        ("results/tiny/checks/loss.json", {"verdicts": []}, {"verdicts": [{}]}, "verdicts: a list of 0 archived"),
        ("results/tiny/checks/loss.json", {"verdicts": []}, [], "holds no verdicts"),
        ("results/tiny/summary.json", {"verdicts": []}, {"verdicts": [], "evaluation": {}}, None),
        ("results/tiny/summary.json", scored(0.99), scored(0.54), "evaluation.test.accuracy was 0.99, rebuilt 0.54"),
        ("results/tiny/summary.json", scored(0.99), scored(0.991), None),
        ("results/tiny/summary.csv", "case,outcome,criterion\na,pass,1\n", "case,outcome,criterion\na,pass,2\n", None),
        ("results/controls/controls.csv", "name,outcome\na,pass\n", "name,outcome\na,fail\n", "row 1.outcome"),
        ("results/tiny/figures/tokens.svg", "<svg/>", "<svg />", "other bytes"),
    ],
)
def test_files_by_their_kind(tmp_path, name, archived, rebuilt, told):
    found = unlike(name, written(tmp_path / "a", name, archived), written(tmp_path / "b", name, rebuilt), never)
    assert found is None if told is None else found.startswith(told)
