"""Norms and sketches of two gradients, one parameter after another."""

import math

import numpy
import pytest
import torch

from ddp_tokens.audit import comparing
from ddp_tokens.audit.comparing import Comparison, distance
from ddp_tokens.audit.replaying import Replayed
from ddp_tokens.audit.sketch import BUCKETS, sketch

ONE = torch.tensor([3.0, 4.0])


def comparison(gradients, native=None, parts=None, denominator=10):
    exact = {name: torch.tensor(values, dtype=torch.float64) for name, values in gradients.items()}
    single = {name: torch.tensor(values) for name, values in (native or {}).items()}
    return Comparison(Replayed({}, exact, parts or {}), single, denominator)


def test_distances_by_hand():
    """|(3, 4) - (0, 8) / 2| = 3; |(3, 4) * 2 - (0, 8)| = 6; |(3, 4) / 5| = 1."""
    assert distance(ONE, torch.tensor([0.0, 8.0]), 1 / 2) == 3.0
    assert distance(ONE, torch.tensor([0.0, 8.0]), 1.0, 2.0) == 6.0
    assert distance(ONE, None, 1 / 5) == pytest.approx(1.0)


@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, 21])
def test_distances_in_pieces(length, monkeypatch):
    monkeypatch.setattr(comparing, "CHUNK", 7)
    one, other = torch.randn(length), torch.randn(length, dtype=torch.float64)
    assert distance(one, other, 0.5) == pytest.approx(float((one.double() - other / 2).norm()), rel=1e-14)


def test_distances_of_tensors_that_are_not_contiguous():
    one = torch.arange(6.0).reshape(2, 3)
    assert distance(one.t(), one.t().contiguous(), 1.0) == 0.0
    assert distance(one.t(), one.reshape(3, 2), 1.0) > 0


def test_distances_are_added_in_float64():
    """float32 would lose each 1 beside 2**25."""
    one = torch.ones(1000)
    one[0] = 2.0**25
    assert distance(one, torch.zeros(1000), 1.0) ** 2 == pytest.approx(2.0**50 + 999, rel=1e-15)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_distances_of_what_is_not_finite(value):
    assert not math.isfinite(distance(torch.tensor([1.0, value]), torch.zeros(2), 1.0))


def test_one_parameter():
    """The objective's gradient is (30, 40) / 10; found is (3, 5), and one process in float32 has (3, 4.5)."""
    of = comparison({"a": [30.0, 40.0]}, {"a": [3.0, 4.5]})
    of.take("a", torch.tensor([3.0, 5.0]), 1.0)
    found = of.result({"a": numpy.ones(2)})
    assert found.reference == {"a": pytest.approx(5.0)}
    assert found.errors == {"a": pytest.approx(1.0)}
    assert found.rounding == {"a": pytest.approx(0.5)}
    assert found.epsilon == 2.0**-23
    assert found.observed["a"].tolist() == [3.0, 5.0]
    assert found.norm == pytest.approx(math.sqrt(34))
    assert found.missing == []
    assert found.left_over["a"].tolist() == [1, 1]


def test_clipping_is_undone():
    """Found is half of (3, 4.1); its norm is that of what is applied."""
    of = comparison({"a": [30.0, 40.0]})
    of.take("a", torch.tensor([1.5, 2.05], dtype=torch.float64), 0.5)
    found = of.result({})
    assert found.errors == {"a": pytest.approx(0.1)}
    assert found.observed["a"].tolist() == pytest.approx([3.0, 4.1])
    assert found.norm == pytest.approx(math.sqrt(1.5**2 + 2.05**2))
    assert found.rounding == {"a": 0.0}


def test_the_epsilon_of_the_widest_rounding():
    of = comparison({"a": [1.0], "b": [1.0]})
    of.take("a", torch.ones(1, dtype=torch.bfloat16), 1.0)
    of.take("b", torch.ones(1), 1.0)
    assert of.result({}).epsilon == 2.0**-7


def test_a_gradient_that_is_missing():
    of = comparison({"a": [30.0, 40.0], "zero": [0.0]})
    of.take("a", None, 1.0)
    of.take("zero", None, 1.0)
    found = of.result({})
    assert found.missing == ["a"]
    assert found.errors == {"a": pytest.approx(5.0), "zero": 0.0}
    assert found.observed["a"].tolist() == [0.0, 0.0]
    assert found.epsilon == 0.0


def test_a_gradient_that_the_objective_does_not_have():
    """As of weight decay that is added to gradients, where a parameter is not used."""
    of = comparison({})
    of.take("a", torch.tensor([0.0, 2.0]), 1.0)
    of.take("b", None, 1.0)
    found = of.result({})
    assert found.reference == {"a": 0.0, "b": 0.0}
    assert found.errors == {"a": 2.0, "b": 0.0}
    assert found.missing == []


def test_gradients_go_as_they_are_taken():
    of = comparison({"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [1.0]})
    of.take("a", torch.ones(1), 1.0)
    assert list(of._exact.gradients) == list(of._native) == ["b"]


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_parts_that_do_not_use_a_parameter_are_zero(value):
    """Also where the gradient found is not a number."""
    of = comparison({"a": [1.0], "b": [1.0, 1.0]}, parts={(0, 0): {"a": numpy.ones(1)}, (0, 1): {"b": numpy.ones(2)}})
    of.take("a", torch.tensor([value]), 1.0)
    of.take("b", torch.tensor([value, 1.0]), 1.0)
    parts = of.result({}).parts
    assert {place: {name: part[name].tolist() for name in part} for place, part in parts.items()} == {
        (0, 0): {"a": [1.0], "b": [0.0, 0.0]},
        (0, 1): {"a": [0.0], "b": [1.0, 1.0]},
    }


def test_long_gradients_are_kept_as_sketches():
    gradient = torch.randn(3 * BUCKETS)
    of = comparison({"a": (10 * gradient).tolist()})
    of.take("a", gradient, 0.5)
    found = of.result({})
    assert torch.equal(torch.from_numpy(found.observed["a"]), sketch(gradient) / 0.5)
    assert found.errors["a"] == pytest.approx(float(gradient.double().norm()), rel=1e-6)
