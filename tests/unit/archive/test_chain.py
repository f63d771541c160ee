"""Programs that a rebuild starts: what is told of them, what they get, and that they end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_tokens.archive.chain import (
    ENVIRONMENT_LOG,
    Chain,
    passed_on,
    run_logged,
    sentences_in,
    with_own_environment,
    with_this_python,
)
from ddp_tokens.errors import ArchiveError

GATE = f"""\
Job 0: tiny: is every outcome the expected one?
RuleException:
CalledProcessError in file "/x/rules/report.smk", line 168:
Command 'set -euo pipefail;  python' returned non-zero exit status 2.
Logfile results/tiny/logs/gate.log:
{"=" * 80}
tiny: loss/global_mean is fail, expected pass
{"=" * 80}
Logfile results/tiny/logs/resume.log:
{"=" * 80}
one

two
three
  four
{"=" * 80}
WorkflowError:
At least one job did not complete successfully.
"""
AT_START = """\
LaunchError in file "/x/Snakefile", line 49:
device cuda needs 2 GPUs (one per rank) and torch sees 0: lower world_size, or set device to cpu
  File "/x/Snakefile", line 49, in __onstart
"""


def test_what_snakemake_says_went_wrong():
    assert sentences_in(GATE) == ["tiny: loss/global_mean is fail, expected pass", "two; three; four"]
    assert sentences_in(AT_START) == [
        "device cuda needs 2 GPUs (one per rank) and torch sees 0: lower world_size, or set device to cpu"
    ]
    assert sentences_in("Segmentation fault\n\n") == ["Segmentation fault"]
    assert sentences_in("") == ["it said nothing"]


def test_lines_are_logged_and_told(tmp_path):
    told = []
    command = ["sh", "-c", "echo one; echo $VALUE >&2; pwd; exit 3"]
    environment = os.environ | {"VALUE": "two"}
    assert run_logged(command, tmp_path, environment, tmp_path / "log", told.append) == 3
    assert told == ["one", "two", str(tmp_path)]
    assert (tmp_path / "log").read_text().splitlines() == told


def program(tmp_path, name, script):
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_stages_are_told_but_not_those_of_settings(tmp_path):
    script = "echo 'Job 1: tiny: settings of prepare'; echo 'Job 2: tiny: corpus and plan'; echo \"$@\"; exit 1"
    told = []
    problems = Chain(tmp_path, program(tmp_path, "python", script), os.environ).build("tiny", True, 3, told.append)
    assert told == ["tiny: corpus and plan"]
    assert problems == [
        "-m snakemake --cores 3 --keep-going results/tiny/summary.json results/tiny/gate.txt "
        "results/controls/controls.json results/controls/gate.txt"
    ]


def test_without_controls_and_without_problems(tmp_path):
    chain = Chain(tmp_path, program(tmp_path, "python", 'test "$#" = 7'), os.environ)
    assert chain.build("tiny", False, 1, lambda stage: None) == []


NO_TEXT = r"printf 'it said \377\n'; exit 1"


def test_what_is_said_need_not_be_text(project, monkeypatch):
    chain = Chain(project, program(project, "python", NO_TEXT), os.environ)
    assert chain.build("tiny", False, 1, lambda stage: None) == ["it said \ufffd"]
    program(project, "make", NO_TEXT)
    monkeypatch.setenv("PATH", f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ArchiveError, match="could not be made: it said \ufffd"):
        with_own_environment(project)


def test_settings_that_cannot_be_read(tmp_path):
    chain = Chain(tmp_path, program(tmp_path, "python", "echo ConfigError: no >&2; exit 1"), os.environ)
    with pytest.raises(ArchiveError, match=r"config/tiny.yaml cannot be read: ConfigError: no"):
        chain.settings("tiny")


def test_this_python_takes_the_unpacked_source_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    chain = with_this_python(tmp_path)
    assert chain.environment["PYTHONPATH"] == f"{tmp_path}/src"
    assert chain.environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


FROM_OUTSIDE = (
    *("SNAKEMAKE_PROFILE", "SNAKEMAKE_OUTPUT_CACHE", "MAKEFLAGS", "MAKEFILES", "MAKELEVEL", "GNUMAKEFLAGS", "MFLAGS"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_HASHES", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONHOME"),
    *("PYTHONSTARTUP", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    *("LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "MPLBACKEND"),
)
NEEDED = (
    *("HOME", "PATH", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"),
    *("PIP_CERT", "PIP_CACHE_DIR", "HTTPS_PROXY", "https_proxy", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"),
)


def test_of_the_environment_only_what_cannot_change_the_chain_is_passed_on():
    assert list(passed_on(dict.fromkeys([*FROM_OUTSIDE, *NEEDED], "x"))) == list(NEEDED)


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_neither_chain_sees_what_would_change_it(project, monkeypatch, name):
    monkeypatch.setenv(name, "from outside")
    program(project, "make", "env")
    monkeypatch.setenv("PATH", f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for chain in (with_this_python(project), with_own_environment(project)):
        assert "from outside" not in chain.environment.values()
    assert "from outside" not in (project / ENVIRONMENT_LOG).read_text()


def test_what_is_kept_for_later_lies_in_the_folder(project, monkeypatch):
    """But for pip, whose cache is where it always is."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    program(project, "make", "env")
    monkeypatch.setenv("PATH", f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for chain in (with_this_python(project), with_own_environment(project)):
        assert chain.environment["XDG_CACHE_HOME"] == f"{project}/.cache"
        assert chain.environment["MPLCONFIGDIR"] == f"{project}/.cache/matplotlib"
    assert "XDG_CACHE_HOME=/elsewhere" in (project / ENVIRONMENT_LOG).read_text().splitlines()


@pytest.fixture
def project(tmp_path):
    (tmp_path / "Makefile").write_text("")
    return tmp_path


def test_an_environment_of_its_own(project, monkeypatch):
    program(project, "make", 'echo "$@"; env')
    monkeypatch.setenv("PATH", f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    chain = with_own_environment(project)
    said = (project / ENVIRONMENT_LOG).read_text()
    base = getattr(sys, "_base_executable", sys.executable)
    assert said.startswith(f".venv/installed PYTHON={base}\n")
    assert "PYTHONPATH" not in said
    assert chain.python == project / ".venv" / "bin" / "python"
    assert chain.environment["PATH"].startswith(f"{project / '.venv' / 'bin'}{os.pathsep}")
    assert "PYTHONPATH" not in chain.environment


def test_an_environment_that_cannot_be_made(project, monkeypatch):
    program(project, "make", "echo No matching distribution; exit 2")
    monkeypatch.setenv("PATH", f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ArchiveError, match=r"could not be made: No matching distribution .*--use-this-python"):
        with_own_environment(project)
    assert "No matching distribution" in (project / ENVIRONMENT_LOG).read_text()


def test_without_make(project, monkeypatch):
    monkeypatch.setenv("PATH", str(project / "bin"))
    with pytest.raises(ArchiveError, match="make is not installed: install it, or give --use-this-python"):
        with_own_environment(project)


def test_without_a_makefile(tmp_path):
    with pytest.raises(ArchiveError, match="has no Makefile to install with: give --use-this-python"):
        with_own_environment(tmp_path)


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from ddp_tokens.archive.chain import run_logged
number, handler = int(sys.argv[1]), sys.argv[2]
default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
signal.signal(number, default if handler == "heeded" else signal.SIG_IGN)  # whatever the tests were started with
def told(line):
    print(line, flush=True)
try:
    run_logged(["sh", "-c", "sleep 600 & echo $!; wait"], Path(), os.environ, Path("log"), told)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_with_who_started_it(tmp_path, number):
    """Also what it has started itself."""
    command = [sys.executable, "-c", INTERRUPTED, str(int(number)), "heeded"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        sleeping = int(process.stdout.readline())
        assert is_running(sleeping)
        process.send_signal(number)
        assert process.stdout.read() == "interrupted\n"
    until = time.monotonic() + 20
    while is_running(sleeping) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(sleeping)


def test_under_nohup_a_hangup_is_not_heeded(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(int(signal.SIGHUP)), "ignored"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        sleeping = int(process.stdout.readline())
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # where it is heeded, all ends at once
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "interrupted\n"
        assert process.wait() == 0
    assert not is_running(sleeping)


def is_running(pid):
    """Not one that is over and waits to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
