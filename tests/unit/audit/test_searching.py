"""The optimizer that steps first says which module is audited, in a script that knows nothing of it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ddp_tokens.audit.attach import Listener
from ddp_tokens.audit.losses import loss_sum_of
from ddp_tokens.audit.searching import Search
from ddp_tokens.audit.watched import Watched
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.errors import AuditError


def search(watches, windows=2):
    def listen(module, watched):
        loss_sum = loss_sum_of("classification")
        return Listener(module, None, loss_sum, windows, Tolerances(), 64, 60, watched=watched)

    return Search(listen, watches)


def data(rows=12):
    torch.manual_seed(0)
    return [(torch.randn(4), row % 3) for row in range(rows)]


def test_labels_come_from_the_loaders_of_the_script_in_every_window():
    """Another module that the script calls, and that no optimizer updates, is let go at the first update."""
    found = search(watches=True)
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with found.searching():
        for x, _ in DataLoader(data(2), batch_size=2):
            other(x)
        for x, y in DataLoader(data(), batch_size=4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    report = found.require_found().report
    assert [one["verdict"]["outcome"] for one in report.windows] == ["inconclusive"] * 2  # one rank, one microbatch
    assert all(
        "there is nothing that could be weighed wrongly" in one["verdict"]["criterion"] for one in report.windows
    )


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)


def test_a_module_that_was_not_called_is_found_by_its_class_and_its_optimizer(monkeypatch):
    """As another rank has called it. The wrapper is what this rank would call."""
    asked = []

    def of_all(value, window):
        asked.append(value)
        return ["torch.nn.modules.linear.Linear", None] if value is None else [False, value]

    found = search(watches=False)
    monkeypatch.setattr(found._exchange, "of_all", of_all)
    monkeypatch.setattr(Listener, "before_step", lambda *_: None)
    model, alike = Wrapper(nn.Linear(4, 3)), nn.Linear(4, 3)
    with found.searching():
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert found.found.module is model.module
        assert found.found._model is model
        assert asked == [None, False]
    assert alike is not model.module


def test_a_module_that_other_ranks_have_and_this_one_has_not(monkeypatch):
    found = search(watches=False)
    monkeypatch.setattr(
        found._exchange, "of_all", lambda value, _: ["a.Net", None] if value is None else [False, value]
    )
    with found.searching(), pytest.raises(AuditError) as refused:
        torch.optim.SGD(Other().parameters(), lr=0.1).step()
    assert str(refused.value) == (
        "rank 1 is at an update and called no module that its optimizer, a SGD, updates, and holds no a.Net as other "
        "ranks do: let ranks train the same module"
    )


def test_an_update_before_any_forward_is_passed_over():
    found = search(watches=False)
    with found.searching():
        torch.optim.SGD(Other().parameters(), lr=0.1).step()
        assert found.found is None


def interrupted(found):
    with found.searching():
        assert nn.Module.__call__.__module__ == Search.__module__
        assert type(iter(DataLoader([1]))).__next__.__module__ == Watched.__module__
        raise ZeroDivisionError


def test_what_is_replaced_is_put_back():
    batches = type(iter(DataLoader([1])))
    call, following = nn.Module.__call__, batches.__next__
    with pytest.raises(ZeroDivisionError):
        interrupted(search(watches=True))
    assert nn.Module.__call__ is call
    assert batches.__next__ is following


def test_a_script_that_calls_no_module():
    found = search(watches=False)
    with found.searching():
        pass
    with pytest.raises(AuditError) as refused:
        found.require_found()
    assert str(refused.value) == (
        "nothing was audited: the script called no module that can be trained: give one that trains"
    )


def test_a_script_that_makes_no_update():
    found = search(watches=True)
    with found.searching():
        for x, _ in DataLoader(data(2), batch_size=2):
            nn.Linear(4, 3).requires_grad_(False)(x)
            nn.Sequential(nn.Linear(4, 3))(x)
    with pytest.raises(AuditError) as refused:
        found.require_found()
    assert str(refused.value) == (
        "nothing was audited: the script made no update of Sequential: let it train for a window or more"
    )
