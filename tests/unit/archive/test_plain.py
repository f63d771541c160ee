"""Settings that somebody else wrote: read as they are, or refused before they take memory or time."""

import pytest
import yaml

from ddp_tokens.archive.plain import LARGEST, plain_yaml, read_plain_yaml
from ddp_tokens.errors import ConfigError

DOUBLED = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 26))])
MERGED = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 26))])


def refusal(data):
    with pytest.raises(ConfigError) as error:
        plain_yaml(data, "config.yaml")
    return str(error.value)


def test_settings_are_read():
    values = {"seed": 1, "optimizer": {"lr": 0.1, "betas": [0.9, 0.999]}, "name": "é * & x"}
    assert plain_yaml(yaml.safe_dump(values, allow_unicode=True).encode(), "config.yaml") == values
    assert plain_yaml(b"", "config.yaml") == {}
    assert len(plain_yaml(b"a: " + b"x" * (LARGEST - 3), "config.yaml")["a"]) == LARGEST - 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (DOUBLED.encode(), " refers to parts of itself: settings are written out"),
        (MERGED.encode(), " refers to parts of itself: settings are written out"),
        (b"a: " + b"x" * (LARGEST - 2), " is too large for settings"),
        (b"\xff", " is not UTF-8 text ('utf-8' codec can't decode"),
        (b"a: [", " is not valid YAML: while parsing"),
        (b"a: *", " is not valid YAML: while scanning an alias"),
        (b"a: 1\nb: 2\na: 3\n", " is not valid YAML: field 'a' is there twice"),
        (b"? [a, b]\n: 1\n", " is not valid YAML: while constructing a mapping"),
        (b"a: !!python/object/apply:os.getcwd []\n", " is not valid YAML: could not determine a constructor"),
        (b"- 1\n", " must hold fields and values, not list"),
        (b"a: 2026-99-99\n", " cannot be read as YAML (ValueError: month must be in 1..12"),
        (b"a: " + b"9" * 5000, " cannot be read as YAML (ValueError: Exceeds the limit"),
        (b"a: !!timestamp x\n", " cannot be read as YAML (AttributeError:"),
        (b"a: !!bool x\n", " cannot be read as YAML (KeyError:"),
        (b'a: !!int ""\n', " cannot be read as YAML (IndexError:"),
        (b"a: " + b"[" * 5000, " cannot be read as YAML (RecursionError:"),
    ],
)
def test_anything_else_is_one_sentence(data, problem):
    assert refusal(data).startswith(f"config.yaml{problem}")


def test_of_a_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"seed: 1\n")
    assert read_plain_yaml(path) == {"seed": 1}
    for data, problem in ((b"x" * (LARGEST + 1), "is too large for settings"), (b"- 1", "must hold fields and values")):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=rf"config\.yaml {problem}"):
            read_plain_yaml(path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read \(No such file or directory\)"):
        read_plain_yaml(path)
