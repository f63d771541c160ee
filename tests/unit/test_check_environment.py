"""The command: what it prints, writes and returns. Two processes: tests/distributed."""

import json
import re

import pytest

from ddp_tokens import check_environment as module
from ddp_tokens import cli, dual
from ddp_tokens.check_environment import conclusion, main
from ddp_tokens.checks.environment import check_environment
from ddp_tokens.checks.verdict import read_verdicts
from ddp_tokens.options import run_as_program
from tests.helpers import tiny_experiment
from tests.unit.checks.test_environment import CPU_BUILD, GPU, MACHINE, TORCH

PROGRAM = "ddp_tokens.cli check-environment"


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "tiny.yaml").touch()
    return ["--config", str(tmp_path / "tiny.yaml"), "--results", str(tmp_path / "results")]


@pytest.fixture
def written(tmp_path):
    return tmp_path / "results" / "tiny" / "environment.json"


@pytest.fixture
def torch_says(monkeypatch):
    def say(changes, tried=()):
        told = {"torch": TORCH | changes, "gpus": list(tried)}
        monkeypatch.setattr(module, "ask", lambda: told)

    return say


def test_this_machine_can_run_the_project_that_it_tests(arguments, written, capsys):
    assert cli.main(["check-environment", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.endswith(f"wrote {written}\n")
    assert max(map(len, said.out.splitlines())) <= max(100, len(f"wrote {written}"), 12 + len(str(written.parent)))
    check, verdicts = read_verdicts(written)
    assert check == "environment"
    assert {verdict.case for verdict in verdicts} >= {"system", "packages", "torch", "backend", "locks", "memory"}
    document = json.loads(written.read_text())
    assert (document["settings"]["device"], document["settings"]["world_size"]) == ("cpu", 2)
    machine = document["machine"]
    assert machine["weights_bytes"] is None
    assert machine["dual"] is None
    assert [path.name for path in written.parent.iterdir()] == ["environment.json"]


def test_weights_that_are_made_count(arguments, written):
    written.parent.mkdir(parents=True)
    (written.parent / "initial.safetensors").write_bytes(bytes(12345))
    assert main(PROGRAM, arguments) == 0
    assert json.loads(written.read_text())["machine"]["weights_bytes"] == 12345


def test_what_fails_is_one_sentence_and_the_file_is_whole(arguments, written, capsys, torch_says, monkeypatch):
    """A build without CUDA for an experiment on GPUs; two processes are not even started."""
    torch_says(CPU_BUILD)
    monkeypatch.setattr(dual, "_run", lambda *_: pytest.fail("something was started"))
    assert main(PROGRAM, [*arguments, "--dual", "--device", "cuda", "--backend", "gloo"]) == 1
    said = capsys.readouterr()
    assert said.err == (
        f"{PROGRAM}: gpus: torch 2.13.0 is a build without CUDA, so it sees no GPU: install a build with CUDA, or set "
        "device to cpu (1 more fail)\n"
    )
    _, verdicts = read_verdicts(written)
    assert [verdict.case for verdict in verdicts if not verdict.as_expected] == ["gpus", "ranks"]
    assert verdicts[-1].first_difference["found"].startswith("two processes on cuda need a GPU and torch sees none")


TOO_FEW = "two processes over nccl need two GPUs, one each, and torch sees 1: set backend to gloo, to share it"


def test_one_gpu_is_too_few_for_two_processes_over_nccl(arguments, written, capsys, torch_says, monkeypatch):
    torch_says({"gpus": 1}, [GPU])
    monkeypatch.setattr(dual, "_run", lambda *_: pytest.fail("something was started"))
    assert main(PROGRAM, [*arguments, "--dual", "--device", "cuda"]) == 1
    assert capsys.readouterr().err.endswith("(1 more fail)\n")
    ranks = read_verdicts(written)[1][-1]
    assert (ranks.case, ranks.outcome, ranks.first_difference) == ("ranks", "fail", {"found": TOO_FEW})


def test_an_experiment_of_one_rank_fails_for_no_want_of_a_second_gpu(arguments, written, capsys, torch_says):
    torch_says({"gpus": 1}, [GPU])
    assert main(PROGRAM, [*arguments, "--dual", "--device", "cuda", "--world-size", "1"]) == 0
    assert capsys.readouterr().err == ""
    ranks = read_verdicts(written)[1][-1]
    assert (ranks.case, ranks.outcome) == ("ranks", "inconclusive")
    assert ranks.first_difference["found"].startswith(TOO_FEW)


def test_a_results_folder_that_cannot_be_written_fails_as_a_case_and_nothing_is_left(arguments, tmp_path, capsys):
    (tmp_path / "results").write_text("a file")
    assert run_as_program(PROGRAM, lambda given: main(PROGRAM, given), arguments) == 1
    said = capsys.readouterr()
    assert re.search(r"^results +fail ", said.out, flags=re.MULTILINE)
    assert "wrote" not in said.out
    assert said.err.startswith(
        f"{PROGRAM}: results: {tmp_path / 'results' / 'tiny'} cannot be written to (Not a directory)"
    )
    assert said.err.count("\n") == 1
    assert (tmp_path / "results").read_text() == "a file"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--config", "gone.yaml"], "gone.yaml"),
        (["--bacth", "3"], "unknown flag --bacth"),
        (["--backend", "nccl"], "backend nccl needs device cuda"),
    ],
)
def test_bad_input_is_one_sentence(arguments, tmp_path, capsys, change, sentence):
    given = change if change[0] == "--config" else [*arguments, *change]
    given = [*given, "--results", str(tmp_path / "results")]
    assert run_as_program(PROGRAM, lambda given: main(PROGRAM, given), given) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_the_conclusion_for_a_log():
    def concluded(**changes):
        return conclusion(check_environment(tiny_experiment(), MACHINE | changes))

    assert concluded() == "nothing is seen to stand in the way, all 8 cases pass"
    assert concluded(disk_free_bytes=None) == "nothing is seen to stand in the way, 1 of 8 cases cannot be told"
    assert concluded(locks="none").startswith("locks: locks of files (flock) do not work")
