"""What buffers hold before each forward of a window, where forward changes them."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

from ddp_tokens import audit
from ddp_tokens.audit.buffers import Buffers, moved, put


class Counting(nn.Module):
    """`count` goes up with each forward; `table` stays."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("count", torch.tensor([1.0]))
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x, y=None):
        self.count.mul_(0.9)
        return self.inner(x + self.table) * self.count


class Replacing(Counting):
    """The buffer is another tensor each time, and a longer one."""

    def forward(self, x, y=None):
        self.count = torch.cat([self.count, self.count[-1:] * 0.9])
        return self.inner(x + self.table) * self.count[-1]


def forwards(module, buffers, number=2):
    states = []
    for _ in range(number):
        states.append(buffers.before_forward(0))
        module(torch.zeros(1, 6))
        assert buffers.has_all(states[-1])
    return states


@pytest.mark.parametrize("kind", [Counting, Replacing])
def test_what_buffers_held(kind):
    module = kind()
    first, second = forwards(module, Buffers(module, 1000))
    assert first["count"].tolist() == [1.0]
    assert second["count"].tolist() == pytest.approx([0.9] if kind is Counting else [1.0, 0.9])
    assert first["table"] is second["table"]
    assert moved(module, [first, second]) == {"count"}


def test_bytes_are_of_different_copies():
    """The table has 24 bytes, and the count 4 before each forward."""
    module = Counting()
    buffers = Buffers(module, 1000)
    forwards(module, buffers, 3)
    assert buffers.bytes == 24 + 3 * 4
    buffers.clear()
    assert buffers.bytes == 0


def test_large_buffers_are_copied_once_a_forward_is_known_to_change_them():
    """28 bytes are more than a quarter of 100."""
    module = Counting()
    buffers = Buffers(module, 100)
    state = buffers.before_forward(0)
    module(torch.zeros(1, 6))
    assert state == {}
    assert not buffers.has_all(state)
    buffers.clear()
    [state] = forwards(module, buffers, 1)
    assert list(state) == ["count"]
    assert buffers.before_forward(taken=93) == {}  # 4 bytes are kept already, and 4 more are 101


def test_a_buffer_that_is_written_and_stays_as_it_was_did_not_move():
    module = Counting()
    states = [Buffers(module, 1000).before_forward(0)]
    module.count.copy_(module.count.clone())
    assert moved(module, states) == set()


def test_states_are_put_in_place_where_they_fit():
    module = nn.Sequential(Counting())
    same, shape = module[0].table, torch.tensor([2.0, 3.0])
    put(module, {"0.table": torch.zeros(6), "0.count": shape})
    assert module[0].table is same
    assert same.tolist() == [0.0] * 6
    assert module[0].count is shape


def loss_sum(outputs, batch):
    return cross_entropy(outputs, batch["y"], reduction="sum"), len(outputs)


def spectral():
    module = Counting()
    module.inner = spectral_norm(module.inner)
    return module


def audited(module, factor=1.0, **how):
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with audit(module, optimizer, loss_sum=loss_sum, **how) as report:
        for _ in range(2):
            optimizer.zero_grad()
            for rows in (5, 9):
                x, y = torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator)
                (cross_entropy(module(x, y), y, reduction="sum") / 14 * factor).backward()
            optimizer.step()
    return [one["verdict"]["outcome"] for one in report.windows], report


@pytest.mark.parametrize("kind", [Counting, Replacing, spectral])
def test_a_window_is_computed_again_from_the_buffers_it_had(kind):
    torch.manual_seed(0)
    assert audited(kind())[0] == ["pass", "pass"]
    torch.manual_seed(0)
    assert audited(kind(), 1.01)[0] == ["fail", "fail"]


def test_the_buffers_of_the_run_are_those_without_an_audit():
    torch.manual_seed(0)
    module = Counting()
    audited(module)
    assert module.count.item() == pytest.approx(0.9**4)


def test_a_buffer_that_is_too_large_to_keep_is_a_doubt():
    """In the window in which a forward is first seen to change it, and in each where it does not fit."""
    torch.manual_seed(0)
    module = Counting()
    module.register_buffer("large", torch.zeros(2**17))  # half a MiB of 1
    outcomes, report = audited(module, record_mib=1)
    assert outcomes == ["inconclusive", "pass"]
    assert "take more than 1 MiB: pass a larger record_mib" in report.windows[0]["verdict"]["criterion"]
