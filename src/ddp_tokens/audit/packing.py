"""What a forward was called with, as a plain tree and a list of tensors: to be copied, and sent to another rank.

Ranks run the same program, so that an object of a class is sent as the class's name and its fields, and made again from
the class that the receiving process has imported already. A message imports nothing, and no function of a class is
called for it: no initializer, and no __new__ or __setitem__ of its own.
"""

import dataclasses
import inspect
import json
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from ddp_tokens.errors import AuditError

Tree = Any
Change = Callable[[torch.Tensor], torch.Tensor]
PLAIN = (type(None), bool, int, float, str)
OF_TORCH = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
# What makes an empty object of a class: the first of which it is one. Python refuses where there is more to a class.
MAKERS: tuple[type, ...] = (OrderedDict, defaultdict, dict, SimpleNamespace, object)


def pack(value: Any, where: str) -> tuple[Tree, list[torch.Tensor]]:
    """A JSON value and the tensors that it numbers, detached and still where they are: not copied. A tensor that is met
    again has the same number.

    Raises AuditError, naming `where` and what lies in it, for what cannot be taken apart.
    """
    packing = _Packing()
    try:
        return packing.packed(value, where), packing.tensors
    except RecursionError:
        raise AuditError(
            f"{where} holds itself, or is nested too deeply to be taken to another rank: pass less"
        ) from None


def unpack(tree: Tree, tensors: list[torch.Tensor], change: Change) -> Any:
    """The value again, with every tensor as `change` makes it of the packed one: one in two places is one again,
    and one that needed a gradient needs one.

    Raises AuditError where this process does not know a class.
    """
    changed: dict[int, torch.Tensor] = {}

    def tensor(number: int) -> torch.Tensor:
        if number not in changed:
            changed[number] = change(tensors[number])
        return changed[number]

    return _unpacked(tree, tensor)


def to_bytes(tree: Tree, tensors: list[torch.Tensor]) -> bytes:
    """A head of JSON, its length before it, then the tensors' memory."""
    plain = [tensor.detach().cpu().resolve_conj().resolve_neg().contiguous() for tensor in tensors]
    head = {"tree": tree, "tensors": [[str(tensor.dtype), list(tensor.shape)] for tensor in plain]}
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *map(_memory, plain)])


def from_bytes(data: bytes) -> tuple[Tree, list[torch.Tensor]]:
    end = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:end])
    tensors, memory = [], bytearray(data[end:])
    position = 0
    for name, shape in head["tensors"]:
        empty = torch.empty(shape, dtype=OF_TORCH[name], device="cpu")
        size = empty.numel() * empty.element_size()
        if size:
            flat = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=position)
            empty.view(-1).view(torch.uint8).copy_(flat)
        tensors.append(empty)
        position += size
    return head["tree"], tensors


def _memory(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


class _Packing:
    """`tensors`: those met so far. What they were made of stays referred to, so that no other object has its id."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._met: dict[tuple[Any, ...], tuple[Any, int]] = {}

    def packed(self, value: Any, where: str) -> Tree:
        if type(value) in PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            tree = {"tensor": self._number(value, lambda: _dense(value, where))}
            return tree | ({"needs_gradient": True} if value.requires_grad else {})
        if isinstance(value, numpy.ndarray | numpy.generic):
            kind = "array" if isinstance(value, numpy.ndarray) else "scalar"
            return {kind: self._number(value, lambda: _of_array(numpy.asarray(value), where))}
        if isinstance(value, torch.dtype | torch.device):
            return {"torch": str(value), "kind": type(value).__name__}
        if isinstance(value, Enum):
            return {"class": _name_of(type(value)), "member": value.name}
        if isinstance(value, list | tuple):
            return self._sequence(value, where)
        if type(value) is dict:
            return {"dict": self._items(value, where)}
        return self._of_class(value, where)

    def _sequence(self, value: list[Any] | tuple[Any, ...], where: str) -> Tree:
        kind = type(value)
        items = [self.packed(item, f"{where}[{place}]") for place, item in enumerate(value)]
        if kind is list:
            return items
        if kind in (tuple, torch.Size):
            return {"tuple" if kind is tuple else "size": items}
        if isinstance(value, list) or not _can_be_made(kind, tuple):
            raise _refused(kind, where)
        return {"class": _name_of(kind), "tuple": items}

    def _of_class(self, value: Any, where: str) -> Tree:
        kind = type(value)
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(value, "__dict__", {})
        is_made_of_fields = bool(names) or isinstance(value, dict) or hasattr(value, "__dict__")
        if not is_made_of_fields or callable(value) or not _can_be_made(kind, _maker(kind)):
            raise _refused(kind, where)
        tree = {"class": _name_of(kind), "fields": self._items(fields, where)}
        return tree | ({"dict": self._items(value, where)} if isinstance(value, dict) else {})

    def _items(self, value: Mapping[Any, Any], where: str) -> list[Tree]:
        return [[self.packed(key, where), self.packed(item, f"{where}.{key}")] for key, item in value.items()]

    def _number(self, value: Any, tensor: Callable[[], torch.Tensor]) -> int:
        key = _same_memory(value)
        if key not in self._met:
            self.tensors.append(tensor())
            self._met[key] = value, len(self.tensors) - 1
        return self._met[key][1]


def _same_memory(value: Any) -> tuple[Any, ...]:
    """The same for tensors that are the same in memory, though they may be several objects."""
    if not isinstance(value, torch.Tensor) or value.is_nested or value.layout != torch.strided or not value.numel():
        return (id(value),)
    return value.data_ptr(), value.dtype, value.shape, value.stride(), value.requires_grad


def _dense(tensor: torch.Tensor, where: str) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise AuditError(f"{where} is a tensor that is not dense, which an audit does not take: pass it as a dense one")
    return tensor.detach()


def _of_array(array: Any, where: str) -> torch.Tensor:
    """Shares the array's memory where torch can."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise AuditError(
            f"{where} is an array of {array.dtype}, which no tensor can hold: pass numbers, or a list of texts"
        ) from error


def _refused(kind: type, where: str) -> AuditError:
    return AuditError(
        f"{where} is a {kind.__name__}, which cannot be taken to another rank: call the module with tensors, "
        "numbers, texts, and lists, tuples, dicts or objects of them, or leave it out"
    )


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _maker(kind: type) -> Any:
    return next(maker for maker in MAKERS if issubclass(kind, maker))


def _can_be_made(kind: type, maker: Any) -> bool:
    try:
        maker.__new__(kind)
    except TypeError:
        return False
    return True


def _unpacked(tree: Tree, tensor: Callable[[int], torch.Tensor]) -> Any:
    def again(part: Tree) -> Any:
        return _unpacked(part, tensor)

    if isinstance(tree, list):
        return [again(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        return _object(tree, again)
    if "tensor" in tree:
        return tensor(tree["tensor"]).requires_grad_(tree.get("needs_gradient", False))
    [kind] = tree.keys() - {"kind"}
    content = tree[kind]
    if kind in ("array", "scalar"):
        array = tensor(content).detach().cpu().numpy()
        return array if kind == "array" else array[()]
    if kind == "torch":
        return OF_TORCH[content] if tree["kind"] == "dtype" else torch.device(content)
    if kind == "dict":
        return {again(key): again(item) for key, item in content}
    items = tuple(map(again, content))
    return torch.Size(items) if kind == "size" else items


def _object(tree: Tree, again: Callable[[Tree], Any]) -> Any:
    if "member" in tree:
        members: dict[str, Any] = getattr(_class_named(tree["class"], Enum), "_member_map_", {})
        return members[tree["member"]]
    if "tuple" in tree:
        return tuple.__new__(_class_named(tree["class"], tuple), map(again, tree["tuple"]))
    kind = _class_named(tree["class"], object)
    maker = _maker(kind)
    made = maker.__new__(kind)
    for name, item in tree["fields"]:
        object.__setattr__(made, again(name), again(item))
    for key, item in tree.get("dict", []):
        maker.__setitem__(made, again(key), again(item))
    return made


def _class_named(name: str, of: type) -> Any:
    """Looked up without calling a module's __getattr__, which may import."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    is_known = isinstance(found, type) and issubclass(found, of)
    if not is_known or not (of is Enum or _can_be_made(found, _maker(found) if of is object else of)):
        raise AuditError(
            f"class {path} of {module} is not known on rank 0, which recomputes what other ranks were given: define it "
            "at the top of a module that every rank imports"
        )
    return found
