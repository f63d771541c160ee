"""A recorded window once more: the same numbers as a loop by hand in float64, and nothing of it left in the process."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from ddp_tokens.audit import replaying
from ddp_tokens.audit.replaying import Replayed, in_float64, in_training_dtype, not_reproduced
from ddp_tokens.audit.sketch import sketch
from ddp_tokens.errors import AuditError
from ddp_tokens.generators import read_generators
from tests.unit.audit.models import Model, gradients_of, loss_sum, recorded, tokens_of


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(module=None, number=3, **how):
    module = module or Model()
    window, sums = recorded(module, [((tokens,), {}) for tokens in tokens_of(number)], **how)
    return module, window, sums


def by_hand(module, number=3):
    """Gradients of each microbatch's sum in float64, and of all."""
    wide, parts = copy.deepcopy(module).double(), []
    for tokens in tokens_of(number):
        wide.zero_grad()
        functional.cross_entropy(wide(tokens)["logits"].flatten(0, 1), tokens.flatten(), reduction="sum").backward()
        parts.append({name: gradient.clone() for name, gradient in gradients_of(wide).items()})
    return parts, {name: sum(part[name] for part in parts) for name in parts[0]}


def test_gradients_in_float64_are_those_of_a_loop_by_hand():
    module, window, sums = made()
    parts, total = by_hand(module)
    found = in_float64(window)
    assert list(found.gradients) == [name for name, _ in module.named_parameters()]
    for name, gradient in found.gradients.items():
        assert gradient.dtype == torch.float64
        assert torch.allclose(gradient, total[name], rtol=1e-12, atol=1e-15)
    assert found.sums == pytest.approx(sums, rel=1e-6)
    assert list(found.parts) == [(0, 0), (0, 1), (0, 2)]
    for index, part in enumerate(parts):
        for name, gradient in part.items():
            assert torch.allclose(torch.from_numpy(found.parts[0, index][name]), sketch(gradient), rtol=0, atol=1e-13)


def test_gradients_in_the_training_dtype_are_those_of_the_mean():
    """As a loop leaves them that divides each microbatch's sum by the units of all: here 2 + 5 + 3."""
    module, window, sums = made()
    again = copy.deepcopy(module)
    for tokens in tokens_of(3):
        total = functional.cross_entropy(again(tokens)["logits"].flatten(0, 1), tokens.flatten(), reduction="sum")
        (total / 10).backward()
    found = in_training_dtype(window, 10)
    for name, gradient in gradients_of(again).items():
        assert torch.equal(found.gradients[name], gradient)
    assert found.sums == sums
    assert found.parts == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_in_the_run(dtype):
    """Only where the training dtype is computed with."""
    module, window, sums = made(autocast=dtype)
    found, exact = in_training_dtype(window, 10), in_float64(window)
    assert found.sums == sums
    assert {gradient.dtype for gradient in found.gradients.values()} == {torch.float32}
    assert exact.sums != sums
    assert exact.sums == pytest.approx(sums, rel=2e-2)
    _, total = by_hand(module)
    assert torch.allclose(exact.gradients["head.bias"], total["head.bias"], rtol=1e-12)


def test_dropout_is_drawn_as_in_the_run():
    _, window, sums = made(Model(dropout=0.5))
    torch.manual_seed(99)
    assert in_training_dtype(window, 10).sums == sums
    assert in_float64(window).sums == pytest.approx(sums, rel=1e-6)


class Drawing(nn.Module):
    """Draws from every generator that a forward may draw from."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 3)

    def forward(self, tokens):
        noise = torch.rand(1) + random.random() + float(numpy.random.random())
        return {"logits": self.linear(noise.to(self.linear.weight.dtype)).expand(*tokens.shape, 3)}


def ones(outputs, batch):
    return outputs["logits"].sum(), batch["tokens"].numel()


def test_every_generator_is_as_in_the_run_and_afterwards_as_before():
    module = Drawing()
    window, sums = recorded(module, [((tokens,), {}) for tokens in tokens_of(2)], loss=ones)
    torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
    before = read_generators("cpu").digests
    assert in_training_dtype(window, 7).sums == sums
    assert in_float64(window).sums == pytest.approx(sums, rel=1e-6)
    assert read_generators("cpu").digests == before


def failing(outputs, batch):
    torch.rand(3), random.random(), numpy.random.random()
    raise ValueError("no")


@pytest.mark.parametrize("again", [in_float64, lambda window: in_training_dtype(window, 3)], ids=("float64", "native"))
def test_an_exception_leaves_nothing_behind(again):
    module, window, _ = made()
    window = replaying.Window(module, failing, window.recorded, window.names, window.whole)
    before, threads = read_generators("cpu").digests, torch.get_num_threads()
    weights = [id(parameter) for parameter in module.parameters()]
    with pytest.raises(AuditError, match="loss_sum failing fails on what the module returned, a dict"):
        again(window)
    assert read_generators("cpu").digests == before
    assert torch.get_num_threads() == threads
    assert [id(parameter) for parameter in module.parameters()] == weights
    assert gradients_of(module) == {}
    assert torch.is_grad_enabled()


def test_all_cores_compute_and_threads_are_put_back(monkeypatch):
    monkeypatch.setattr(replaying.os, "sched_getaffinity", lambda _: {0, 1, 2})
    threads, used = torch.get_num_threads(), []

    def counting(outputs, batch):
        used.append(torch.get_num_threads())
        return ones(outputs, batch)

    _, window, _ = made(number=1)
    window = replaying.Window(window.module, counting, window.recorded, window.names, window.whole)
    in_float64(window)
    assert used == [max(3, threads)]
    assert torch.get_num_threads() == threads


def test_gradients_are_computed_where_the_run_has_switched_them_off():
    """An optimizer's step is inside no_grad."""
    _, window, _ = made()
    with torch.no_grad():
        found = in_float64(window)
        assert not torch.is_grad_enabled()
    assert set(found.gradients) == {"embedding.weight", "hidden.weight", "hidden.bias", "head.weight", "head.bias"}


def test_the_module_keeps_its_weights_gradients_and_mode():
    module, window, _ = made()
    module.eval()
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    before = {name: (id(one), one.detach().clone()) for name, one in module.named_parameters()}
    in_float64(window), in_training_dtype(window, 10)
    for name, one in module.named_parameters():
        assert id(one) == before[name][0]
        assert torch.equal(one, before[name][1])
        assert bool((one.grad == 7).all())
    assert not module.training


class Keeping(nn.Module):
    """Buffers that forward changes in place, of two dtypes."""

    def __init__(self, dtype):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("wide", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.to(dtype)
        self.wide = self.wide.double()

    def forward(self, tokens):
        self.count += 1
        self.wide += 1
        self.mean.mul_(0.5).add_(1)
        return {"logits": self.linear(self.linear.weight.new_ones(2)).expand(*tokens.shape, 3)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_that_forward_changes_are_those_of_the_run(dtype):
    module = Keeping(dtype)
    window, _ = recorded(module, [((tokens,), {}) for tokens in tokens_of(2)], loss=ones)
    before = {name: (id(buffer), buffer.clone()) for name, buffer in module.named_buffers()}
    in_float64(window), in_training_dtype(window, 7)
    for name, buffer in module.named_buffers():
        assert id(buffer) == before[name][0]
        assert torch.equal(buffer, before[name][1])


class Changing(nn.Module):
    """Forward changes what it is given: a tensor in place, and takes an entry out of a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, batch):
        batch["labels"].zero_() if "keep" in batch else batch.pop("labels")
        return {"logits": self.linear(batch["x"].mul_(2))}


def of_logits(outputs, batch):
    return outputs["logits"].sum(), 1


def of_labels(outputs, batch):
    chosen = outputs["logits"].gather(1, batch["labels"][:, None]).sum() + batch["x"].sum() * 0.25
    return chosen, len(batch["labels"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keep", [{}, {"keep": True}], ids=("taken out", "in place"))
def test_a_loss_is_given_the_batch_as_it_was_before_forward(dtype, keep):
    module = Changing().to(dtype)
    batch = {"x": torch.ones(2, 3, dtype=dtype), "labels": torch.tensor([1, 2]), **keep}
    window, _ = recorded(module, [((copy.deepcopy(batch),), {})], loss=of_logits)
    window = replaying.Window(module, of_labels, window.recorded, window.names, window.whole)
    with torch.no_grad():
        logits = module.linear(2 * batch["x"])
    expected = {(0, 0): float(logits[0, 1] + logits[1, 2] + 6 * 0.25)}
    assert in_float64(window).sums == pytest.approx(expected, rel=1e-5)
    assert in_training_dtype(window, 2).sums == pytest.approx(expected, rel=1e-5)


def test_parameters_that_are_not_compared_have_no_gradient():
    module = Model()
    module.embedding.weight.requires_grad_(False)
    window, _ = recorded(module, [((tokens,), {}) for tokens in tokens_of(2)])
    names = {key: name for key, name in window.names.items() if name != "embedding.weight"}
    window = replaying.Window(module, loss_sum, window.recorded, names, window.whole)
    assert "embedding.weight" not in in_float64(window).gradients
    assert "embedding.weight" not in in_float64(window).parts[0, 0]


class Branching(nn.Module):
    """Uses another layer for each number of tokens."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 3) for _ in range(3))

    def forward(self, tokens):
        layer = self.layers[tokens.numel() - 1]
        return {"logits": layer(layer.weight.new_ones(tokens.numel(), 1))}


def test_a_layer_that_a_microbatch_does_not_use_has_no_gradient_of_it_yet():
    module = Branching()
    calls = [((torch.zeros(1, length, dtype=torch.long),), {}) for length in (1, 2)]
    window, _ = recorded(module, calls, loss=ones)
    found = in_float64(window)
    assert set(found.gradients) == {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}
    assert set(found.parts[0, 0]) == {"layers.0.weight", "layers.0.bias"}
    assert found.parts[0, 1]["layers.0.weight"].tolist() == [0, 0, 0]
    assert found.parts[0, 1]["layers.1.bias"].tolist() == [2, 2, 2]


def test_a_microbatch_without_a_unit_may_depend_on_nothing():
    def nothing(outputs, batch):
        return torch.zeros(()), 0

    _, window, _ = made(number=1)
    window = replaying.Window(window.module, nothing, window.recorded, window.names, window.whole)
    assert in_float64(window) == Replayed({(0, 0): 0.0}, {}, {(0, 0): {}})


def test_floating_inputs_are_float64_and_whole_ones_stay():
    seen = []

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x, places, flags, array):
            seen.append((x.dtype, places.dtype, flags.dtype, array.dtype))
            return {"logits": self.linear(x)}

    x, places, flags = torch.ones(1, 2), torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.bool)
    call = (x, places, flags, numpy.ones(2, numpy.float32))
    window, _ = recorded(Looking(), [(call, {})], loss=of_logits)
    in_float64(window), in_training_dtype(window, 1)
    whole = (torch.int32, torch.bool)
    assert seen[1:] == [
        (torch.float64, *whole, numpy.dtype("float64")),
        (torch.float32, *whole, numpy.dtype("float32")),
    ]


PLACE = (0, 0)


def differs(in_run, native, exact, **how):
    _, window, _ = made(number=1, **how)
    found = Replayed({PLACE: exact}, {}, {}), Replayed({PLACE: native}, {}, {})
    return not_reproduced(window, {PLACE: in_run}, *found)


@pytest.mark.parametrize(
    ("in_run", "native", "exact", "is_same"),
    [
        (100.0, 100.0, 100.0, True),
        (100.0, 100.00099, 100.0, True),
        (100.0, 100.0011, 100.0, False),
        (100.0, 100.0, 100.099, True),
        (100.0, 100.0, 100.11, False),
        (0.001, 0.0010099, 0.001, True),  # below 1, absolutely
        (0.0, 0.000011, 0.0, False),
        (-100.0, 100.0, -100.0, False),
        (float("nan"), float("nan"), float("nan"), False),
        (100.0, float("nan"), 100.0, False),
        (100.0, 100.0, float("inf"), False),
    ],
)
def test_how_near_a_loss_sum_must_come_again(in_run, native, exact, is_same):
    assert differs(in_run, native, exact) == (None if is_same else PLACE)


@pytest.mark.parametrize(("native", "is_same"), [(100.0099, True), (100.011, False)])
def test_kernels_of_fewer_digits_need_not_come_as_near(native, is_same):
    torch.set_float32_matmul_precision("high")
    try:
        assert differs(100.0, native, 100.0) == (None if is_same else PLACE)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_half_precision_comes_less_near():
    for how in ({"autocast": torch.bfloat16}, {"module": Model().bfloat16()}):
        assert differs(100.0, 100.9, 109.0, **how) is None
        assert differs(100.0, 101.1, 100.0, **how) == PLACE
        assert differs(100.0, 100.0, 111.0, **how) == PLACE


def test_the_first_that_differs_is_named():
    _, window, sums = made()
    exact = Replayed(dict(sums), {}, {})
    native = Replayed(sums | {(0, 1): 99.0, (0, 2): 98.0}, {}, {})
    assert not_reproduced(window, sums, exact, native) == (0, 1)
    assert not_reproduced(window, sums, exact, exact) is None
