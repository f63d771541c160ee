"""An experiment from its YAML file, and what is said about a field that is wrong."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddp_tokens.config import Experiment, Section
from ddp_tokens.errors import ConfigError
from ddp_tokens.workload_names import problem_of
from ddp_tokens.yaml_files import read_yaml

# What pydantic says otherwise than whoever writes a YAML file: by the type of its error.
PLAINLY = {
    "tuple_type": "a list is needed",
    "too_short": "the list is too short",
    "model_type": "a section with fields of its own is needed",
}


def load_experiment(
    path: Path | str, overrides: Mapping[str, Any] | None = None, is_archived: bool = False
) -> Experiment:
    """Read an experiment's YAML file, lay `overrides` (nested like the file) over it, and validate the whole.

    Raises ConfigError, naming the file and the field; also where the user's own workload is not there, but not of an
    archived experiment, which is judged without it.
    """
    layers = _files(Path(path))
    if overrides:
        layers.append((f"{path}, as overridden on the command line", dict(overrides)))
    values: dict[str, Any] = Experiment(name="defaults").model_dump() | {"name": Path(path).stem}
    for source, layer in layers:
        values = _laid_over(values, layer, source)
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        fields = [str(part) for part in error.errors()[0]["loc"][:1]]
        raise ConfigError(f"{_source(path, layers, fields)}: {describe(error)}") from None
    problem = None if is_archived else problem_of(experiment.workload)
    if problem:
        raise ConfigError(f"{_source(path, layers, ['workload'])}: {problem}")
    return experiment


Layer = tuple[str, dict[str, Any]]  # where it comes from, and its content


def _files(path: Path) -> list[Layer]:
    """A YAML file, after the one that its field `base` names, and so on; lowest first."""
    layers: list[Layer] = []
    seen: list[Path] = []
    while path.resolve() not in seen:
        seen.append(path.resolve())
        layer = dict(read_yaml(path))
        base = layer.pop("base", None)
        if layers:
            layer.pop("name", None)  # of that file's own results
        layers.insert(0, (str(path), layer))
        if base is None:
            return layers
        if not isinstance(base, str):
            raise ConfigError(f"{path}: field 'base': the name of a YAML file beside this one is needed (got {base!r})")
        if not (path.parent / base).is_file():
            raise ConfigError(f"{path}: field 'base': {path.parent / base} does not exist")
        path = path.parent / base
    raise ConfigError(f"{layers[0][0]}: field 'base' leads back to {path}: an experiment cannot lie over itself")


def _laid_over(values: dict[str, Any], layer: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`epochs` of an upper layer takes the place of `steps` of a lower one, which would follow from it, and the other
    way round.
    """
    if layer.get("epochs") is not None and "steps" in layer:
        raise ConfigError(f"{source}: give epochs or steps, not both: steps follows from epochs")
    merged = merge(values, layer)
    if "steps" in layer:
        merged["epochs"] = None
    elif layer.get("epochs") is not None:
        merged.pop("steps", None)
    return merged


def _source(path: Path | str, layers: Sequence[Layer], field: Sequence[str]) -> str:
    """The uppermost layer that sets the field of the first problem; the experiment's file where it is no field's alone
    or left out.
    """
    return next((source for source, layer in reversed(layers) if field and field[0] in layer), str(path))


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
    if "kind" not in new and "path" in new and "path" in old:
        return False
    return _kind(new) not in (None, _kind(old))


def _kind(section: Mapping[str, Any]) -> Any:
    """As far as the section itself tells: own rows are told by their path where they do not say their kind."""
    return section.get("kind", "own" if "path" in section else None)


def describe(error: ValidationError) -> str:
    """The first problem in one sentence, and how many more there are."""
    first, *others = error.errors()
    names, kind = _without_kind(first["loc"])
    where, given = ".".join(names), first["input"]
    if first["type"] == "extra_forbidden":
        other = _of_another_kind(names, kind)
        text = other or f"unknown field '{where}'{suggestion(where)}; config/README.md lists every field"
    elif first["type"] == "missing" and isinstance(given, Sequence):
        text = f"field '{'.'.join(names[:-1])}': the list is too short (got {given!r})"
    elif first["type"] == "missing":
        text = f"field '{where}' is missing"
    elif first["type"] == "union_tag_invalid":
        text = f"field '{where}.kind': Input should be one of {first['ctx']['expected_tags']} (got {given['kind']!r})"
    else:
        message = PLAINLY.get(first["type"], first["msg"].removeprefix("Value error, "))
        message += f", such as {{kind: {given}}}" if str(given) in kinds_of(where) else ""
        plain = not isinstance(given, Mapping)
        text = (f"field '{where}': " if where else "") + message + (f" (got {given!r})" if plain else "")
    return text + (f" (and {len(others)} more)" if others else "")


def _without_kind(path: Sequence[str | int]) -> tuple[list[str], str]:
    """The names of a field, and the kind that pydantic puts between them where a section has several; "" elsewhere."""
    names = [str(part) for part in path]
    if len(names) > 1 and names[1] in kinds_of(names[0]):
        return [names[0], *names[2:]], names[1]
    return names, ""


def _of_another_kind(names: Sequence[str], kind: str) -> str:
    """What to say of a field that another kind of its section has; "" when none has."""
    section, field = names[0], names[-1]
    owners = [other for other, fields in kinds_of(section).items() if field in fields.model_fields]
    if not owners:
        return ""
    return (
        f"field '{section}.{field}' belongs to kind {' or '.join(owners)}, and here the kind is {kind}: "
        f"leave the field out, or set '{section}.kind' too"
    )


def kinds_of(name: str) -> dict[str, type[Section]]:
    """By kind, the sections that a field of the experiment may be; none where there is no choice."""
    field = Experiment.model_fields.get(name)
    sections = sections_of(field.annotation) if field else []
    return {section.model_fields["kind"].default: section for section in sections} if len(sections) > 1 else {}


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
