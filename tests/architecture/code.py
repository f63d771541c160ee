"""The project's source as syntax trees."""

import ast
from functools import cache

from ddp_tokens.sources import SOURCE_ROOT


@cache
def trees():
    """Module name -> tree, for every module of the package."""
    return {_module(path): ast.parse(path.read_bytes()) for path in sorted(SOURCE_ROOT.rglob("*.py"))}


def modules():
    return list(trees())


def dotted(node):
    """`torch.load` for the expression torch.load; None for anything that does not start with a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return None


def _module(path):
    parts = path.relative_to(SOURCE_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
