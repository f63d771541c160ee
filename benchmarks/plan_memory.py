"""How much memory and time does `prepare` need for a user's own rows, and what does a rank need to read them again?

python -m benchmarks.plan_memory [ROWS] [--id-characters 12] [--read]

Makes a file of ROWS rows (10,000,000 when not given) in a temporary folder, where rows, lock and plan go too, 0.3 GB
for a million rows. Each sharding plans as many updates as one epoch has: the plan names as many rows as there are.
With --read, a process of its own reads what was prepared, as each rank does before it trains.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddp_tokens.layout import Layout

SHARDINGS = ("by_length", "by_index", "by_epoch")
LONGEST, SYMBOLS = 16, 1000
WORLD_SIZE, ACCUMULATION, BATCH = 2, 2, 8
PREPARE = ("-m", "ddp_tokens.cli", "prepare")
READ = """
import sys
from ddp_tokens.inputs import read_prepared
from ddp_tokens.options import parse
read_prepared(*parse("benchmarks.plan_memory", sys.argv[1:], "continuous")[:2])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--id-characters", type=int, default=12)
    parser.add_argument("--read", action="store_true", help="read what was prepared, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own, config = Path(folder) / "own.jsonl", Path(folder) / "own.yaml"
        write_rows(own, asked.rows, asked.id_characters)
        print(f"{asked.rows:,} rows of 1 to {LONGEST} tokens, {size(own)}", flush=True)
        for sharding in SHARDINGS:
            write_config(config, own, asked.rows, sharding)
            where = ("--config", str(config), "--results", folder)
            show(f"{sharding}, prepare", asked.rows, *cost_of(*PREPARE, *where))
            at = Layout(Path(folder) / config.stem)
            print(f"  rows.jsonl {size(at.rows)}, plan.json {size(at.plan)}", flush=True)
            if asked.read:
                show(f"{sharding}, read by a rank", asked.rows, *cost_of("-c", READ, *where))


def write_rows(path: Path, rows: int, id_characters: int) -> None:
    """Training rows, of which about one token in eight does not count, and one row to test."""
    rng = random.Random(0)
    with open(path, "w") as stream:
        for index in range(rows):
            tokens = [rng.randrange(SYMBOLS) for _ in range(rng.randint(1, LONGEST))]
            labels = [-100 if token % 8 == 0 else token % 4 for token in tokens]
            stream.write(line("train", f"{index:0{id_characters}}", tokens, labels))
        stream.write(line("test", "test", [1], [1]))


def line(split: str, row_id: str, tokens: list[int], labels: list[int]) -> str:
    return f'{{"id": "{row_id}", "split": "{split}", "tokens": {tokens}, "labels": {labels}}}\n'


def write_config(path: Path, rows_path: Path, rows: int, sharding: str) -> None:
    steps = -(-rows // (WORLD_SIZE * ACCUMULATION * BATCH))
    path.write_text(
        f"corpus: {{path: {rows_path}}}\nsharding: {sharding}\nsteps: {steps}\ninterrupt_at: {steps // 2}\n"
        f"world_size: {WORLD_SIZE}\naccumulation: {ACCUMULATION}\nbatch: {BATCH}\n"
    )


def cost_of(*arguments: str) -> tuple[float, float, int]:
    """Of a Python process: seconds, seconds of CPU, and bytes of its largest resident set."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(arguments)} ended with {child.returncode}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def size(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes"


def show(what: str, rows: int, seconds: float, of_cpu: float, memory: int) -> None:
    per_million = of_cpu / rows * 1e6
    print(
        f"{what}: {seconds:.1f} s, {of_cpu:.1f} s of CPU ({per_million:.1f} s per million rows), "
        f"{memory / 2**20:,.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
