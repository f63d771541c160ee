"""Batches as a loader moves them to a GPU. No GPU: torch's device `meta` stands for one."""

from dataclasses import dataclass

import pytest
import torch

from ddp_tokens import batches
from ddp_tokens.labelled import collate as collate_tokens
from ddp_tokens.loading import _usable
from ddp_tokens.workloads import images
from ddp_tokens.world import World
from tests.helpers import make_row


@dataclass(frozen=True)
class Batch(batches.Batch):
    first: torch.Tensor
    units: int
    second: torch.Tensor
    name: str = "a"


def batch():
    return Batch(torch.arange(3.0), 7, torch.ones(2, 2))


def test_each_tensor_is_moved_and_plain_values_stay():
    moved = batch().to("meta")
    assert (moved.first.device.type, moved.second.device.type) == ("meta", "meta")
    assert (moved.first.shape, moved.units, moved.name) == ((3,), 7, "a")
    assert isinstance(moved, Batch)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_how_it_is_copied_is_passed_on(monkeypatch, non_blocking):
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, **how: asked.append((device, how)) or tensor)
    batch().to("cuda:1", non_blocking=non_blocking)
    assert asked == [("cuda:1", {"non_blocking": non_blocking})] * 2


def test_each_tensor_is_pinned(monkeypatch):
    """torch's loader asks a batch of another type than its own for this method."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    pinned = torch.utils.data._utils.pin_memory.pin_memory(batch())
    assert torch.equal(pinned.first, torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(pinned.second, torch.full((2, 2), 2.0))
    assert (pinned.units, pinned.name) == (7, "a")


def test_a_rank_on_a_gpu_copies_without_waiting_and_one_on_the_cpu_not_at_all(monkeypatch):
    asked = []
    monkeypatch.setattr(Batch, "to", lambda self, device, non_blocking=False: asked.append((device, non_blocking)))
    made = batch()
    assert _usable(made, World()) is made
    assert asked == []
    _usable(made, World(rank=1, local_rank=1, size=2, device="cuda:1"))
    assert asked == [("cuda:1", True)]


def test_the_batches_of_the_kinds_of_work_can_be_moved():
    made = collate_tokens([make_row("a", 3), make_row("b", 5)]).to("meta")
    assert {made.tokens.device.type, made.labels.device.type, made.padding.device.type} == {"meta"}
    assert made.units == 8
    assert issubclass(images.Batch, batches.Batch)
