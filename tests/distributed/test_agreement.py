"""Ranks that do not run the same refuse together, in the same words, before any of them writes a file of the run."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_tokens import agreement, gradients, measure
from ddp_tokens.files import digests, read_json, read_json_lines, sha256, write_json, write_json_lines
from ddp_tokens.spawn import HOST, variables
from ddp_tokens.steps import LOCK_FILE, PROJECT_ROOT
from ddp_tokens.tensors import load_tensors, save_tensors
from ddp_tokens.world import World
from tests.distributed.ranks import ends_of_ranks
from tests.distributed.test_train_command import without_warnings
from tests.distributed.tiny import Tiny, told_by, train_as_program

CONFIG = "use the same config on all hosts"
COMMAND = "start the same command on all hosts"
PROGRAMS = {"gradients": gradients, "measure": measure}


def outside_logs(root: Path) -> dict[str, str]:
    found = (path for path in root.rglob("*") if path.is_file() and "logs" not in path.relative_to(root).parts)
    return digests(found)


def start(world: World, arguments: Sequence[Sequence[str]], programs: Sequence[str], faults: Sequence[str]) -> Any:
    """Each rank has arguments, a program and a fault of its own."""
    if faults[world.rank]:
        FAULTS[faults[world.rank]]()
    program = PROGRAMS.get(programs[world.rank])
    if program is None:
        return train_as_program(world, arguments[world.rank])
    return told_by(program.PROGRAM, program.main, arguments[world.rank])


def be_on_host_b() -> None:
    socket.gethostname = lambda: "b"


def be_on_host_b_with_another_torch() -> None:
    be_on_host_b()
    torch.__version__ = "2.12.0"


def look_only_once() -> None:
    agreement.SEEN_WITHIN_S = 0.0


def look_only_once_on_host_b() -> None:
    be_on_host_b()
    look_only_once()


def have_a_full_disk() -> None:
    def touch(path: Path) -> None:
        raise OSError(28, os.strerror(28), str(path.parent))

    Path.touch = touch  # type: ignore[method-assign, assignment]


FAULTS = {
    function.__name__: function
    for function in (
        be_on_host_b,
        be_on_host_b_with_another_torch,
        look_only_once,
        look_only_once_on_host_b,
        have_a_full_disk,
    )
}


def sentences(
    tiny: Tiny,
    *arguments: Sequence[str],
    programs: Sequence[str] = ("train", "train"),
    faults: Sequence[str] = ("", ""),
) -> list[str]:
    """What each rank says, without its own name. All end with exit code 2 and leave nothing but logs.

    `arguments`: by rank, all that follows the program's name.
    """
    roots = {Path(given[given.index("--results") + 1]) / "tiny" for given in arguments}
    before = {root: outside_logs(root) for root in roots}
    found = ends_of_ranks(start, len(arguments), tiny.folder, arguments, programs, faults)
    assert [end["exit"] for end in found] == [0] * len(arguments), found
    assert [end["returned"]["code"] for end in found] == [2] * len(arguments), found
    assert {root: outside_logs(root) for root in roots} == before
    said = [without_warnings(end["returned"]["said"]) for end in found]
    assert all(text.startswith("ddp_tokens.") and text.count("\n") == 1 for text in said), said
    return [text.partition(": ")[2].strip() for text in said]


def sentence(tiny: Tiny, *arguments: Sequence[str], **more: Any) -> str:
    [said] = set(sentences(tiny, *arguments, **more))
    return said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--checkpoint-every", "1"], "rank 1 has checkpoint_every 1, rank 0 10"),
        (["--optimizer.momentum", "0.5"], "rank 1 has optimizer.momentum 0.5, rank 0 0.9"),
        # What follows from the setting is not told: that the plan, or the number of ranks, does not go with it.
        (["--batch", "1"], "rank 1 has batch 1, rank 0 2"),
        (["--world-size", "4"], "rank 1 has world_size 4, rank 0 2"),
    ],
)
def test_a_setting_that_differs_is_named(copy_of, flags, said):
    """Also one that is no part of a run's identity: ranks would wait for each other where only one saves."""
    tiny = copy_of(2)
    assert sentence(tiny, tiny.arguments(), tiny.arguments(*flags)) == f"{said}: {CONFIG}"


def test_another_run_is_named(copy_of):
    tiny = copy_of(2)
    said = sentence(tiny, tiny.arguments("--continuous"), tiny.arguments())
    assert said == f"rank 1 has run interrupt, rank 0 continuous: {COMMAND}"


def test_leave_that_only_one_rank_has_is_named(copy_of):
    tiny = copy_of(2)
    resume = tiny.arguments("--resume", str(tiny.interrupted))
    said = sentence(tiny, [*resume, "--allow-inexact"], resume)
    assert said == f"rank 1 has --allow-inexact false, rank 0 true: {COMMAND}"


def test_another_program_is_named(copy_of):
    tiny = copy_of(2)
    said = sentence(tiny, tiny.arguments(), tiny.arguments(), programs=("train", "gradients"))
    assert said == f"rank 1 runs ddp_tokens.gradients, rank 0 ddp_tokens.train: {COMMAND}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_of_several_ranks_refuses(copy_of, program):
    tiny = copy_of(2)
    given = tiny.arguments("--scaling.processes", "[1, 2]")
    said = sentence(tiny, given, [*given, "--timeout-s", "19"], programs=[program] * 2)
    assert said == f"rank 1 has timeout_s 19, rank 0 20: {CONFIG}"


def test_ranks_of_another_host_with_another_torch(copy_of):
    tiny = copy_of(3)
    fault = "be_on_host_b_with_another_torch"
    said = sentence(tiny, *[tiny.arguments()] * 3, programs=["train"] * 3, faults=["", fault, fault])
    assert said == (
        f"ranks 1, 2 on host b have torch 2.12.0, rank 0 on host {socket.gethostname()} {torch.__version__}: "
        "install the same versions (envs/requirements.lock) on all hosts"
    )


def of_another_host(tiny: Tiny) -> Tiny:
    """The same experiment in a results folder of its own."""
    there = Tiny(tiny.folder / "there", tiny.world_size)
    shutil.copytree(tiny.folder / "results", there.folder / "results")
    shutil.copy(tiny.config, there.config)
    return there


def change_a_label(tiny: Tiny) -> Path:
    """A whole corpus with its lock and plan, as prepare would have made it of other rows."""
    first, *rows = read_json_lines(tiny.at.rows)
    changed = [label if label < 0 else 1 - min(label, 1) for label in first["labels"]]
    assert changed != first["labels"]
    write_json_lines(tiny.at.rows, [first | {"labels": changed}, *rows])
    digest, plan = sha256(tiny.at.rows), read_json(tiny.at.plan)
    write_json(tiny.at.lock, read_json(tiny.at.lock) | {"corpus_sha256": digest})
    plan["made_for"]["corpus_sha256"] = digest
    write_json(tiny.at.plan, plan)
    return tiny.at.rows


def change_a_weight(tiny: Tiny) -> Path:
    tensors = load_tensors(tiny.at.initial)
    next(iter(tensors.values())).view(-1)[0] += 1
    save_tensors(tiny.at.initial, tensors)
    return tiny.at.initial


@pytest.mark.parametrize(("change", "made_by"), [(change_a_label, "prepare"), (change_a_weight, "run reference")])
def test_another_corpus_or_other_weights_are_named(copy_of, change, made_by):
    here = copy_of(2)
    there = of_another_host(here)
    path = change(there)
    assert sentence(here, here.arguments(), there.arguments(), faults=["", "be_on_host_b"]) == (
        f"rank 1 on host b has another {path} than rank 0 on host {socket.gethostname()}: "
        f"{made_by} once, on a folder that all hosts share"
    )


def test_what_one_rank_cannot_read_is_told_by_all(copy_of):
    here = copy_of(2)
    there = of_another_host(here)
    there.at.rows.unlink()
    said = f"rank 1: {there.at.rows} does not exist: run prepare first"
    assert sentence(here, here.arguments(), there.arguments()) == said


def test_another_checkpoint_to_resume_from_is_named(copy_of):
    tiny = copy_of(2)
    other = tiny.at.checkpoint("continuous", 6)
    assert sentence(tiny, *(tiny.arguments("--resume", str(path)) for path in (tiny.interrupted, other))) == (
        f"rank 1 has another {other} than rank 0: resume from one checkpoint, on a folder that all hosts share"
    )


def test_equal_files_in_a_folder_that_is_not_shared(copy_of):
    here = copy_of(2)
    there = of_another_host(here)
    faults = ["look_only_once", "look_only_once_on_host_b"]
    said = sentence(here, here.arguments("--continuous"), there.arguments("--continuous"), faults=faults)
    assert said == (
        f"rank 1 on host b does not see what rank 0 on host {socket.gethostname()} writes to {here.at.root}: "
        "put the results folder on a file system that all hosts share"
    )


def test_where_rank_0_cannot_write_all_say_so(copy_of):
    tiny = copy_of(2)
    first, second = sentences(tiny, *[tiny.arguments()] * 2, faults=["have_a_full_disk", ""])
    assert first.startswith(f"{tiny.at.root}: No space left on device: free some space")
    assert second == f"rank 0 could not write to {tiny.at.root}, and says why"


def checkout(folder: Path, **appended: str) -> Path:
    """A copy of the sources and the lock file, with comments at the end of some modules."""
    shutil.copytree(PROJECT_ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / "envs").mkdir()
    shutil.copy(LOCK_FILE, folder / "envs")
    for module, comment in appended.items():
        with open(folder / "src" / "ddp_tokens" / f"{module}.py", "a") as source:
            source.write(comment)
    return folder


def started_by_hand(tiny: Tiny, checkouts: Sequence[Path], *more: str) -> list[tuple[int, str]]:
    """A process for each rank, from a checkout of its own, as launchers of several hosts start them."""
    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    common = os.environ | variables(store.port, len(checkouts))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "ddp_tokens.train", *tiny.arguments(*more)],
            env=common | {"PYTHONPATH": str(path / "src"), "RANK": str(rank), "LOCAL_RANK": "0"},
            cwd=path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, path in enumerate(checkouts)
    ]
    try:
        said = [process.communicate(timeout=100)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def test_another_checkout_is_refused(copy_of, tmp_path):
    """That it lies somewhere else is no difference: of all its files, only the changed one is named."""
    tiny = copy_of(2)
    before = outside_logs(tiny.at.root)
    ends = started_by_hand(tiny, [PROJECT_ROOT, checkout(tmp_path / "there", window="# another\n")], "--continuous")
    said = "rank 1 runs another src/ddp_tokens/window.py than rank 0: use the same checkout on all hosts\n"
    assert [(code, without_warnings(text).partition(": ")[2]) for code, text in ends] == [(2, said)] * 2
    assert outside_logs(tiny.at.root) == before
