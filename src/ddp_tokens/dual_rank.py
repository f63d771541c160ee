"""One of the two ranks of `dual`: takes its device, sums known numbers with the other, and says what it is."""

import os
import socket
from pathlib import Path
from typing import Any

import torch

from ddp_tokens.distributed import (
    agreed_launch,
    claim_device,
    process_group,
    sum_over_ranks,
    texts_of_ranks,
)
from ddp_tokens.files import from_json, to_json, write_json
from ddp_tokens.hardware import cpu_name
from ddp_tokens.rank_failure import Watch, explaining, watched
from ddp_tokens.torch_facts import process_facts, uuid_of
from ddp_tokens.watching import end_with, starters_of_rank
from ddp_tokens.world import World, require_size, world_from_environment

# Sums and counts of the README's example: (12 + 108) / (12 + 36) = 120 / 48. A rank counted twice, or left out, shows.
NUMBERS = ((12.0, 12.0), (108.0, 36.0))


def take_part(program: str, device: str, backend: str, timeout_s: int, threads: int, result: Path) -> None:
    """Rank 0 writes to `result` what every rank says of itself, by rank.

    Raises RankFailedError, which names the other rank, where that one fails or does not come within `timeout_s`.
    """
    end_with(starters_of_rank(os.environ))
    world = claim_device(world_from_environment(os.environ, device, len(NUMBERS)), backend)
    require_size(world, len(NUMBERS), f"this is a trial with {len(NUMBERS)}")
    torch.set_num_threads(threads)
    launch = agreed_launch(os.environ, timeout_s)
    watch = Watch(result.parent, world, launch, os.environ["MASTER_ADDR"], program)
    with (
        watched(watch) as progress,
        process_group(backend, timeout_s, progress),
        explaining(watch, progress),
    ):
        sums = sum_over_ranks(NUMBERS[world.rank], world.device, "known numbers")
        own = described(world) | {"sums": sums}
        texts = texts_of_ranks(to_json(own), world.device, "descriptions")
    if world.is_main:
        write_json(result, [from_json(text) for text in texts])


def described(world: World) -> dict[str, Any]:
    index = int(world.device.partition(":")[2] or 0)
    on_gpu = world.device.startswith("cuda")
    return process_facts() | {
        "rank": world.rank,
        "host": socket.gethostname(),
        "device": world.device,
        "device_name": torch.cuda.get_device_name(index) if on_gpu else cpu_name(),
        "uuid": uuid_of(index) if on_gpu else None,
    }
