"""config/README.md, from the definition of the settings."""

import argparse
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ddp_tokens.config import Experiment, Section
from ddp_tokens.config_reading import sections_of

INTRODUCTION = """\
<!-- Made by `make docs` from src/ddp_tokens/config.py; edit that instead. -->

# Every setting of an experiment

An experiment is one YAML file in this folder; its name is the name of its results folder, `results/NAME`. A field that
the file does not set has the default below. `config.yaml` says which experiments `snakemake` builds.

The same fields can be set

- for one call: `snakemake --cores 2 --config world_size=4` or `--config 'optimizer={lr: 0.01}'`;
- by hand, as flags: `--world-size 4 --optimizer.lr 0.01` (underscores work too).

A file may lie over another one beside it: `base: images.yaml` takes that file's fields, and this file's replace some of
them, section by section. Its results go to its own name. What an upper layer says of `steps` or `epochs` replaces both.

A changed setting reruns the steps that read it, and what depends on them. An unknown field, a wrong type or a value out
of range stops the rebuild before its first job.
"""


def config_docs() -> str:
    sections = [_section("experiment", Experiment)]
    for name, field in Experiment.model_fields.items():
        sections += [_section(_title(name, section), section) for section in sections_of(field.annotation)]
        for section in sections_of(field.annotation):
            for inner, nested in section.model_fields.items():
                sections += [_section(f"{name}.{inner}", deeper) for deeper in sections_of(nested.annotation)]
    return "\n".join([INTRODUCTION, *sections])


def _title(name: str, section: type[Section]) -> str:
    kind = section.model_fields.get("kind")
    return f"{name}, `kind: {kind.default}`" if kind else name


def _section(title: str, section: type[Section]) -> str:
    doc = " ".join((section.__doc__ or "").split())
    rows = [_row(name, field) for name, field in section.model_fields.items()]
    table = "\n".join(["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows])
    return f"## {title}\n\n" + (f"{doc}\n\n" if doc else "") + table + "\n"


def _row(name: str, field: FieldInfo) -> str:
    nested = bool(sections_of(field.annotation))
    default = "" if field.default is PydanticUndefined or nested else f"`{_plain(field.default)}`"
    cells = (f"`{name}`", "section" if nested else _type(field), default, field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _type(field: FieldInfo) -> str:
    return _describe(TypeAdapter(field.rebuild_annotation()).json_schema())


def _describe(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_describe(part) for part in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return ", ".join(_describe(part) for part in schema["prefixItems"]) + " (a list)"
        return f"list of {_describe(schema['items'])}"
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[key]:g}" for key, sign in bounds.items() if key in schema]
    return " ".join([schema["type"], *limits])


def main(program: str, arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog=program, description=__doc__).parse_args(arguments)
    print(config_docs(), end="")
    return 0
