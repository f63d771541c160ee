"""YAML that somebody else may have written, and that is to be nothing but settings, written out."""

from pathlib import Path
from typing import Any

import yaml

from ddp_tokens.errors import ConfigError
from ddp_tokens.yaml_files import yaml_of

LARGEST = 1 << 16  # bytes


def plain_yaml(data: bytes, name: str) -> dict[str, Any]:
    """What `data` holds. `name`: of the file, for errors. Raises ConfigError, before memory or time is taken."""
    if len(data) > LARGEST:
        raise _too_large(name)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text ({error})") from None
    try:
        # An alias stands for what is elsewhere in the file: with a few of them, a text of any length.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ConfigError(f"{name} refers to parts of itself: settings are written out")
        return yaml_of(text, name)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, ArithmeticError, RecursionError, AttributeError, TypeError, LookupError) as error:
        # What yaml raises of a date such as 2026-99-99, a number without digits, or lists within lists.
        raise ConfigError(f"{name} cannot be read as YAML ({type(error).__name__}: {error})") from None


def read_plain_yaml(path: Path) -> dict[str, Any]:
    """Raises ConfigError, also where there is no such file."""
    try:
        if path.stat().st_size > LARGEST:
            raise _too_large(str(path))
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    return plain_yaml(data, str(path))


def _too_large(name: str) -> ConfigError:
    return ConfigError(f"{name} is too large for settings")
