"""Files and functions that fit on a few screens."""

import ast

import pytest

from ddp_tokens.sources import SOURCE_ROOT
from ddp_tokens.steps import PROJECT_ROOT

FILES = sorted(SOURCE_ROOT.rglob("*.py"))
SCRIPTS = sorted((PROJECT_ROOT / "workflow_scripts").glob("*.py"))


def lines_in(path):
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_at_most_300_lines(path):
    assert lines_in(path) <= 300


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_function_has_at_most_50_lines(path):
    functions = [
        n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno + 1 > 50}
    assert long == {}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_adapter_has_at_most_30_lines(path):
    assert lines_in(path) <= 30


def test_there_is_something_to_measure():
    assert len(FILES) > 30
    assert len(SCRIPTS) > 8
