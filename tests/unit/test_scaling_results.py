"""From files as `measure` leaves them to the files that are read: what it calls at its end, and by hand."""

import csv
import json
import logging

import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.verdict import read_verdicts
from ddp_tokens.cli import main
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import sha256
from ddp_tokens.layout import Layout
from ddp_tokens.options import run_as_program
from ddp_tokens.scaling_results import write_results
from ddp_tokens.steps import view
from tests.helpers import tiny_experiment, write_lines
from tests.unit.test_scaling import MACHINE, as_rows, timed, timed_runs
from tests.unit.test_scaling_further import parts, reached
from tests.unit.test_scaling_manifest import FIRST

MADE = (
    "replicas.json",
    "scaling.csv",
    "scaling.png",
    "scaling.svg",
    "scaling.pdf",
    "step_parts.png",
    "step_parts.svg",
    "step_parts.pdf",
    "manifest.json",
)


SCALING = {"processes": [1, 2, 4], "repeats": 3}


def experiment(world_size=2):
    return view(tiny_experiment(world_size=world_size, scaling=SCALING), "scaling")


def measured_at(folder, ranks=2, changed=0.0):
    """One, two and four processes, timed; rank r's only weight is 1 + r * changed."""
    at = Layout(folder / "tiny")
    at.measured_states.mkdir(parents=True)
    write_lines(at.timings, *as_rows([row for size, ms in {2: 5, 4: 8}.items() for row in timed(size, ms, ms)]))
    strong = timed_runs("strong", {1: 40.0, 2: 50.0, 4: 60.0}, {1: 400, 2: 400, 4: 400})
    weak = timed_runs("weak", {1: 20.0, 2: 30.0, 4: 50.0}, {1: 200, 2: 400, 4: 800})
    write_lines(at.runs_in_turn, *as_rows([*strong, *weak]))
    write_lines(at.machine, MACHINE)
    write_lines(
        at.step_parts, *as_rows([parts(processes, 3, rank) for processes in (1, 2) for rank in range(processes)])
    )
    write_lines(at.time_to_accuracy, *as_rows([reached(processes, 1, 2.0) for processes in (1, 2)]))
    for rank in range(ranks):
        save_file({"w": numpy.array([1.0 + rank * changed], numpy.float32)}, at.measured_state(rank))
    return at


def by_hand(at):
    config = at.root / "tiny.yaml"
    config.write_text("world_size: 2\nscaling: {processes: [1, 2, 4], repeats: 3}\n")
    arguments = ["scaling", "--config", str(config), "--results", str(at.root.parent)]
    return run_as_program("ddp_tokens.cli", main, arguments)


def test_all_is_written_and_the_same_bytes_each_time(tmp_path):
    once, again = measured_at(tmp_path / "once"), measured_at(tmp_path / "again")
    for at in (once, again):
        write_results(experiment(), at)
        assert {path.name for path in at.scaling.iterdir() if path.is_file()} >= set(MADE)
    for name in MADE[1:]:  # the verdict names its evidence by path
        assert sha256(once.scaling / name) == sha256(again.scaling / name)
    document = json.loads((once.scaling / "manifest.json").read_text())
    assert list(document)[: len(FIRST)] == FIRST
    assert (document["byte_equivalent"], document["replicas"]["outcome"]) == (True, "pass")
    assert list(document)[-3:] == ["step_parts", "time_to_accuracy", "further_meanings"]
    assert document["step_parts"]["2proc"]["percent"]["data"] == 4
    assert document["time_to_accuracy"]["1proc"]["seconds"] == 2
    assert len(list(csv.DictReader((once.scaling / "scaling.csv").open()))) == 6
    check, [verdict] = read_verdicts(once.scaling / "replicas.json")
    assert (check, verdict.case, verdict.outcome) == ("measured_replicas", "measured", "pass")
    assert len(verdict.evidence) == 2


def test_the_log_says_how_far_the_replicas_are_apart_and_what_was_learned(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ddp_tokens")
    at = measured_at(tmp_path)
    write_results(experiment(), at)
    lesson = json.loads((at.scaling / "manifest.json").read_text())["lesson_notes"]
    assert caplog.messages == ["replicas: pass, bit-equal, largest difference 0", lesson]


def test_by_hand_the_same_is_said_and_replicas_that_differ_end_with_1(tmp_path, caplog):
    assert by_hand(measured_at(tmp_path / "equal")) == 0
    apart = measured_at(tmp_path / "apart", changed=0.5)
    assert by_hand(apart) == 1
    assert "replicas: fail, not bit-equal, largest difference 0.5" in caplog.messages
    document = json.loads((apart.scaling / "manifest.json").read_text())
    assert (document["byte_equivalent"], document["replicas"]["outcome"]) == (False, "fail")
    assert document["lesson_notes"].endswith("The replicas do not agree: w off by 0.5, more than 1e-05.")
    [verdict] = read_verdicts(apart.scaling / "replicas.json")[1]
    assert (verdict.expected, verdict.outcome) == ("pass", "fail")


def test_close_replicas_pass_and_are_not_called_equal(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ddp_tokens")
    assert write_results(experiment(), measured_at(tmp_path, changed=2.0**-18)).outcome == "pass"
    assert caplog.messages[0] == "replicas: pass, not bit-equal, largest difference 3.81e-06"


def test_one_rank_has_nothing_to_be_compared_with(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ddp_tokens")
    assert write_results(experiment(world_size=1), measured_at(tmp_path, ranks=1)).as_expected
    assert caplog.messages[0] == "replicas: inconclusive, one rank alone, largest difference 0"


def test_where_a_rank_was_not_timed_nothing_is_written(tmp_path):
    at = measured_at(tmp_path, ranks=3)
    with pytest.raises(EvidenceError, match=r"runs.jsonl: the strong run of 3 processes, repeat 1, stands"):
        write_results(experiment(world_size=3), at)
    assert not {path.name for path in at.scaling.iterdir()} & set(MADE)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: lines[:-1], "weak run of 4 processes, repeat 3, stands there 0 times instead of 1"),
        (lambda lines: lines[1:], "strong run of 1 process, repeat 1, stands there 0 times instead of 1"),
        (lambda lines: [*lines, lines[3]], "strong run of 2 processes, repeat 1, stands there 2 times instead of 1"),
        (
            lambda lines: [line for line in lines if '"processes": 4' not in line],
            "strong run of 4 processes, repeat 1, stands there 0 times instead of 1",
        ),
        (
            lambda lines: [*lines, lines[0].replace('"repeat": 1', '"repeat": 4')],
            "strong run of 1 process, repeat 4, stands there 1 times instead of 0",
        ),
    ],
)
def test_runs_that_are_not_those_that_were_asked_for_are_named(tmp_path, change, problem):
    at = measured_at(tmp_path)
    lines = at.runs_in_turn.read_text().splitlines()
    changed = change(lines)
    assert changed != lines
    at.runs_in_turn.write_text("\n".join(changed) + "\n")
    with pytest.raises(EvidenceError, match=f"runs.jsonl: the {problem}, as scaling.processes and scaling.repeats ask"):
        write_results(experiment(), at)
    assert not {path.name for path in at.scaling.iterdir()} & set(MADE)
