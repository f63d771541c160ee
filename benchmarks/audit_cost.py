"""What the audit of a window costs: its time against the window's, its memory against the float32 parameters.

    python -m benchmarks.audit_cost        two ranks on the CPU, a language model of 100 million parameters

Two launches make the same two windows, one after the other: one of them audits the second window. The memory is the
largest resident set of a rank, beyond the same rank's without an audit.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens import audit
from ddp_tokens.audit.report import Report
from ddp_tokens.config import Transformer
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import Row
from ddp_tokens.workloads import causal_lm

SETTINGS = Transformer(width=768, layers=12, heads=12, feed_forward=3072, dropout=0.0)
SHAPE = Shape(vocabulary=18_000, positions=256, classes=18_000)
RANKS, MICROBATCHES, ROWS, LENGTHS = 2, 2, 2, (64, 128)
MIB = 2**20


def main(arguments: Sequence[str]) -> int:
    if arguments:
        train(is_audited=arguments[0] == "audited", output=Path(arguments[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: launch(kind, Path(folder)) for kind in ("plain", "audited")}
    print("\n".join(told(found["plain"], found["audited"])))
    return 0


def launch(kind: str, folder: Path) -> list[dict[str, float]]:
    """By rank."""
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [sys.executable, *ranks, "-m", "benchmarks.audit_cost", kind, str(folder / kind)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [json.loads((folder / f"{kind}.{rank}").read_text()) for rank in range(RANKS)]


def train(is_audited: bool, output: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = causal_lm.build_model(SETTINGS, SHAPE)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    seconds = {"window": 0.0, "audit": 0.0}
    make_window(wrapped, optimizer)
    if is_audited:
        with audit(model, optimizer, loss_sum=causal_lm.loss_sum, windows=1) as report:
            make_window(wrapped, optimizer, report)
        [window] = report.windows
        assert window["verdict"]["outcome"] == "pass", report.text()
        seconds = window["seconds"]
    else:
        make_window(wrapped, optimizer)
    figures = {"parameters": parameters, "peak": peak_bytes(), **seconds}
    Path(f"{output}.{dist.get_rank()}").write_text(json.dumps(figures))
    del wrapped
    dist.destroy_process_group()


def make_window(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, report: Report | None = None) -> None:
    batches = [causal_lm.collate(rows_of(index)) for index in range(MICROBATCHES)]
    count = torch.tensor(sum(batch.units for batch in batches))
    dist.all_reduce(count)
    for index, batch in enumerate(report.watch(batches) if report else batches):
        with nullcontext() if index == MICROBATCHES - 1 else model.no_sync():
            loss, _ = causal_lm.loss_sum(model(batch.tokens), batch)
            (loss * RANKS / count).backward()
    optimizer.step()
    optimizer.zero_grad()


def rows_of(index: int) -> list[Row]:
    length = LENGTHS[dist.get_rank() % 2] + 16 * index
    generator = torch.Generator().manual_seed(dist.get_rank() * MICROBATCHES + index)
    drawn = torch.randint(0, SHAPE.vocabulary, (ROWS, length + 1), generator=generator).tolist()
    return [Row(f"{index}-{n}", "train", tuple(row[:-1]), tuple(row[1:])) for n, row in enumerate(drawn)]


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def told(plain: Sequence[dict[str, float]], audited: Sequence[dict[str, float]]) -> list[str]:
    bytes_of_parameters = 4 * plain[0]["parameters"]
    beyond = [after["peak"] - before["peak"] for before, after in zip(plain, audited, strict=True)]
    window, own = audited[0]["window"], audited[0]["audit"]
    return [
        f"{plain[0]['parameters']:,} parameters, {RANKS} ranks, {MICROBATCHES} microbatches each",
        f"window {window:.1f} s, its audit {own:.1f} s: {own / window:.2f} times",
        f"peak memory beyond the unaudited run, by rank: {', '.join(f'{b / MIB:,.0f} MiB' for b in beyond)}: "
        f"{max(beyond) / bytes_of_parameters:.2f} times the float32 parameters",
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
