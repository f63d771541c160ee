"""What is packed, sent and unpacked is what was given, or is refused with a sentence; a message does nothing."""

import ast
import collections
import dataclasses
import enum
import json
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_tokens.audit import packing
from ddp_tokens.audit.packing import from_bytes, pack, to_bytes, unpack
from ddp_tokens.errors import AuditError


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass
class Open:
    value: Any
    name: str = "x"


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: Any
    name: str = "x"


@dataclasses.dataclass
class Incomplete:
    value: Any
    later: Any = dataclasses.field(init=False)


class Plain:
    def __init__(self, value):
        self.value = value


class Named(collections.OrderedDict):
    """Like the outputs of Hugging Face: a dict whose items are attributes as well."""

    def __init__(self, **items):
        super().__init__(items)
        vars(self).update(items)


class Mode(enum.Enum):
    ONE = "one"
    TWO = 2


class Callable_:
    value = 1

    def __call__(self):
        return self.value


def there_and_back(value):
    """Over the wire, in its own dtypes."""
    return unpack(*from_bytes(to_bytes(*pack(value, "it"))), lambda tensor: tensor)


def same(one, other):
    """Equal in kind and content, all the way down; no number is compared to itself by chance: NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, numpy.ndarray | numpy.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        keys = len(one) == len(other) and all(map(same, one, other))
        return keys and all(map(same, one.values(), other.values())) and attributes_same(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name, None), getattr(other, f.name, None)) for f in dataclasses.fields(one))
    return attributes_same(one, other) if hasattr(one, "__dict__") and not isinstance(one, enum.Enum) else one == other


def attributes_same(one, other):
    a, b = getattr(one, "__dict__", {}), getattr(other, "__dict__", {})
    return list(a) == list(b) and all(map(same, a.values(), b.values()))


def bits(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


DTYPES = sorted(
    {str(dtype): dtype for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)}
    | {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
    | {str(dtype): dtype for dtype in (torch.complex64, torch.complex128, torch.float8_e4m3fn)}
)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors(dtype, shape):
    values = torch.arange(-3, 9)[: torch.Size(shape).numel()].reshape(shape)
    tensor = values.to(getattr(torch, dtype.removeprefix("torch.")))
    assert same(there_and_back(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::5],
        torch.arange(12.0).reshape(3, 4)[:, 1],
        torch.tensor([1.0, 2.0]).expand(3, 2),
        torch.tensor(5).expand(0),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.tensor([float("nan"), float("inf"), -0.0]),
    ],
    ids=("transposed", "strided", "column", "expanded", "expanded to none", "channels last", "conj", "neg", "special"),
)
def test_tensors_that_are_not_contiguous(tensor):
    assert same(there_and_back(tensor), tensor.resolve_conj().resolve_neg())


def test_a_tensor_that_needs_a_gradient_is_a_leaf_that_needs_one():
    parameter = torch.nn.Parameter(torch.ones(3))
    [found] = there_and_back([parameter * 2])
    assert torch.equal(found, torch.full((3,), 2.0))
    assert found.requires_grad
    assert found.is_leaf
    assert not pack(parameter, "it")[1][0].requires_grad
    assert not there_and_back(torch.ones(3)).requires_grad


def test_packing_copies_nothing():
    tensor = torch.ones(3)
    [packed] = pack({"a": tensor}, "it")[1]
    assert packed.data_ptr() == tensor.data_ptr()


def test_what_comes_from_a_message_is_its_own_memory():
    value = torch.arange(3)
    one, other, again = there_and_back([value, value[1:], value[:]])
    one.add_(1)
    assert (value.tolist(), other.tolist()) == ([0, 1, 2], [1, 2])
    assert again is one, "what is the same in memory is sent once"


VALUES = {
    "nothing": None,
    "truth": [True, False, 1, 0],
    "numbers": [3, -(2**80), 1.5, float("inf"), float("nan"), -0.0, 1e-320],
    "texts": ["", "ä\n\"'\x00", "\ud800"],
    "torch": [torch.float32, torch.device("cpu"), torch.device("cuda:1"), torch.Size([2, 3])],
    "lists": [[], [[]], [1, [2, (3,)]]],
    "tuples": [(), ((),), (1, torch.ones(2))],
    "dicts": {"a": torch.ones(2), 3: "x", (1, "b"): None, None: {}, "tensor": 0, "class": "x", "tuple": []},
    "like a tree": {"dict": [["a", 1]]},
    "size": torch.ones(2, 3).shape,
    "ordered": collections.OrderedDict(b=torch.ones(2), a=1),
    "counter": collections.Counter("abca"),
    "user dict": collections.UserDict({"labels": torch.ones(2)}),
    "named tuple": Pair(torch.ones(2), Pair(1, "x")),
    "dataclass": Open(torch.ones(2)),
    "frozen": Frozen([torch.ones(2)]),
    "slots": Slotted({"a": torch.ones(2)}),
    "incomplete": Incomplete(1),
    "object": Plain({"a": Plain(torch.ones(2))}),
    "namespace": types.SimpleNamespace(a=torch.ones(2)),
    "named items": Named(logits=torch.ones(2), hidden=(torch.zeros(1),)),
    "enum": [Mode.ONE, Mode.TWO],
    "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
    "array of no dimension": numpy.array(3.5),
    "array the other way": numpy.arange(6.0)[::-1],
    "array across": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
    "scalars": [numpy.float64(2.5), numpy.float32(0.1), numpy.int64(-3), numpy.bool_(True)],
    "keys of numpy": {numpy.int64(3): "x"},
    "packed sequence": torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.zeros(1, 2)]),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values(value):
    assert same(there_and_back(value), value)


def test_same_can_say_no():
    assert not same([1], (1,))
    assert not same(1, True)
    assert not same(Slotted(1), Slotted(2))
    assert not same(Named(a=1), Named(a=2))
    assert not same(torch.ones(2), torch.ones(2).double())
    assert not same(numpy.float64(1), numpy.array(1.0))
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))


@pytest.mark.filterwarnings("error")
def test_an_array_that_cannot_be_written():
    array = numpy.arange(3)
    array.setflags(write=False)
    assert same(there_and_back(array), numpy.arange(3))


def test_one_tensor_in_two_places_is_kept_once():
    """Labels that are the inputs, as for language models, or a watched batch that the module is called with."""
    tensor = torch.arange(3)
    tree, tensors = pack({"input_ids": tensor, "labels": tensor, "again": [tensor]}, "it")
    assert len(tensors) == 1
    found = unpack(tree, tensors, torch.clone)
    assert torch.equal(found["input_ids"], tensor)
    assert found["input_ids"] is found["labels"] is found["again"][0] is not tensor


def test_tensors_that_are_made_when_they_are_asked_for_are_not_taken_for_each_other():
    """Python gives the id of what is gone to what comes next."""

    @dataclasses.dataclass
    class Making:
        one: Any = None
        other: Any = None

        def __getattribute__(self, name):
            return torch.full((2,), float(len(name))) if name in ("one", "other") else super().__getattribute__(name)

    value = Making()
    vars(value).clear()
    assert [tensor.tolist() for tensor in pack(value, "it")[1]] == [[3, 3], [5, 5]]


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.builds(
        lambda dtype, shape: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype),
        st.sampled_from([torch.bool, torch.int64, torch.uint8, torch.bfloat16, torch.float16, torch.float64]),
        st.lists(st.integers(0, 3), max_size=3),
    ),
    st.builds(lambda shape: numpy.zeros(shape, numpy.float32), st.lists(st.integers(0, 3), max_size=3)),
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.integers(), st.text()))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.builds(Pair, inner, inner),
        st.builds(Slotted, inner),
        st.builds(Plain, inner),
        st.dictionaries(keys, inner).map(collections.OrderedDict),
        st.dictionaries(keys, inner).map(collections.UserDict),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_whatever_is_nested_comes_back(value):
    assert same(there_and_back(value), value)


def test_change_makes_every_tensor_and_array():
    value = {"a": torch.ones(2), "b": [numpy.ones(2, numpy.float32)], "c": Pair(torch.ones(1), 3)}
    found = unpack(*pack(value, "it"), torch.Tensor.double)
    assert found["a"].dtype == torch.float64
    assert found["b"][0].dtype == numpy.float64
    assert found["c"].one.dtype == torch.float64
    assert found["c"].other == 3


REFUSED = {
    "function": (len, "builtin_function_or_method"),
    "lambda": (lambda: 0, "function"),
    "class": (Plain, "type"),
    "module": (torch.nn.Linear(1, 1), "Linear"),
    "called": (Callable_(), "Callable_"),
    "generator": ((x for x in ()), "generator"),
    "set": ({1}, "set"),
    "bytes": (b"x", "bytes"),
    "complex": (1j, "complex"),
    "range": (range(3), "range"),
    "file": (sys.__stdout__, "TextIOWrapper"),
    "object": (object(), "object"),
}


@pytest.mark.parametrize(("value", "kind"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_taken_apart_is_refused_by_its_place_and_kind(value, kind):
    with pytest.raises(AuditError) as refused:
        pack({"a": [1, (2, value)]}, "an input")
    assert str(refused.value) == (
        f"an input.a[1][1] is a {kind}, which cannot be taken to another rank: call the module with tensors, numbers, "
        "texts, and lists, tuples, dicts or objects of them, or leave it out"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=("sparse", "rows", "quantized", "nested"),
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # such tensors are a prototype
def test_a_tensor_that_is_not_dense_is_refused(make):
    with pytest.raises(AuditError) as refused:
        pack(Pair(0, make()), "the batch")
    assert str(refused.value) == (
        "the batch[1] is a tensor that is not dense, which an audit does not take: pass it as a dense one"
    )


@pytest.mark.parametrize(
    "array",
    [numpy.array(["a", "b"]), numpy.array([None]), numpy.array(["2020-01-01"], "datetime64[D]")],
    ids=("texts", "objects", "dates"),
)
def test_an_array_that_torch_does_not_know_is_refused(array):
    with pytest.raises(AuditError) as refused:
        pack([array], "the batch")
    assert str(refused.value) == (
        f"the batch[0] is an array of {array.dtype}, which no tensor can hold: pass numbers, or a list of texts"
    )


def test_what_holds_itself_is_refused():
    value = Plain(None)
    value.value = [value]
    with pytest.raises(AuditError) as refused:
        pack({"a": value}, "an input")
    assert str(refused.value) == "an input holds itself, or is nested too deeply to be taken to another rank: pass less"


def test_nothing_refused_stays_half_packed():
    with pytest.raises(AuditError):
        pack([torch.ones(2), object()], "it")
    assert len(pack([torch.ones(2)], "it")[1]) == 1


UNKNOWN = {
    "no such module": "nowhere:Thing",
    "no such class": f"{__name__}:Nothing",
    "a function": "os:system",
    "a local class": f"{__name__}:test.<locals>.Local",
    "no path": "os:",
    "nothing": ":",
}


@pytest.mark.parametrize("name", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("content", [{"fields": []}, {"tuple": []}, {"member": "ONE"}], ids=str)
def test_a_message_with_a_class_that_is_not_known_is_refused(name, content):
    with pytest.raises(AuditError) as refused:
        unpack({"class": name, **content}, [], torch.clone)
    module, _, path = name.partition(":")
    assert str(refused.value) == (
        f"class {path} of {module} is not known on rank 0, which recomputes what other ranks were given: define it at "
        "the top of a module that every rank imports"
    )


def test_a_class_of_a_function_is_refused_where_it_is_made_again():
    class Local:
        value = 1

        def __init__(self):
            self.value = 2

    with pytest.raises(AuditError, match=r"class .*<locals>.Local of .*test_packing is not known on rank 0"):
        there_and_back(Local())


def test_a_message_imports_nothing():
    """Not even by way of a module that imports what it is asked for, as lazy packages do."""
    lazy = types.ModuleType("lazy_of_a_test")
    asked = []
    lazy.__getattr__ = asked.append
    sys.modules[lazy.__name__] = lazy
    before = set(sys.modules)
    try:
        for name in ("lazy_of_a_test:Thing", "wave:Wave_read", "xml.dom.minidom:Document"):
            if name.split(":")[0] not in before:
                with pytest.raises(AuditError, match="is not known on rank 0"):
                    unpack({"class": name, "fields": []}, [], torch.clone)
        with pytest.raises(AuditError, match="is not known on rank 0"):
            unpack({"class": "lazy_of_a_test:Thing", "fields": []}, [], torch.clone)
        assert asked == []
        assert set(sys.modules) == before
    finally:
        del sys.modules[lazy.__name__]


def test_an_object_is_made_again_without_its_initializer():
    made = []

    class Made:
        def __init__(self):
            made.append("called")
            self.value = 1

    Made.__qualname__ = "Made_of_a_test"
    sys.modules[__name__].Made_of_a_test = Made
    try:
        assert there_and_back(Made()).value == 1
    finally:
        del sys.modules[__name__].Made_of_a_test
    assert made == ["called"]


def test_a_class_whose_objects_are_not_made_of_fields_is_not_made_by_a_message():
    """A type that was imported for something else has no business here: tuples are only made of tuples."""
    for name in ("builtins:int", f"{__name__}:Plain", "subprocess:Popen"):
        with pytest.raises(AuditError, match="is not known on rank 0"):
            unpack({"class": name, "tuple": []}, [], torch.clone)
    with pytest.raises(AuditError, match="is not known on rank 0"):
        unpack({"class": f"{__name__}:Plain", "member": "ONE"}, [], torch.clone)


def test_a_message_is_text_and_memory_only():
    message = to_bytes(*pack({"a": torch.tensor([1, 2], dtype=torch.int16), "b": Mode.ONE}, "it"))
    length = int.from_bytes(message[:8], "little")
    head = json.loads(message[8 : 8 + length])
    assert head["tensors"] == [["torch.int16", [2]]]
    assert message[8 + length :] == b"\x01\x00\x02\x00"
    code = Path(packing.__file__).read_text()
    imported = {
        alias.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import) for alias in node.names
    }
    assert not imported & {"pickle", "importlib", "marshal"}


def test_the_default_device_of_the_script_does_not_matter():
    value = {"a": torch.ones(2), "b": torch.ones(0), "c": numpy.ones(2), "d": numpy.float32(3)}
    with torch.device("meta"):
        found = there_and_back(value)
    assert same(found, value)
