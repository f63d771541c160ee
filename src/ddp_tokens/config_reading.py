"""An experiment from its YAML file, and what is said about a field that is wrong."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_tokens.config import Experiment, Section
from ddp_tokens.errors import ConfigError
from ddp_tokens.yaml_files import read_yaml

KINDS = ("generated", "verb_grammar", "own", "sgd", "adamw")


def load_experiment(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment's YAML file, lay `overrides` (nested like the file) over it, and validate the whole.

    Raises ConfigError, naming the file and the field.
    """
    defaults = Experiment(name="defaults").model_dump() | {"name": Path(path).stem}
    values = merge(merge(defaults, read_yaml(path)), overrides or {})
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        overridden = overrides and error.errors()[0]["loc"][:1] and error.errors()[0]["loc"][0] in overrides
        source = f"{path}, as overridden on the command line" if overridden else f"{path}"
        raise ConfigError(f"{source}: {describe(error)}") from None


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides go over the base, mapping by mapping; a section of another kind replaces the base's whole."""
    merged = dict(base)
    for name, value in overrides.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _is_of_another_kind(old, value):
            value = merge(old, value)
        merged[name] = value
    return merged


def _is_of_another_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Own rows are told by their path where they do not say their kind."""
    becomes_own_rows = "path" in new and "path" not in old
    return becomes_own_rows or new.get("kind", old.get("kind")) != old.get("kind")


def describe(error: ValidationError) -> str:
    """The first problem in one sentence, and how many more there are."""
    first, *others = error.errors()
    names = [str(part) for part in first["loc"] if part not in KINDS]
    where = ".".join(names)
    if first["type"] == "extra_forbidden":
        text = f"unknown field '{where}'{suggestion(where)}; config/README.md lists every field"
    elif first["type"] == "missing":
        text = f"field '{where}' is missing"
    else:
        message = first["msg"].removeprefix("Value error, ")
        plain = not isinstance(first["input"], Mapping)
        text = (f"field '{where}': " if where else "") + message + (f" (got {first['input']!r})" if plain else "")
    return text + (f" (and {len(others)} more)" if others else "")


def suggestion(where: str) -> str:
    """ ", did you mean ...?" for a field that does not exist, by its last part; "" when nothing is close."""
    by_name = {path.rpartition(".")[2]: path for path in reversed(field_paths(Experiment)) if path != where}
    close = difflib.get_close_matches(where.rpartition(".")[2], by_name, n=1)
    return f", did you mean '{by_name[close[0]]}'?" if close else ""


def sections_of(annotation: Any) -> list[type[Section]]:
    """The sections that a field's annotation names: none for a plain value, two for the corpus."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Section) else []
    return [section for part in getattr(annotation, "__args__", ()) for section in sections_of(part)]


def field_paths(section: type[Section], above: str = "") -> list[str]:
    """Every field below a section, such as optimizer.lr."""
    paths: list[str] = []
    for name, field in section.model_fields.items():
        paths.append(above + name)
        for nested in sections_of(field.annotation):
            paths.extend(field_paths(nested, f"{above}{name}."))
    return paths
