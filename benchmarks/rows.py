"""What do a million rows of one's own cost? Seconds and memory, as a Markdown table.

python -m benchmarks.rows [ROWS]

Rows of 20 to 60 tokens with a label each, written as JSONL and as Parquet; both through `prepare` (2 ranks, 100
windows), then read as the steps do that need rows: all that a step finds in the plan, and the rows of every window,
where each token counts the same and where each document does (a document has 10 rows). Each in a process of its own;
`with torch`: one that has imported it, as all steps with ranks have. Needs pyarrow (`make data`), about 1.5 GB of disk
below TMPDIR, and five minutes for a million rows.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tabulate import tabulate

from ddp_tokens.config import Experiment
from ddp_tokens.files import read_json
from ddp_tokens.layout import Layout

ROWS = 1_000_000
PIECE = 10_000  # rows that are made at a time
WORDS, CLASSES, OF_DOCUMENT = 30_000, 8, 10
FORMS = (".jsonl", ".parquet")
HEADERS = ["rows as", "MB", "prepare", "rows.jsonl MB", "read, unit token", "with torch", "read, unit document"]


def write(form: str, path: Path, number: int) -> None:
    rng = random.Random(1)
    pieces = ([_row(rng, n) for n in range(start, min(start + PIECE, number))] for start in range(0, number, PIECE))
    if form == ".jsonl":
        with open(path, "w") as stream:
            for rows in pieces:
                stream.writelines(json.dumps(row) + "\n" for row in rows)
        return
    import pyarrow
    from pyarrow import parquet

    numbers = pyarrow.list_(pyarrow.int64())
    of_text = [(name, pyarrow.string()) for name in ("id", "split", "document")]
    schema = pyarrow.schema([*of_text, ("tokens", numbers), ("labels", numbers)])
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in pieces:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema), row_group_size=number)


def _row(rng: random.Random, number: int) -> dict[str, object]:
    tokens = [rng.randrange(WORDS) for _ in range(rng.randint(20, 60))]
    labels = [token % CLASSES for token in tokens]
    split, document = "test" if number % 100 == 0 else "train", f"document-{number // OF_DOCUMENT}"
    return {"id": f"row-{number}", "split": split, "document": document, "tokens": tokens, "labels": labels}


def experiment_of(path: Path) -> Experiment:
    shape = {"world_size": 2, "batch": 16, "accumulation": 2, "steps": 100, "interrupt_at": 1}
    return Experiment.model_validate({"name": "x", "corpus": {"path": str(path)}, **shape})


def prepare_rows(path: Path, at: Layout) -> None:
    from ddp_tokens.prepare import prepare

    prepare(experiment_of(path), at.rows, at.lock, at.plan)


def read_rows(at: Layout, unit: str | None = None) -> None:
    """As reference does, and a rank of train."""
    from ddp_tokens.corpora.lock import read_corpus
    from ddp_tokens.plan import microbatches_of, read_plan, windows_to_compare

    rows, lock = read_corpus(at.rows, at.lock, unit)
    plan = read_plan(at.plan, lock["corpus_sha256"], {})
    windows_to_compare(plan, rows)
    found = sum(len(batch) for window in plan for rank in range(2) for batch in microbatches_of(window, rank, rows))
    assert found == 100 * 2 * 2 * 16, found


def read_rows_with_torch(at: Layout) -> None:
    import torch

    assert torch.zeros(1).sum() == 0
    read_rows(at)


def _work(work: str, path: Path) -> None:
    at = Layout(path.with_suffix("") / path.suffix[1:])
    run: dict[str, Callable[[], None]] = {
        "prepare": lambda: prepare_rows(path, at),
        "token": lambda: read_rows(at),
        "torch": lambda: read_rows_with_torch(at),
        "document": lambda: read_rows(at, "document"),
    }
    begun = time.process_time()  # of the CPU: what else the machine does counts less
    run[work]()
    print(json.dumps({"seconds": time.process_time() - begun, "mib": _peak_mib()}))


def _peak_mib() -> float:
    """Of this program: `ru_maxrss` is never less than what the process held that started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _in_own_process(work: str, path: Path) -> str:
    command = [sys.executable, "-m", "benchmarks.rows", work, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return f"{found['seconds']:.1f} s, {found['mib']:,.0f} MiB"


def main(arguments: Sequence[str]) -> None:
    if len(arguments) == 2:
        _work(arguments[0], Path(arguments[1]))
        return
    number, table, digests = int(arguments[0]) if arguments else ROWS, [], set()
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            path = Path(folder) / f"rows{form}"
            write(form, path, number)
            at, size = Layout(path.with_suffix("") / form[1:]), path.stat().st_size
            prepared, *read = (_in_own_process(work, path) for work in ("prepare", "token", "torch", "document"))
            table.append([form[1:], f"{size / 1e6:,.0f}", prepared, f"{at.rows.stat().st_size / 1e6:,.0f}", *read])
            digests.add(read_json(at.lock)["corpus_sha256"])
    print(f"{number:,} rows of 20 to 60 tokens; seconds are of the CPU, MiB the process's largest resident memory\n")
    print(tabulate(table, headers=HEADERS, tablefmt="pipe", disable_numparse=True))
    print(f"\nrows.jsonl of both: {'the same' if len(digests) == 1 else 'DIFFERENT'}")


if __name__ == "__main__":
    main(sys.argv[1:])
