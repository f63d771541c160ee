"""What a forward was called with, as a plain tree and a list of tensors: to be copied, and sent to another rank.

Ranks run the same program, so that an object of a class is sent as the class's name and its fields, and made again from
the class that the receiving process has imported already. Nothing is imported and nothing is executed by a message.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from ddp_tokens.errors import AuditError

Tree = Any
PLAIN = (type(None), bool, int, float, str)
OF_TORCH = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def pack(value: Any, where: str) -> tuple[Tree, list[torch.Tensor]]:
    """A JSON value and the tensors that it numbers, detached and still where they are: not copied.

    Raises AuditError, naming `where` and what lies in it, for what cannot be taken apart.
    """
    tensors: list[torch.Tensor] = []
    return _packed(value, tensors, where), tensors


def unpack(tree: Tree, tensors: list[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value again, with every tensor as `change` makes it of the packed one."""
    return _unpacked(tree, tensors, change)


def to_bytes(tree: Tree, tensors: list[torch.Tensor]) -> bytes:
    """A head of JSON, its length before it, then the tensors' memory."""
    plain = [tensor.detach().cpu().contiguous() for tensor in tensors]
    head = {"tree": tree, "tensors": [[str(tensor.dtype), list(tensor.shape)] for tensor in plain]}
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *map(_memory, plain)])


def from_bytes(data: bytes) -> tuple[Tree, list[torch.Tensor]]:
    end = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:end])
    tensors, memory = [], bytearray(data[end:])
    position = 0
    for name, shape in head["tensors"]:
        empty = torch.empty(shape, dtype=OF_TORCH[name])
        size = empty.numel() * empty.element_size()
        if size:
            flat = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=position)
            empty.view(-1).view(torch.uint8).copy_(flat)
        tensors.append(empty)
        position += size
    return head["tree"], tensors


def _memory(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def _packed(value: Any, tensors: list[torch.Tensor], where: str) -> Tree:
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _number(value.detach(), "tensor", tensors, where)
    if isinstance(value, numpy.ndarray | numpy.generic):
        return _number(torch.as_tensor(numpy.asarray(value)), "array", tensors, where)
    if isinstance(value, torch.dtype | torch.device):
        return {"torch": str(value), "kind": type(value).__name__}
    if type(value) in (list, tuple, torch.Size):
        items = [_packed(item, tensors, f"{where}[{place}]") for place, item in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    if type(value) is dict:
        return {"dict": _items(value, tensors, where)}
    return _of_class(value, tensors, where)


def _of_class(value: Any, tensors: list[torch.Tensor], where: str) -> Tree:
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(value, tuple):
        return {"class": name, "tuple": [_packed(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
    is_mapping = isinstance(value, dict)
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    fields = {field: getattr(value, field) for field in names} | getattr(value, "__dict__", {})
    is_made_of_fields = bool(names) or is_mapping or (hasattr(value, "__dict__") and kind.__module__ != "builtins")
    if not is_made_of_fields or callable(value):
        raise AuditError(
            f"{where} is a {kind.__name__}, which cannot be taken to another rank: call the module with tensors, "
            "numbers, texts, and lists, tuples, dicts or objects of them, or leave it out"
        )
    tree = {"class": name, "fields": _items(fields, tensors, where)}
    return tree | ({"dict": _items(value, tensors, where)} if is_mapping else {})


def _items(value: Mapping[Any, Any], tensors: list[torch.Tensor], where: str) -> list[Tree]:
    return [[_packed(key, tensors, where), _packed(item, tensors, f"{where}.{key}")] for key, item in value.items()]


def _number(tensor: torch.Tensor, kind: str, tensors: list[torch.Tensor], where: str) -> Tree:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise AuditError(f"{where} is a tensor that is not dense, which an audit does not take: pass it as a dense one")
    tensors.append(tensor)
    return {kind: len(tensors) - 1}


def _unpacked(tree: Tree, tensors: list[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def again(part: Tree) -> Any:
        return _unpacked(part, tensors, change)

    def items(pairs: list[Tree]) -> dict[Any, Any]:
        return {again(key): again(item) for key, item in pairs}

    if isinstance(tree, list):
        return [again(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return change(tensors[tree["tensor"]])
    if "array" in tree:
        return change(tensors[tree["array"]]).detach().cpu().numpy()
    if "torch" in tree:
        return OF_TORCH[tree["torch"]] if tree["kind"] == "dtype" else torch.device(tree["torch"])
    if "class" not in tree:
        return tuple(map(again, tree["tuple"])) if "tuple" in tree else items(tree["dict"])
    kind = _class_named(tree["class"])
    if "tuple" in tree:
        return tuple.__new__(kind, map(again, tree["tuple"]))
    made: Any = kind.__new__(kind)  # type: ignore[call-overload]
    for name, item in items(tree["fields"]).items():
        object.__setattr__(made, name, item)
    for key, item in items(tree.get("dict", [])).items():
        made[key] = item
    return made


def _class_named(name: str) -> type:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise AuditError(
            f"class {path} of {module} is not known on rank 0, which recomputes what other ranks were given: define it "
            "at the top of a module that every rank imports"
        )
    return found
