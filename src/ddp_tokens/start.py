"""What a rank holds before its first update, for a check to compare with the checkpoint that it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ddp_tokens.checkpoint import TrainingState, common_document, content_of, rank_document, split_optimizer
from ddp_tokens.checkpoint_files import MODEL, OPTIMIZER
from ddp_tokens.files import read_json, sha256_of_bytes, write_json
from ddp_tokens.generators import read_generators
from ddp_tokens.start_files import held_digests, start_state, start_tensors
from ddp_tokens.tensors import load_tensors, save_tensors, weights_of
from ddp_tokens.world import World


@dataclass(frozen=True)
class StartRecord:
    """`document`: digests of what is held. `generators`: torch's, whole, so that a check can count draws."""

    document: Mapping[str, Any]
    generators: Mapping[str, torch.Tensor]


def take_start(state: TrainingState, when_seeded: Mapping[str, str], world: World) -> StartRecord:
    """Every rank calls this, right before the first update. Draws nothing. `when_seeded`: the generators' digests after
    seeding.
    """
    model = weights_of(state.model)
    optimizer, scalars = split_optimizer(state)
    generators = read_generators(world.device)
    held = held_digests(
        sha256_of_bytes(content_of(model, state)),
        sha256_of_bytes(content_of(optimizer, state)),
        common_document(state, scalars),
        rank_document(state, generators),
        generators.digests,
    )
    document = {
        "rank": world.rank,
        "step": state.step,
        "held": held,
        "generators_when_seeded": dict(when_seeded),
        "tensors": {MODEL: len(model), OPTIMIZER: len(optimizer)},
        "buffers": sorted({name for name, _ in state.model.named_buffers()} & set(model)),
        "records": {"history": len(state.history), "rank_history": len(state.rank_history)},
    }
    if state.sharded:
        document["sharded"] = True
    return StartRecord(document, generators.tensors)


def write_start(ranks: Path, start: StartRecord, rank: int) -> None:
    write_json(ranks / start_state(rank), start.document)
    save_tensors(ranks / start_tensors(rank), start.generators)


def read_start(ranks: Path, rank: int) -> StartRecord:
    return StartRecord(read_json(ranks / start_state(rank)), load_tensors(ranks / start_tensors(rank)))
