"""Other tensors in a module for the length of a block, and afterwards the module as it was, whatever happened."""

import copy
from collections import OrderedDict, deque

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddp_tokens.audit.swapping import swapped


class Counting(nn.Module):
    """Forward leaves things behind: numbers, tensors, entries of lists, dicts and sets, buffers, a new attribute."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.calls = 0
        self.cache = None
        self.losses, self.by_name, self.names, self.recent = [], {}, {"first"}, deque(maxlen=2)
        self.nested = {"list": []}

    def forward(self, x):
        self.calls += 1
        self.cache = x * 2
        self.losses.append(x.sum())
        self.by_name[f"call {self.calls}"] = x
        self.names.add(f"call {self.calls}")
        self.recent.append(self.calls)
        self.seen.add_(1)
        self.added = True
        return self.linear(x)


def doubled(module):
    """Every parameter and buffer, twice as large, by id."""
    tensors = [*module.parameters(), *module.buffers()]
    return {id(one): nn.Parameter(one.detach() * 2) if isinstance(one, nn.Parameter) else one * 2 for one in tensors}


def state(module):
    """All that can be told apart of a module and its parts, by content."""
    return [
        (name, {key: repr(value) for key, value in part.__dict__.items()}, list(map(id, part.parameters())))
        for name, part in module.named_modules()
    ]


def swapping(module, instead=None):
    return swapped(module, doubled(module) if instead is None else instead, torch.clone)


def test_parameters_and_buffers_are_others_inside():
    module = nn.BatchNorm1d(3)
    instead = doubled(module)
    with swapping(module, instead):
        assert module.weight.tolist() == [2, 2, 2]
        assert module.running_var.tolist() == [2, 2, 2]
        assert [id(one) for one in module.parameters()] == [id(one) for one in list(instead.values())[:2]]
    assert module.weight.tolist() == module.running_var.tolist() == [1, 1, 1]


def test_gradients_go_to_what_is_swapped_in():
    module = nn.Linear(3, 1)
    instead = doubled(module)
    inside = list(instead.values())
    with swapping(module, instead):
        module(torch.ones(2, 3)).sum().backward()
    assert inside[0].grad.tolist() == [[2, 2, 2]]
    assert module.weight.grad is None


def test_a_parameter_with_several_names_is_swapped_under_each():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    with swapping(module):
        assert module[1].weight is module[0].weight
        module(torch.ones(1, 3)).sum().backward()
        assert module[0].weight.grad is not None
    assert module[1].weight is module[0].weight
    assert module[0].weight.grad is None


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_keep_a_list_of_their_parameters(kind):
    torch.manual_seed(0)
    module = kind(3, 4, num_layers=2)
    expected = copy.deepcopy(module).double()
    instead = {id(one): nn.Parameter(one.detach().double()) for one in module.parameters()}
    inside = list(instead.values())
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    before = list(map(id, module._flat_weights))
    with swapping(module, instead):
        outputs, _ = module(x)
        outputs.sum().backward()
    assert torch.equal(outputs, expected(x)[0])
    assert all(one.grad is not None for one in inside)
    assert list(map(id, module._flat_weights)) == before == list(map(id, module.parameters()))


def test_what_forward_leaves_behind_is_gone_afterwards():
    module = Counting()
    module(torch.ones(2, 3))
    before, values = state(module), dict(vars(module))
    with swapping(module):
        for _ in range(3):
            module(torch.zeros(2, 3))
        assert module.calls == 4
    assert state(module) == before
    assert all(vars(module)[name] is value for name, value in values.items())


def test_an_attribute_that_forward_adds_or_removes():
    module = Counting()
    with swapping(module):
        module(torch.zeros(2, 3))
        del module.calls
    assert not hasattr(module, "added")
    assert module.calls == 0


def test_tensors_that_are_plain_attributes_are_swapped_as_well():
    """A mask that is made once, and is no buffer."""
    module = nn.Linear(2, 2)
    module.mask, module.masks, module.named = torch.ones(2), [torch.ones(1), (torch.ones(1), 3)], {"a": torch.ones(1)}
    values = dict(vars(module))
    with swapped(module, {}, torch.Tensor.double):
        assert module.mask.dtype == module.masks[0].dtype == module.masks[1][0].dtype == torch.float64
        assert module.named["a"].dtype == torch.float64
        assert module.masks[1][1] == 3
        module.mask.add_(1)
    assert all(vars(module)[name] is value for name, value in values.items())
    assert module.mask.tolist() == [1, 1]


def test_a_parameter_that_is_a_plain_attribute_of_another_part_is_the_same_one():
    module = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    module[1].__dict__["tied"] = [module[0].weight]
    with swapping(module):
        assert module[1].tied[0] is module[0].weight
    assert module[1].tied[0] is module[0].weight


def test_hooks_that_are_added_or_removed_inside():
    module = nn.Linear(3, 3)
    called = []
    handle = module.register_forward_hook(lambda *_: called.append("kept"))
    with swapping(module):
        module.register_forward_pre_hook(lambda *_: called.append("added"))
        handle.remove()
        module(torch.ones(1, 3))
    assert called == ["added"]
    module(torch.ones(1, 3))
    assert called == ["added", "kept"]


def test_hooks_of_torch_distributed_rest_inside():
    """fully_shard gathers parameters by hooks, and here they are whole."""
    called = []

    def gathering(*_):
        called.append("gathered")

    gathering.__module__ = "torch.distributed.fsdp._fully_shard"
    module = nn.Linear(3, 3)
    module.register_forward_pre_hook(gathering)
    module.register_forward_hook(gathering)
    module.register_forward_pre_hook(lambda *_: called.append("own"))
    with swapping(module):
        module(torch.ones(1, 3))
    assert called == ["own"]
    module(torch.ones(1, 3))
    assert called == ["own", "gathered", "own", "gathered"]


class Broken(Exception):
    pass


def broken_inside(module):
    with swapping(module):
        module(torch.zeros(2, 3))
        module.linear.weight = nn.Parameter(torch.zeros(3, 3))
        raise Broken


def test_everything_is_put_back_after_an_exception():
    module = Counting()
    before = state(module)
    with pytest.raises(Broken):
        broken_inside(module)
    assert state(module) == before


def test_everything_is_put_back_where_swapping_itself_fails():
    """At the second part, after the first was swapped."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].odd = torch.ones(1)
    before = state(module)

    def fails(_):
        raise Broken

    with pytest.raises(Broken), swapped(module, doubled(module), fails):
        pass
    assert state(module) == before


def test_parts_that_are_exchanged_inside_are_put_back():
    module = Counting()
    linear = module.linear
    with swapping(module):
        module.linear = nn.Identity()
        module.register_module("more", nn.Identity())
    assert module.linear is linear
    assert not hasattr(module, "more")


def test_a_checkpoint_computes_again_with_what_is_swapped_in():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return checkpoint(self.linear, x, use_reentrant=False)

    module = Checkpointed()
    instead = doubled(module)
    inside = list(instead.values())
    with swapping(module, instead):
        module(torch.ones(2, 3)).sum().backward()
    assert inside[0].grad.tolist() == [[2, 2, 2]] * 3
    assert module.linear.weight.grad is None


def test_weight_normalization_makes_the_weight_of_what_is_swapped_in():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    weight = module.weight.detach().clone()
    with swapped(module, {id(one): nn.Parameter(one.detach() * 2) for one in module.parameters()}, torch.clone):
        assert torch.allclose(module.weight, weight * 2)
    assert torch.allclose(module.weight, weight)


def test_ordered_attributes():
    module = nn.Linear(2, 2)
    module.cache = OrderedDict(a=1)
    cache = module.cache
    with swapping(module):
        module.cache["b"] = 2
    assert module.cache is cache
    assert list(cache) == ["a"]
