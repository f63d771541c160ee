"""What is decided before two processes are started, and what is made of what they leave. No process is started."""

import signal
import sys
from pathlib import Path

import pytest

from ddp_tokens import dual
from ddp_tokens.checks.environment import SUMS
from ddp_tokens.dual import cannot_start, command, ending_by_signal, sentence_of, start
from ddp_tokens.dual_rank import NUMBERS
from tests.helpers import tiny_experiment

TORCH = {"gloo": True, "nccl": True, "gpus": 2}
ON_GPUS = tiny_experiment(device="cuda")
SHARED = tiny_experiment(device="cuda", backend="gloo")


def test_the_known_sums_tell_a_rank_that_is_left_out_or_counted_twice():
    first, second = NUMBERS
    assert tuple(sum(pair) for pair in zip(first, second, strict=True)) == SUMS
    others = [first, second, tuple(2 * number for number in first), tuple(2 * number for number in second)]
    assert SUMS not in others
    assert SUMS[0] / SUMS[1] == 2.5


@pytest.mark.parametrize(
    ("experiment", "torch", "sentence"),
    [
        (tiny_experiment(), {"error": "no torch"}, "two processes cannot be tried without torch: repair torch first"),
        (tiny_experiment(), {"gloo": False}, "two processes cannot meet over gloo, which this torch does not have"),
        (ON_GPUS, {"nccl": False, "gpus": 0}, "two processes cannot meet over nccl, which this torch does not have"),
        (ON_GPUS, {"gpus": 0}, "two processes on cuda need a GPU and torch sees none: set device to cpu"),
        (SHARED, {"gpus": 0}, "two processes on cuda need a GPU and torch sees none: set device to cpu"),
        (
            ON_GPUS,
            {"gpus": 1},
            "two processes over nccl need two GPUs, one each, and torch sees 1: set backend to gloo, to share it",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_started(experiment, torch, sentence, monkeypatch):
    monkeypatch.setattr(dual, "_run", lambda *_: pytest.fail("something was started"))
    assert cannot_start(experiment, TORCH | torch) == sentence
    assert start(experiment, TORCH | torch) == {
        "device": experiment.device,
        "backend": experiment.resolved_backend,
        "processes": [],
        "error": sentence,
        "said": [],
    }


@pytest.mark.parametrize(
    ("experiment", "gpus"), [(tiny_experiment(), 0), (ON_GPUS, 2), (SHARED, 1)], ids=["cpu", "nccl", "gloo"]
)
def test_what_can_work_is_tried(experiment, gpus):
    assert cannot_start(experiment, TORCH | {"gpus": gpus}) is None


@pytest.mark.parametrize(
    ("settings", "launcher"),
    [
        ({}, ["ddp_tokens.launch"]),
        ({"launcher": "spawn"}, ["ddp_tokens.spawn"]),
        ({"device": "cuda"}, ["torch.distributed.run", "--standalone", "--local-addr=localhost", "--nnodes=1"]),
        ({"world_size": 8, "nodes": 2}, ["ddp_tokens.launch"]),
    ],
)
def test_two_are_started_on_this_host_as_the_rules_start_ranks(settings, launcher):
    experiment = tiny_experiment(timeout_s=7, threads_per_rank=3, **settings)
    device, backend = experiment.device, experiment.resolved_backend
    assert command(experiment, Path("/folder")) == [
        *[sys.executable, "-m", *launcher, "--nproc-per-node=2", "-m", "ddp_tokens.dual"],
        *[f"--device={device}", f"--backend={backend}", "--timeout-s=7", "--threads=3", "/folder"],
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], None),
        (["something", "the last"], "the last"),
        (["W1201 torchrun says much", "ddp_tokens.dual: rank 1 was killed, which ends rank 0", "more"], "rank 1 was"),
        (["ddp_tokens.dual, rank 1: rank 0 does not go on"], "rank 0 does not go on"),
        (["ddp_tokens.launch: rank 1 was ended by signal 9"], "rank 1 was ended by signal 9"),
    ],
)
def test_the_sentence_that_names_a_rank_is_the_one_that_counts(lines, sentence):
    found = sentence_of(lines)
    assert found == sentence or found.startswith(sentence)


def test_a_signal_ends_the_block_and_is_the_exit_code():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, ending_by_signal():
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
