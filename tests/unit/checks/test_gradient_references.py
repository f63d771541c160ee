"""The references must be whole, of the plan, and add up, before anything is judged by them."""

import re

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from ddp_tokens.checks.gradient_references import REFERENCES, of_window, parts_of, read_references
from ddp_tokens.errors import EvidenceError
from ddp_tokens.window_facts import WindowFacts
from tests.unit.checks.synthetic import FACTS, evidence, rounded


@pytest.fixture
def paths(tmp_path):
    of = evidence()
    found = {name: tmp_path / f"{name}.safetensors" for name in REFERENCES}
    save_file({f"first/{name}": array for name, array in rounded(of.reference).items()}, found["native"])
    save_file({f"first/{name}": array for name, array in of.reference.items()}, found["float64"])
    parts = {f"first/{r}/{m}/{name}": array for (r, m), part in of.parts.items() for name, array in part.items()}
    save_file(parts, found["parts"])
    return found


def changed(path, change):
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)


def read(paths):
    return read_references(paths, {"first": FACTS})["first"]


def test_what_is_whole_is_read_by_window(paths):
    found = read(paths)
    assert set(found.of_dtype) == {"native", "float64"}
    assert found.of_dtype["native"]["head.bias"].dtype == numpy.float32
    assert set(found.parts) == {(rank, index) for rank in range(3) for index in range(2)}


BROKEN = {
    "native lacks a parameter": ("native", lambda a: a.pop("first/head.bias"), "native.safetensors does not hold the"),
    "native has another shape": (
        "native",
        lambda a: a.update({"first/head.bias": numpy.zeros(5, numpy.float32)}),
        "float64.safetensors for window 'first': run reference again",
    ),
    "a part lacks a parameter": (
        "parts",
        lambda a: a.pop("first/2/1/head.bias"),
        "parts.safetensors does not hold the",
    ),
    "a microbatch is missing": (
        "parts",
        lambda a: [a.pop(name) for name in list(a) if name.startswith("first/2/1/")],
        "parts.safetensors holds other ranks or microbatches for window 'first' than the plan: run reference again",
    ),
    "no part is there": (
        "parts",
        lambda a: [a.pop(name) for name in list(a)],
        "parts.safetensors holds other ranks or microbatches",
    ),
    "parts do not add up": (
        "parts",
        lambda a: [array.fill(0.0) for array in a.values()],
        "parts.safetensors does not add up to the reference of window 'first': run reference again",
    ),
    "one part is off by 1e-9": (
        "parts",
        lambda a: a.update({"first/0/0/head.bias": a["first/0/0/head.bias"] * (1 + 1e-9)}),
        "parts.safetensors does not add up to the reference",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_whole_is_named(paths, name):
    file, change, problem = BROKEN[name]
    changed(paths[file], change)
    with pytest.raises(EvidenceError, match=re.escape(problem)):
        read(paths)


def test_parts_that_need_not_add_up_are_read_and_still_must_be_whole(paths):
    changed(paths["parts"], lambda arrays: [array.fill(0.0) for array in arrays.values()])
    found = read_references(paths, {"first": FACTS}, adding_up=False)["first"]
    assert not found.parts[0, 0]["head.bias"].any()
    assert found.of_dtype["float64"]["head.bias"].any()
    changed(paths["parts"], lambda arrays: arrays.pop("first/2/1/head.bias"))
    with pytest.raises(EvidenceError, match=r"parts\.safetensors does not hold the parameters of"):
        read_references(paths, {"first": FACTS}, adding_up=False)


def test_a_reference_that_is_no_number_is_left_to_the_verdict(paths):
    for file in ("float64", "parts"):
        changed(paths[file], lambda arrays: [array.fill(numpy.nan) for array in arrays.values()])
    assert not numpy.isfinite(read(paths).of_dtype["float64"]["head.bias"]).any()


# One part of 4 units. The norm of the reference (1, 0) is 1, so `b` is judged as if its norm were 1/64.
ALONE = WindowFacts(units=((4,),), labels=((4,),), positions=((4,),), accumulation=1)
TOLERANCE = 1e-12 / 64


@pytest.mark.parametrize(("off", "adds_up"), [(TOLERANCE, True), (TOLERANCE * (1 + 2**-50), False)], ids=str)
def test_parts_add_up_to_one_part_in_1e12_of_the_norm(tmp_path, off, adds_up):
    """Divided by 4, 4 and 4 x off are 1 and off exactly."""
    paths = {name: tmp_path / f"{name}.safetensors" for name in REFERENCES}
    for dtype, kind in (("native", numpy.float32), ("float64", numpy.float64)):
        save_file({"first/a": numpy.ones(1, kind), "first/b": numpy.zeros(1, kind)}, paths[dtype])
    save_file({"first/0/0/a": numpy.array([4.0]), "first/0/0/b": numpy.array([4 * off])}, paths["parts"])
    if adds_up:
        assert list(read_references(paths, {"first": ALONE})) == ["first"]
    else:
        with pytest.raises(EvidenceError, match=r"parts\.safetensors does not add up to the reference"):
            read_references(paths, {"first": ALONE})


def test_names_of_a_window_lose_its_name_and_no_more():
    both = {"first/a": numpy.ones(1), "other/a": numpy.zeros(1), "first_of_all/a": numpy.zeros(1)}
    assert of_window(both, "first") == {"a": numpy.ones(1)}


def test_parts_are_told_by_rank_and_microbatch():
    """A parameter's own name may hold a slash."""
    names = {"first/0/1/a": numpy.ones(1), "first/0/1/b": numpy.ones(1), "first/10/0/a/b": numpy.zeros(1)}
    found = {key: list(arrays) for key, arrays in parts_of(names, "first").items()}
    assert found == {(0, 1): ["a", "b"], (10, 0): ["a/b"]}
