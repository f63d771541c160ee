"""The hooks before a commit are what `make check` runs, by the tools of this environment and without a network."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ddp_tokens.steps import PROJECT_ROOT

[REPO] = yaml.safe_load((PROJECT_ROOT / ".pre-commit-config.yaml").read_text())["repos"]
HOOKS = {hook["id"]: hook for hook in REPO["hooks"]}
MAKEFILE = (PROJECT_ROOT / "Makefile").read_text()
TOOLS = Path(sys.executable).parent


def recipe(target):
    """The commands of a target of the Makefile."""
    body = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)[1]
    return [line.strip() for line in body.splitlines()]


def variable(name):
    return re.search(rf"^{name} := (.*)$", MAKEFILE, flags=re.MULTILINE)[1].split()


def tracked():
    """What pre-commit would look at; a copy of the project without its repository has no such list."""
    found = subprocess.run(["git", "ls-files"], cwd=PROJECT_ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("not a git repository")
    return found.stdout.splitlines()


def test_nothing_is_fetched():
    assert REPO["repo"] == "local"
    assert {hook["language"] for hook in HOOKS.values()} == {"system", "fail"}
    assert not any("additional_dependencies" in hook for hook in HOOKS.values())


@pytest.mark.parametrize(
    "hook", [hook for hook in HOOKS.values() if hook["language"] == "system"], ids=lambda h: h["id"]
)
def test_the_command_of_each_hook_exists(hook):
    programs = re.findall(r"\.venv/bin/([\w-]+)", hook["entry"])
    assert all((TOOLS / program).exists() for program in programs)
    assert programs or shutil.which(shlex.split(hook["entry"])[0])


# What of a command in the Makefile says which tool it runs, and how -> hook.
TOOL_OF = {
    "ruff format --check": "ruff-format",
    "ruff check": "ruff-check",
    "snakefmt --check": "snakefmt",
    "snakemake --lint": "snakemake-lint",
    "mypy": "mypy",
    "config-docs": "config-docs",
    "bash -n": "shell-syntax",
}


def test_every_tool_of_make_check_has_its_hook():
    assert len(recipe("check")) == len(TOOL_OF)
    for command, (tool, hook) in zip(recipe("check"), TOOL_OF.items(), strict=True):
        assert tool in command
        assert tool in HOOKS[hook]["entry"].replace(".venv/bin/", "")


@pytest.mark.parametrize(
    ("hook", "variables", "suffixes"),
    [
        ("ruff-format", "PATHS", (".py",)),
        ("ruff-check", "PATHS", (".py",)),
        ("snakefmt", "SNAKEFILES", (".smk", "Snakefile")),
    ],
)
def test_a_hook_sees_the_files_that_make_check_sees(hook, variables, suffixes):
    below = tuple(name if (PROJECT_ROOT / name).is_file() else f"{name}/" for name in variable(variables))
    wanted = [path for path in tracked() if path.startswith(below) and path.endswith(suffixes)]
    assert [path for path in tracked() if re.search(HOOKS[hook]["files"], path)] == wanted
    assert len(wanted) > 5


def test_each_pattern_fits_files_that_there_are():
    files = tracked()
    fitting = {name: [path for path in files if re.search(hook.get("files", ""), path)] for name, hook in HOOKS.items()}
    assert fitting.pop("made-files") == [], "what is made is in git"
    assert all(fitting.values())
    assert {"config/README.md", "src/ddp_tokens/config.py", "src/ddp_tokens/setting_types.py"} <= set(
        fitting["config-docs"]
    )
    assert {path for path in files if path.endswith(".sh")} | {".ci/run"} == set(fitting["shell-syntax"])


def test_what_is_made_is_told_from_what_is_kept():
    made = re.compile(HOOKS["made-files"]["files"])
    assert made.search("results/minimum/plan.json")
    assert made.search(".snakemake/log/a.log")
    assert not made.search("results/README.md")
    assert not made.search("tests/unit/test_results.py")


def run(hook, folder, *files):
    return subprocess.run([*shlex.split(HOOKS[hook]["entry"]), *files], cwd=folder, capture_output=True, text=True)


def test_a_large_file_is_named(tmp_path):
    (tmp_path / "small").write_bytes(bytes(2**20))
    (tmp_path / "a large one").write_bytes(bytes(2**20 + 1))
    assert run("large-files", tmp_path, "small").returncode == 0
    done = run("large-files", tmp_path, "small", "a large one")
    assert (done.returncode, done.stderr) == (1, "a large one\n")


def test_a_broken_shell_script_is_named(tmp_path):
    (tmp_path / "good.sh").write_text("echo a\n")
    (tmp_path / "bad.sh").write_text("if [ a; then\n")
    assert run("shell-syntax", tmp_path, "good.sh").returncode == 0
    done = run("shell-syntax", tmp_path, "bad.sh", "good.sh")
    assert done.returncode != 0
    assert done.stderr.startswith("bad.sh: line")
