"""Functions of torch.distributed that raise an error inside a block, and are afterwards as they were."""

import datetime

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce  # as a module may have it

from ddp_tokens.audit import alone as module
from ddp_tokens.audit.alone import COLLECTIVES, alone
from ddp_tokens.errors import AuditError

SENTENCE = (
    "the module's {inside} communicates with other ranks, so that one process cannot compute it: audit a loop whose "
    "{inside} is local"
)


def functions():
    return {(owner, name): vars(owner)[name] for owner, name in module._places()}


@pytest.fixture
def group(monkeypatch):
    """Of one rank, which says that it has two."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=5))
    monkeypatch.setattr(module, "_has_others", lambda: True)
    before = functions()
    yield dist.group.WORLD
    assert functions() == before
    all_reduce(torch.ones(1))
    dist.destroy_process_group()


ONE = torch.ones(1)
CALLS = {
    "all_reduce": lambda: dist.all_reduce(ONE),
    "imported before": lambda: all_reduce(ONE),
    "all_gather": lambda: dist.all_gather([ONE], ONE),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(ONE, ONE),
    "reduce_scatter": lambda: dist.reduce_scatter(ONE, [ONE]),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(ONE, ONE),
    "broadcast": lambda: dist.broadcast(ONE, 0),
    "all_to_all": lambda: dist.all_to_all([ONE], [ONE]),
    "all_to_all_single": lambda: dist.all_to_all_single(ONE, ONE),
    "barrier": lambda: dist.barrier(),
    "reduce": lambda: dist.reduce(ONE, 0),
    "gather": lambda: dist.gather(ONE, [ONE], 0),
    "scatter": lambda: dist.scatter(ONE, [ONE], 0),
    "send": lambda: dist.send(ONE, 0),
    "recv": lambda: dist.recv(ONE, 0),
    "an object": lambda: dist.broadcast_object_list([1], 0),
    "a group's own": lambda: dist.group.WORLD.allreduce([ONE]),
    "functional": lambda: functional.all_reduce(ONE, "sum", dist.group.WORLD),
}


def test_what_communicates_is_refused(group):
    for name, call in CALLS.items():
        with alone(), pytest.raises(AuditError) as refused:
            call()
        assert str(refused.value) == SENTENCE.format(inside="forward"), name


def test_every_collective_of_torch_is_replaced():
    replaced = {name for owner, name in module._places() if owner is dist}
    assert replaced == {name for name in COLLECTIVES if hasattr(dist, name)}
    assert len(replaced) > 15
    assert {"allreduce", "barrier", "send", "recv"} <= {
        name for owner, name in module._places() if owner is dist.ProcessGroup
    }


class Averaged(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.view_as(value)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def test_a_backward_that_communicates_is_told_from_a_forward(group):
    value = torch.ones(2, requires_grad=True)
    with alone(), pytest.raises(AuditError) as refused:
        Averaged.apply(value).sum().backward()
    assert str(refused.value) == SENTENCE.format(inside="backward")


def test_without_other_ranks_nothing_is_replaced(group, monkeypatch):
    """A group of one rank answers itself."""
    monkeypatch.undo()
    before = functions()
    with alone():
        assert functions() == before
        dist.all_reduce(ONE)


def test_without_a_group_nothing_is_replaced():
    before = functions()
    with alone():
        assert functions() == before
