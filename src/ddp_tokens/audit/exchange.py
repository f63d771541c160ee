"""What ranks tell each other about a window, over groups of their own, so that nothing of the run's is touched."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ddp_tokens.distributed import texts_of_ranks, within
from ddp_tokens.errors import AuditError

WHILE_COMPUTING = timedelta(days=1)  # rank 0 computes the window of all ranks, and the others wait


class Exchange:
    """Of one process where torch.distributed is not initialized. The groups are made at the first window."""

    def __init__(self, timeout_s: int) -> None:
        self._timeout_s = timeout_s
        self._meeting: dist.ProcessGroup | None = None
        self._waiting: dist.ProcessGroup | None = None

    def close(self) -> None:
        """Its groups are gone, on this rank; no other rank is waited for. Another window would make new ones."""
        for group in (self._waiting, self._meeting):
            if group is not None and group in dist.distributed_c10d._world.pg_map:  # else the run has left all
                dist.destroy_process_group(group)
        self._meeting = self._waiting = None

    @property
    def size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    def collectives(self) -> int:
        """How many all groups of the run have entered on this rank."""
        return 0 if self.size == 1 else sum(map(_entered, self._groups_of_run()))

    def _groups_of_run(self) -> list[dist.ProcessGroup]:
        own = (self._meeting, self._waiting)
        return [group for group in list(dist.distributed_c10d._world.pg_map) if group not in own]

    def of_all(self, value: Any, window: int) -> list[Any]:
        """By rank, what each gives. Raises AuditError where a rank does not come to its update in time."""
        if self.size == 1:
            _require_alone(os.environ)
            return [value]
        try:
            if self._meeting is None:
                self._meeting = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout_s))
                self._waiting = dist.new_group(backend="gloo", timeout=WHILE_COMPUTING)
            with within(self._meeting):
                texts = texts_of_ranks(json.dumps(value), "cpu", "windows")
        except RuntimeError as error:
            raise AuditError(
                f"rank {self.rank} is at its update of window {window} and another rank did not come to it within "
                f"{self._timeout_s} s: let all ranks make the same number of updates ({_first_line(error)})"
            ) from error
        return [json.loads(text) for text in texts]

    def to_first(self, data: bytes, sizes: list[int]) -> list[bytes]:
        """On rank 0, by rank, what each gives; elsewhere nothing. `sizes`: in bytes, by rank."""
        if self.rank == 0:
            received = [torch.empty(max(1, size), dtype=torch.uint8) for size in sizes[1:]]
            for other, buffer in enumerate(received, start=1):
                dist.recv(buffer, group=self._waiting, group_src=other)
            return [data, *(buffer.numpy().tobytes()[:size] for buffer, size in zip(received, sizes[1:], strict=True))]
        dist.send(torch.frombuffer(bytearray(data or b" "), dtype=torch.uint8), group=self._waiting, group_dst=0)
        return []

    def from_first(self, value: Any) -> Any:
        """What rank 0 gives, on every rank."""
        if self.size == 1:
            return value
        data = bytearray(json.dumps(value).encode()) if self.rank == 0 else bytearray()
        length = torch.tensor([len(data)])
        dist.broadcast(length, group=self._waiting, group_src=0)
        buffer = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(buffer, group=self._waiting, group_src=0)
        return json.loads(buffer.numpy().tobytes())


def _entered(group: dist.ProcessGroup) -> int:
    with suppress(RuntimeError):  # before the first collective of some backends
        return int(group._get_sequence_number_for_group())
    return 0


def _require_alone(environment: Mapping[str, str]) -> None:
    """Raises AuditError where a launcher has started several processes that do not know of each other."""
    started = environment.get("WORLD_SIZE", "1")
    if started not in ("", "0", "1") and not dist.is_initialized():
        raise AuditError(
            f"{started} processes were started and this one is at an update without torch.distributed being "
            "initialized, so that each trains by itself: call init_process_group, or let the trainer do it"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
