"""YAML files with the user's mistakes in mind."""

from pathlib import Path
from typing import Any

import yaml

from ddp_tokens.errors import ConfigError


class _EachFieldOnce(yaml.SafeLoader):
    """YAML lets the last of two equal fields win, in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and first.setdefault(key.value, key) is not key:
                mark = first[key.value].start_mark
                raise yaml.MarkedYAMLError(problem=f"field '{key.value}' is there twice", problem_mark=mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """Raises ConfigError, naming the file, when it cannot be read or holds no mapping."""
    try:
        return yaml_of(Path(path).read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name an experiment's YAML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None


def yaml_of(text: str, name: str) -> dict[str, Any]:
    """`name`: of the file, for errors. Raises ConfigError when the text holds no mapping."""
    try:
        values = _EachFieldOnce(text).get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold fields and values, not {type(values).__name__}")
    return values
