"""A workload of the user's own on two real ranks, under each launcher: it is loaded in every rank, its gradient is that
of the mean, a resume of it is exact and refused once it was edited, and what it raises is told as its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_tokens.launchers import module_and_options
from tests.distributed.test_gradients_command import parity
from tests.distributed.tiny import INTERRUPT_AT, STEPS, Tiny, prepared
from tests.helpers import PROJECT

RANKS = 2
TIME_LIMIT_S = 120
LAUNCHERS = ["fork", "spawn", "torchrun"]
# Its model and its batch are classes of its own file, and it imports another file from beside it.
WORK = """\
from dataclasses import dataclass

import torch
from beside import summed

from ddp_tokens import batches, labelled


@dataclass(frozen=True)
class Batch(batches.Batch):
    tokens: torch.Tensor
    labels: torch.Tensor
    units: float


class Model(torch.nn.Module):
    def __init__(self, width, vocabulary, classes):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.dropout(torch.tanh(self.embedding(tokens))))


class Work:
    UNIT = "token"

    def build_model(self, settings, shape):
        return Model(settings.settings["width"], shape.vocabulary, shape.classes)

    def collate(self, rows, device="cpu"):
        made = labelled.collate(rows)
        return Batch(made.tokens, made.labels, made.units).to(device)

    def forward(self, model, batch):
        return model(batch.tokens)

    def loss_sum(self, outputs, batch):
        return summed(outputs, batch.labels), batch.units

    def metrics(self, outputs, batch):
        return {"loss_sum": float(self.loss_sum(outputs, batch)[0]), "correct": 0, "units": batch.units}
"""
BESIDE = """\
from torch.nn.functional import cross_entropy


def summed(outputs, labels):
    return cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
"""
OWN = {"model": {"kind": "own", "settings": {"width": 8}}}


@pytest.fixture
def tiny(tmp_path) -> Tiny:
    """Prepared, references included, in a folder that holds the workload's files."""
    (tmp_path / "mine.py").write_text(WORK)
    (tmp_path / "beside.py").write_text(BESIDE)
    return prepared(tmp_path, RANKS, workload=f"{tmp_path}/mine.py:Work", **OWN)


def launched(tiny: Tiny, launcher: str, program: str, *more: str) -> subprocess.CompletedProcess[str]:
    """In the workload's folder, from which the relative path starts."""
    command = [*module_and_options(launcher, RANKS), "-m", program, *tiny.arguments("--launcher", launcher, *more)]
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tiny.folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT / "src")},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )


def trained(tiny: Tiny, *more: str, launcher: str = "fork") -> None:
    done = launched(tiny, launcher, "ddp_tokens.train", *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_its_gradient_is_that_of_the_mean_under_each_launcher(tiny, launcher):
    done = launched(tiny, launcher, "ddp_tokens.gradients", "--workload", "mine.py:Work")
    assert done.returncode == 0, done.stderr
    verdicts = parity(tiny)
    assert [verdict.case for verdict in verdicts if not verdict.as_expected] == []
    assert {verdict.outcome for verdict in verdicts} == {"pass", "fail"}


def test_a_resume_is_exact_and_workers_load_it_too(tiny):
    """Batches made ahead come from processes of their own, which hand over objects of the user's class."""
    trained(tiny, "--workers", "1")
    trained(tiny, "--continuous")
    trained(tiny, "--resume", str(tiny.interrupted), "--workers", "2")
    assert [verdict.case for verdict in tiny.resume_verdicts().values() if verdict.outcome != "pass"] == []
    assert (INTERRUPT_AT, STEPS) == (3, 6)


@pytest.mark.parametrize("edited", ["mine.py", "beside.py"])
def test_a_resume_of_another_code_is_refused(tiny, edited):
    trained(tiny)
    (tiny.folder / edited).write_text((tiny.folder / edited).read_text() + "# edited\n")
    done = launched(tiny, "fork", "ddp_tokens.train", "--resume", str(tiny.interrupted))
    assert done.returncode == 2
    assert "was written with code " in done.stderr
    assert "resume with the same settings, or start anew" in done.stderr


def spoil(tiny: Tiny, before: str, after: str) -> str:
    """After the reference, so that the ranks meet it."""
    path = Path(tiny.folder / "mine.py")
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    return str(path)


@pytest.mark.parametrize("launcher", ["fork", "torchrun"])
def test_what_a_function_raises_on_one_rank_is_told_as_its_own(tiny, launcher):
    """Rank 1 raises, and says where; rank 0, in its collective, names rank 1."""
    path = spoil(
        tiny,
        "    def loss_sum(self, outputs, batch):\n",
        "    def loss_sum(self, outputs, batch):\n        import os\n        [1][int(os.environ['RANK'])]\n",
    )
    done = launched(tiny, launcher, "ddp_tokens.train")
    assert done.returncode != 0
    line = WORK.splitlines().index("    def loss_sum(self, outputs, batch):") + 3
    assert "IndexError: list index out of range\nthis was rank 1 in update 1, microbatch 1 " in done.stderr.replace(
        "\r", ""
    )
    assert (
        f"ddp_tokens.train, rank 1: {path}, line {line}: Work.loss_sum raised IndexError, as the traceback above says: "
        f"mend workload {path}:Work there, then start again" in done.stderr
    )
    assert f'File "{path}", line {line}, in loss_sum' in done.stderr
    assert "rank 1 raised IndexError: list index out of range" in done.stderr, "what rank 0 says"


def test_what_a_worker_process_raises_is_told_as_its_own(tiny):
    path = spoil(tiny, "        made = labelled.collate(rows)\n", "        made = labelled.collate(rows[99])\n")
    done = launched(tiny, "fork", "ddp_tokens.train", "--workers", "1")
    assert done.returncode != 0
    line = WORK.splitlines().index("        made = labelled.collate(rows)") + 1
    assert f"{path}, line {line}: Work.collate raised IndexError, as the traceback above says: mend " in done.stderr
    assert "IndexError: list index out of range" in done.stderr
    assert "DataLoader" not in done.stderr


def test_a_file_that_raises_when_it_is_imported_ends_the_run(tiny):
    """The rank that is first says so; the launcher may end the other before it can."""
    path = spoil(tiny, "class Work:\n", "raise OSError('the disk is full')\n\nclass Work:\n")
    done = launched(tiny, "fork", "ddp_tokens.gradients")
    assert done.returncode == 2
    line = WORK.splitlines().index("class Work:") + 1
    assert f": {path}, line {line}: importing it raised OSError, as the traceback above says" in done.stderr
    assert "OSError: the disk is full" in done.stderr
