"""Wrappers are looked through where they add no parameter, and none of their packages is needed."""

import pytest
import torch
from torch import nn

from ddp_tokens.audit.wrappers import hooked, innermost, is_sharded, network_of, torch_optimizer
from ddp_tokens.errors import AuditError


class Wrapper(nn.Module):
    def __init__(self, inner, name="module"):
        super().__init__()
        setattr(self, name, inner)

    def forward(self, *arguments):
        return arguments


NET = nn.Linear(2, 2)


@pytest.mark.parametrize("name", ["module", "_orig_mod", "_original_module"])
def test_wrappers_of_every_name(name):
    assert innermost(Wrapper(NET, name)) is NET


def test_wrappers_around_wrappers():
    assert innermost(Wrapper(Wrapper(Wrapper(NET, "_orig_mod")), "_original_module")) is NET
    assert innermost(NET) is NET


def test_what_adds_a_parameter_is_no_wrapper():
    model = Wrapper(NET)
    model.head = nn.Linear(2, 2)
    assert innermost(model) is model
    assert innermost(Wrapper(NET, "net")) is not NET


def test_a_module_that_names_itself_is_the_innermost():
    model = nn.Linear(2, 2)
    model.__dict__["module"] = model
    assert innermost(model) is model
    model.__dict__["module"] = "a text"
    assert innermost(model) is model


def test_torch_compile_is_looked_through_and_hooked_outside():
    compiled = torch.compile(NET, backend="eager")
    assert innermost(compiled) is NET
    assert innermost(Wrapper(compiled)) is NET
    assert hooked(Wrapper(compiled)) is compiled
    assert hooked(Wrapper(NET)) is NET


def test_the_older_way_to_shard_is_refused():
    class FullyShardedDataParallel(Wrapper):
        pass

    for model in (FullyShardedDataParallel(NET), Wrapper(FullyShardedDataParallel(NET))):
        with pytest.raises(AuditError) as refused:
            innermost(model)
        assert str(refused.value) == (
            "the model is wrapped by FullyShardedDataParallel, which flattens its parameters: audit the loop with "
            "fully_shard (FSDP2) or DistributedDataParallel"
        )


class LightningModule(nn.Module):
    pass


class Task(LightningModule):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_the_network_of_a_module_that_holds_the_loop():
    assert network_of(Task(net=NET, loss=nn.CrossEntropyLoss())) is NET
    assert innermost(network_of(Wrapper(Task(net=Wrapper(NET))))) is NET
    assert network_of(Task(net=Task(inner=NET))) is NET
    several = Task(one=NET, other=nn.Linear(2, 2))
    assert network_of(several) is several
    assert network_of(NET) is NET
    holding = nn.Sequential(NET)
    assert network_of(holding) is holding
    wrapped = Wrapper(NET)
    assert network_of(wrapped) is wrapped, "what wraps nothing but a network is looked through elsewhere"


OPTIMIZER = torch.optim.SGD(NET.parameters(), lr=0.1)


class Holding:
    def __init__(self, inner, name="optimizer"):
        setattr(self, name, inner)


def test_optimizers_in_wrappers():
    assert torch_optimizer(OPTIMIZER) is OPTIMIZER
    assert torch_optimizer(Holding(OPTIMIZER)) is OPTIMIZER
    assert torch_optimizer(Holding(OPTIMIZER, "_optimizer")) is OPTIMIZER


def test_an_optimizer_that_wraps_another():
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            self.optimizer = inner
            self.param_groups = inner.param_groups

    assert torch_optimizer(Outer(OPTIMIZER)) is OPTIMIZER
    assert torch_optimizer(Holding(Outer(OPTIMIZER))) is OPTIMIZER


@pytest.mark.parametrize("value", [None, 3, Holding(3), NET], ids=("none", "number", "wrapper", "module"))
def test_what_is_no_optimizer_is_refused(value):
    with pytest.raises(AuditError) as refused:
        torch_optimizer(value)
    assert str(refused.value) == (
        f"the optimizer is a {type(value).__name__}, which is no torch.optim.Optimizer: pass that one"
    )


def test_a_wrapper_of_itself_ends():
    circle = Holding(None)
    circle.optimizer = circle
    with pytest.raises(AuditError, match="the optimizer is a Holding"):
        torch_optimizer(circle)


def test_sharded_parameters_are_known_by_what_they_can_do():
    model = nn.Linear(2, 2)
    assert not is_sharded(model)
    model.weight.full_tensor = lambda: model.weight
    assert is_sharded(nn.Sequential(model))
