"""What a run delivers: runs/RUN/."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_tokens.checkpoint import TrainingState, save
from ddp_tokens.distributed import barrier
from ddp_tokens.files import write_json_lines
from ddp_tokens.layout import checkpoint_name
from ddp_tokens.metrics import epoch_summaries
from ddp_tokens.start import StartRecord, write_start
from ddp_tokens.strategies import gathered
from ddp_tokens.tensors import save_tensors, weights_of
from ddp_tokens.world import World


def write_run(
    directory: Path,
    state: TrainingState,
    start: StartRecord,
    identity: Mapping[str, Any],
    world: World,
    windows: int | None = None,
) -> None:
    """Every rank calls this. What an earlier run left in the directory goes once the new checkpoint is on disk.
    `windows`: of an epoch, None where there are none.
    """
    checkpoint = directory / checkpoint_name(state.step)
    save(checkpoint, state, identity, world)
    ranks = directory / "ranks"
    if world.is_main:
        for old in [path for path in directory.iterdir() if path != checkpoint]:
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink()  # also a temporary file of a process that was killed while it wrote
        write_json_lines(directory / "history.jsonl", state.history)
        if windows is not None:
            epochs = epoch_summaries(state.history, windows, state.lr)
            write_json_lines(directory / "epochs.jsonl", epochs)
    barrier()
    write_start(ranks, start, world.rank)
    write_json_lines(ranks / f"rank-{world.rank}.jsonl", state.rank_history)
    save_tensors(ranks / f"state-rank-{world.rank}.safetensors", gathered(weights_of(state.model)))
