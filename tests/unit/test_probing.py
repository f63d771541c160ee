"""A process that is asked about torch may tell all, half, or nothing."""

import sys

import pytest
import torch

from ddp_tokens.probing import ask, concluded

TORCH = {"kind": "torch", "version": "2.13.0", "gpus": 2}


def trying(index):
    return {"kind": "trying", "index": index}


def gpu(index):
    return {"kind": "gpu", "index": index, "error": None}


def test_torch_is_asked_in_a_process_of_its_own():
    found = ask()
    assert found["torch"]["version"] == torch.__version__
    assert found["torch"]["gpus"] == len(found["gpus"]) == torch.cuda.device_count()


def test_all_is_told():
    told = [TORCH, trying(0), gpu(0), trying(1), gpu(1)]
    assert concluded(told, None) == {
        "torch": {"version": "2.13.0", "gpus": 2},
        "gpus": [{"index": 0, "error": None}, {"index": 1, "error": None}],
    }


def test_the_gpu_that_was_tried_when_the_process_died_has_its_end_for_an_error():
    found = concluded([TORCH | {"gpus": 3}, trying(0), gpu(0), trying(1)], "no answer within 9 s")
    assert [each["error"] for each in found["gpus"]] == [
        None,
        "no answer within 9 s",
        "not tried, since the GPU before it ended the trial",
    ]
    assert [each["index"] for each in found["gpus"]] == [0, 1, 2]


def test_a_bad_end_after_the_last_gpu_is_no_gpus_fault():
    found = concluded([TORCH, trying(0), gpu(0), trying(1), gpu(1)], "the process that used it was ended by signal 6")
    assert [each["error"] for each in found["gpus"]] == [None, None]


@pytest.mark.parametrize(("problem", "error"), [("no torch", "no torch"), (None, "it said nothing")])
def test_without_a_word_about_torch_there_is_only_an_error(problem, error):
    assert concluded([], problem) == {"torch": {"error": error}, "gpus": []}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ImportError('libcudart.so: cannot open shared object file')", "ImportError: libcudart.so: cannot open"),
        ("import os; os.kill(os.getpid(), 9)", "the process that used it was ended by signal 9"),
        ("import time; time.sleep(600)", "no answer within 0.5 s"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("pass", "it said nothing"),
    ],
)
def test_a_process_that_does_not_answer(code, error):
    within_s = 0.5 if "sleep" in code else 60
    found = ask(within_s, [sys.executable, "-c", code])
    assert found["gpus"] == []
    assert found["torch"]["error"].startswith(error)


def test_what_was_told_before_the_end_counts():
    """As a driver does it that takes the process down with it while the first GPU is tried."""
    lines = ['{"kind": "torch", "gpus": 1}', '{"kind": "trying", "index": 0}']
    code = f"import os, sys; open(sys.argv[1], 'w').write({chr(10).join(lines)!r} + chr(10)); os.abort()"
    found = ask(60, [sys.executable, "-c", code])
    assert found == {
        "torch": {"gpus": 1},
        "gpus": [{"index": 0, "error": "the process that used it was ended by signal 6"}],
    }
