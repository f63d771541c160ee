"""What an experiment may call its kind of work, and which files that is, all without importing any of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ddp_tokens.sources import SOURCE_ROOT
from ddp_tokens.steps import PROJECT_ROOT
from ddp_tokens.workload_names import Place, files_of, is_own, module_file, own_files, place_of, problem_of

RAISES = "raise SystemExit('it was imported')\n"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("token_labels", Place("token_labels")),
        ("mine.py", Place("mine.py", path="mine.py")),
        ("path/to/mine.py:MyWork", Place("path/to/mine.py:MyWork", path="path/to/mine.py", attribute="MyWork")),
        ("/whole/my file.py:work", Place("/whole/my file.py:work", path="/whole/my file.py", attribute="work")),
        ("../mine.py:A_1", Place("../mine.py:A_1", path="../mine.py", attribute="A_1")),
        ("package.module:MyWork", Place("package.module:MyWork", module="package.module", attribute="MyWork")),
        ("mine:MyWork", Place("mine:MyWork", module="mine", attribute="MyWork")),
        ("package.module", Place("package.module", module="package.module")),
    ],
)
def test_a_name_says_where_the_work_is(name, place):
    assert place_of(name) == place
    assert is_own(name) == (name != "token_labels")


@pytest.mark.parametrize(
    "name", ["", "Token-Labels", "mine-1.txt:Work", "a:b:c", "mine.py:", "mine.py:1", ":Work", "a..b", "a/b:C"]
)
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"path/to/mine\.py:MyWork"):
        place_of(name)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path.resolve()


def test_a_relative_path_starts_at_the_current_folder(tmp_path, monkeypatch):
    path = write(tmp_path / "here" / "mine.py", RAISES)
    assert place_of("here/mine.py").file is None
    monkeypatch.chdir(tmp_path)
    assert place_of("here/mine.py").file == path
    assert place_of(f"{path}:Work").file == path


def test_a_module_is_found_without_importing_it_or_its_package(tmp_path, monkeypatch):
    write(tmp_path / "package" / "__init__.py", RAISES)
    path = write(tmp_path / "package" / "inner" / "module.py", RAISES)
    init = write(tmp_path / "package" / "inner" / "__init__.py", RAISES)
    monkeypatch.chdir(tmp_path)
    assert module_file("package.inner.module") == path
    assert module_file("package.inner") == init
    assert [module_file(name) for name in ("package.other", "nothing_at_all.x", "package.inner.module.x", "sys")] == [
        None
    ] * 4
    assert "package" not in sys.modules


def test_what_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert problem_of("mine.py:Work") == (
        f"workload 'mine.py:Work' has no file {tmp_path}/mine.py: write it, or mend the path"
    )
    assert problem_of("nothing.here:Work") == (
        "workload 'nothing.here:Work': Python finds no module nothing.here, here or where it is installed: "
        "mend the name"
    )
    write(tmp_path / "mine.py", RAISES)
    assert problem_of("mine.py:Work") is problem_of("mine:Work") is problem_of("token_labels") is None


def test_a_file_that_python_cannot_read_is_named_with_its_line(tmp_path):
    """Also one that it imports from beside it."""
    write(tmp_path / "helper.py", "\ndef f(:\n")
    path = write(tmp_path / "mine.py", "import helper\n")
    assert f"{tmp_path}/helper.py, line 2 is no valid Python (invalid syntax): mend it" in str(problem_of(str(path)))


def test_a_work_is_its_file_and_those_beside_it_that_it_imports(tmp_path):
    """Directly or not, in functions too; what it does not import is none of it."""
    entry = write(
        tmp_path / "mine.py",
        "import os, helper\nfrom parts.second import name\ndef f():\n    from parts import third\n",
    )
    write(tmp_path / "helper.py", "import deeper\n")
    for name in ("deeper", "parts/__init__", "parts/second", "parts/third", "parts/fourth", "other"):
        write(tmp_path / f"{name}.py")
    found = {str(path.relative_to(tmp_path)) for path in own_files(place_of(f"{entry}:Work"))}
    assert found == {
        "mine.py",
        "helper.py",
        "deeper.py",
        "parts/__init__.py",
        "parts/second.py",
        "parts/third.py",
    }


def test_of_a_module_of_a_package_its_imports_are_followed_relative_ones_too(tmp_path, monkeypatch):
    entry = write(
        tmp_path / "package" / "module.py", "from . import second\nfrom package.third import x\nimport aside\n"
    )
    for name in ("package/__init__", "package/second", "package/third", "aside"):
        write(tmp_path / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    found = {path.name for path in own_files(place_of("package.module:Work"))}
    assert found >= {entry.name, "second.py", "third.py", "aside.py"}


def test_of_an_installed_module_only_its_own_package_is_followed():
    """`pydantic.json_schema` imports half of what is installed."""
    found = own_files(place_of("pydantic.json_schema:JsonSchemaValue"))
    assert {path.parent.name for path in found} <= {
        "pydantic",
        "_internal",
        "deprecated",
        "v1",
        "plugin",
        "experimental",
    }
    assert len(found) > 3


def test_the_files_of_a_work_hold_what_it_uses_of_this_project(tmp_path):
    """Outside of the project they are named as seen from the user's file, wherever it lies."""
    found = []
    for folder in ("a", "b/c"):
        path = write(tmp_path / folder / "mine.py", "import helper\nfrom ddp_tokens import labelled\n")
        write(tmp_path / folder / "helper.py")
        found.append(files_of(f"{path}:Work"))
    assert list(found[0]) == list(found[1])
    assert {"mine.py", "helper.py", "src/ddp_tokens/labelled.py", "src/ddp_tokens/batches.py"} <= set(found[0])
    assert "src/ddp_tokens/trainer.py" not in found[0]
    assert found[0]["helper.py"] == tmp_path / "a" / "helper.py"


def test_below_the_project_they_are_named_from_there():
    assert "tests/helpers.py" in files_of(f"{PROJECT_ROOT}/tests/helpers.py")
    assert "src/ddp_tokens/workloads/images.py" in files_of("images")
    assert SOURCE_ROOT.parent == PROJECT_ROOT


def test_nothing_of_it_loads_torch():
    code = (
        "import sys; from ddp_tokens import workload_names as w; w.files_of('images'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
