"""An archive rebuilt by its own source, end to end, with the packages that are installed here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_tokens.archive.rebuild import main
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.report import settings_yaml
from tests.unit.archive.archives import write_archive
from tests.workflow.projects import COPIED, environment_of

NOT_ARCHIVED = ("settings", "logs", "benchmarks", "report", "gate.txt")
FORMULA = "src/ddp_tokens/normalization.py"


def archive_of(project, path, changes=None):
    """Of the tiny experiment, without controls. `changes`: source file -> the text in place of another in it."""
    results = project / "results" / "tiny"
    files = {
        f"results/tiny/{file.relative_to(results)}": file.read_bytes()
        for file in results.rglob("*")
        if file.is_file() and not any(p in NOT_ARCHIVED or p.startswith(".") for p in file.relative_to(results).parts)
    }
    files["results/tiny/config.yaml"] = settings_yaml(load_experiment(project / "config" / "tiny.yaml"))
    for name in COPIED:
        for file in [project / name, *(project / name).rglob("*")]:
            if file.is_file() and "__pycache__" not in file.parts:
                files[f"source/{file.relative_to(project)}"] = file.read_bytes()
    for name, (old, new) in (changes or {}).items():
        text = files[f"source/{name}"].decode()
        assert text.count(old) == 1
        files[f"source/{name}"] = text.replace(old, new)
    return write_archive(path, files)


def rebuilt(archive, folder, capsys):
    code = main("rebuild", [str(archive), "--into", str(folder), "--cores", "2", "--use-this-python"])
    return code, capsys.readouterr().out, json.loads((folder / "rebuild.json").read_text())


def test_the_archive_is_confirmed(built, tmp_path, capsys):
    code, out, document = rebuilt(archive_of(built, tmp_path / "tiny.zip"), tmp_path / "new", capsys)
    assert code == 0, out
    assert document["same_results"], out
    assert document["files"] == []
    assert len(document["verdicts"]) > 30
    counted = {of["folder"]: of["identical"] for of in document["folders"]}
    assert counted["config"] == counted["plan"] == counted["initial"] == 1
    assert counted["runs"] > 30
    assert "  tiny: gradients of all ranks, for each formula and dtype\n" in out
    assert "settings of" not in out
    assert "The rebuild confirms the archive; the results are the same, byte for byte" in out
