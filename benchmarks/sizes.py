"""Where do checkpoints and plans start to hurt? Bytes, seconds and memory, as Markdown tables.

python -m benchmarks.sizes [checkpoints | plans]

Checkpoints: the common part by parameters, in one process, with AdamW; then the parts of ranks, which are copies of one
rank's, since they are as large: what every rank of a resume reads, and what rank 0 hashes for the manifest. Plans: a
corpus of short generated rows, one epoch over 4 ranks, through `prepare` and `read_plan`, each in a process of its own,
whose largest resident memory is told. Needs no other file, about 3 GB of disk below TMPDIR, and five minutes.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ddp_tokens.config import Experiment
from ddp_tokens.files import from_json, read_json, write_json
from ddp_tokens.layout import Layout

WIDTHS = (64, 384, 1024, 2048)  # of a transformer of two layers
RANKS = (1, 8, 64, 256, 1024)
UPDATES = (0, 100, 1000)  # in the histories
ROWS = (1_000, 10_000, 100_000, 1_000_000)


def checkpoints(folder: Path) -> None:
    from ddp_tokens.checkpoint import TrainingState

    print("Common part, one save and one load in one process:\n")
    rows = [_common(folder, width) for width in WIDTHS]
    print(_table(["parameters", "model MB", "optimizer MB", "save s", "load s"], rows))
    print("\nRank's part, by updates in the history:\n")
    states: list[tuple[Path, TrainingState]] = [_saved(folder, 64, updates) for updates in UPDATES]
    sizes = [_bytes(path.glob("rank-0.*")) for path, _ in states]
    commons = [(path / "common.json").stat().st_size for path, _ in states]
    print(_table(["updates", "rank part kB", "common.json kB"], _in_kb(UPDATES, sizes, commons)))
    print("\nParts of ranks, of 100 updates:\n")
    found = [_of_ranks(folder, states[1], ranks) for ranks in RANKS]
    print(_table(["ranks", "files", "MB", "manifest s", "a rank of a resume reads them in s"], found))


def _in_kb(updates: Sequence[int], *sizes: Sequence[int]) -> list[list[str]]:
    return [[f"{n:,}", *(f"{size / 1e3:,.1f}" for size in of)] for n, *of in zip(updates, *sizes, strict=True)]


def _state(width: int, updates: int) -> Any:
    import torch

    from ddp_tokens.checkpoint import TrainingState
    from ddp_tokens.config import Transformer
    from ddp_tokens.corpora.lock import Shape
    from ddp_tokens.workloads import load

    settings = Transformer(width=width, layers=2, heads=4, feed_forward=4 * width)
    model = load("causal_lm").build_model(settings, Shape(1000, 1000, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = TrainingState(model, optimizer)
    for step in range(1, updates + 1):
        state.history.append({"step": step, "units": 537, "loss_sum": 1234.567, "loss": 2.299})
        ids = [[f"train-{32 * step + 16 * half + row:05d}" for row in range(16)] for half in range(2)]
        state.rank_history.append({"step": step, "rows": ids, "units": 268, "loss_sum": 617.2835})
    return state


def _saved(folder: Path, width: int, updates: int) -> tuple[Path, Any]:
    from ddp_tokens.checkpoint import save
    from ddp_tokens.world import World

    state, path = _state(width, updates), folder / f"step-{updates:04d}"
    save(path, state, {"seed": 17}, World(0, 0, 1))
    return path, state


def _common(folder: Path, width: int) -> list[str]:
    from ddp_tokens.checkpoint import load, save
    from ddp_tokens.world import World

    state, path, world = _state(width, 1), folder / "step-0001", World(0, 0, 1)
    saving = _timed(lambda: save(path, state, {"seed": 17}, world))
    loading = _timed(lambda: load(path, state, {"seed": 17}, world))
    sizes = [f"{(path / f'{name}.safetensors').stat().st_size / 1e6:,.1f}" for name in ("model", "optimizer")]
    shutil.rmtree(path)
    parameters = sum(each.numel() for each in state.model.parameters())
    return [f"{parameters:,}", *sizes, f"{saving:.2f}", f"{loading:.2f}"]


def _of_ranks(folder: Path, saved: tuple[Path, Any], ranks: int) -> list[str]:
    from ddp_tokens.checkpoint_contents import read_contents
    from ddp_tokens.checkpoint_files import make_manifest, rank_state, rank_tensors
    from ddp_tokens.tensors import load_tensors

    path = folder / f"of-{ranks}"
    shutil.copytree(saved[0], path)
    document = from_json((path / rank_state(0)).read_text())
    for rank in range(1, ranks):
        shutil.copy(path / rank_tensors(0), path / rank_tensors(rank))
        write_json(path / rank_state(rank), document | {"rank": rank})
    manifest = _timed(lambda: write_json(path / "manifest.json", make_manifest(path, 100, ranks)))

    def read() -> None:
        read_contents(path)
        for rank in range(ranks):
            load_tensors(path / rank_tensors(rank))

    reading = _timed(read)
    found = [f"{ranks:,}", f"{2 * ranks:,}", f"{_bytes(path.glob('rank-*')) / 1e6:,.1f}"]
    shutil.rmtree(path)
    return [*found, f"{manifest:.2f}", f"{reading:.2f}"]


def plans(folder: Path) -> None:
    rows = []
    for number in ROWS:
        made, read = (_in_own_process(work, folder, number) for work in ("prepare", "read"))
        plan, corpus = (path.stat().st_size for path in (Layout(folder).plan, Layout(folder).rows))
        times = [f"{each['seconds']:.1f} s, {each['mb']:,.0f} MB" for each in (made, read)]
        rows.append([f"{number:,}", f"{corpus / 1e6:,.1f}", f"{plan / 1e6:,.1f}", f"{plan / number:.1f}", *times])
    print("One epoch, 4 ranks, batch 16, accumulation 2; seconds are of the CPU, MB of memory the process's largest:\n")
    print(_table(["rows", "corpus MB", "plan MB", "bytes per row id", "prepare", "read corpus and plan"], rows))


def _experiment(rows: int) -> Experiment:
    corpus = {"train": rows, "validation": 1, "test": 1, "min_length": 2, "short_max_length": 8, "max_length": 16}
    shape = {"world_size": 4, "batch": 16, "accumulation": 2, "sharding": "by_epoch", "drop_last": False}
    return Experiment.model_validate({"name": "x", "corpus": corpus, "epochs": 1, "interrupt_at": 1, **shape})


def _in_own_process(work: str, folder: Path, rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.sizes", work, str(folder), str(rows)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return found


def _work(work: str, folder: Path, rows: int) -> None:
    from ddp_tokens.corpora.lock import read_corpus
    from ddp_tokens.plan import read_plan
    from ddp_tokens.prepare import prepare

    at = Layout(folder)

    def read() -> None:
        kept = read_corpus(at.rows, at.lock), read_plan(at.plan, read_json(at.lock)["corpus_sha256"], {})
        assert kept

    run = {"prepare": lambda: prepare(_experiment(rows), at.rows, at.lock, at.plan), "read": read}[work]
    begun = time.process_time()  # of the CPU: what else the machine does counts less
    run()
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3  # Linux tells kB
    print(json.dumps({"seconds": seconds, "mb": peak}))


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _bytes(paths: Any) -> int:
    return sum(path.stat().st_size for path in paths)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)


def main(arguments: Sequence[str]) -> None:
    if len(arguments) == 3:
        _work(arguments[0], Path(arguments[1]), int(arguments[2]))
        return
    for part in (checkpoints, plans):
        if not arguments or part.__name__ in arguments:
            with tempfile.TemporaryDirectory() as folder:
                part(Path(folder))
            print()


if __name__ == "__main__":
    main(sys.argv[1:])
