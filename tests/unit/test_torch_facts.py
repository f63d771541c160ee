"""What torch tells of itself, here; and of GPUs, which are not here: a pretended torch.cuda stands for them."""

import json
import os
import warnings
from types import SimpleNamespace

import pytest
import torch

from ddp_tokens import torch_facts
from ddp_tokens.torch_facts import about_gpu, about_torch, facts, process_facts, visible_gpus, wrong_in_product

GIB = 2**30


def test_torch_as_it_is_here():
    found = about_torch()
    assert json.loads(json.dumps(found)) == found
    assert found["version"] == torch.__version__
    assert found["gloo"] is True
    assert found["cuda"] == torch.version.cuda
    assert (found["nccl_version"] is None) == (not found["nccl"])


def test_a_product_that_is_right_and_one_that_is_not():
    assert wrong_in_product(lambda left, right: left @ right) == 0
    assert wrong_in_product(lambda left, right: right @ left) > 0

    def one_bit_off(left, right):
        product = left @ right
        product[3, 5] += 1
        return product

    assert wrong_in_product(one_bit_off) == 1
    assert wrong_in_product(lambda left, right: torch.full_like(left, float("nan"))) == torch_facts.SIZE**2


def test_the_numbers_are_exact_in_any_order_of_adding():
    """64 terms of at most 8 x 8 = 64 are at most 4096, below 2^24, to which float32 counts by ones; TF32 has 8 too."""
    assert torch_facts.SIZE * torch_facts.LARGEST**2 == 4096 < 2**24
    seen = []
    wrong_in_product(lambda left, right: seen.extend([left, right]) or left @ right)
    assert all(int(each.abs().max()) == torch_facts.LARGEST for each in seen)
    assert all(len(each.unique()) == 2 * torch_facts.LARGEST + 1 for each in seen), "the numbers must differ"


@pytest.fixture
def gpus(monkeypatch):
    """Three GPUs, which compute on the CPU. Of them tests break what they are about."""
    properties = SimpleNamespace(name="A GPU", uuid="GPU-12", total_memory=40 * GIB, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (30 * GIB, 40 * GIB))
    monkeypatch.setattr(torch_facts, "device_of", lambda index: "cpu")
    return properties


SOUND = {
    "index": 1,
    "error": None,
    "name": "A GPU",
    "uuid": "GPU-12",
    "memory_bytes": 40 * GIB,
    "memory_free_bytes": 30 * GIB,
    "capability": "9.0",
    "wrong_values": 0,
}


def test_a_sound_gpu(gpus):
    assert about_gpu(1) == SOUND


def test_an_older_torch_tells_no_uuid(gpus):
    del gpus.uuid
    assert about_gpu(1) == SOUND | {"uuid": None}


def test_a_gpu_that_raises_is_told_and_the_next_one_tried(gpus, monkeypatch):
    """CUDA's errors have several lines, of which the first says what it is."""
    text = "CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`"
    monkeypatch.setattr(torch_facts, "device_of", lambda index: _raise(RuntimeError(text)) if index == 1 else "cpu")
    told = list(facts())
    assert [kind for kind, _ in told] == ["torch", "trying", "gpu", "trying", "gpu", "trying", "gpu"]
    errors = [gpu["error"] for kind, gpu in told if kind == "gpu"]
    assert errors == [None, "RuntimeError: CUDA error: uncorrectable ECC error encountered", None]
    assert told[4][1]["name"] == "A GPU", "what can be told of it is told"
    assert "wrong_values" not in told[4][1]


def _raise(error):
    raise error


def test_what_goes_wrong_first_is_what_is_told(gpus, monkeypatch):
    def raise_here(what):
        def look(index):
            raise RuntimeError(what)

        return look

    monkeypatch.setattr(torch.cuda, "get_device_properties", raise_here("no properties"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", raise_here("no memory"))
    assert about_gpu(0) == {"index": 0, "error": "RuntimeError: no properties", "wrong_values": 0}


def test_a_gpu_that_computes_wrongly(gpus, monkeypatch):
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch_facts, "device_of", lambda index: torch.device("cpu"))

    def wrong(left, right):
        found = product(left, right)
        if left.is_floating_point():
            found[0, :3] += 1
        return found

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    assert about_gpu(1) == SOUND | {"wrong_values": 3}


def test_gpus_are_counted(gpus):
    assert visible_gpus() == (3, None)
    assert next(facts())[1]["gpus"] == 3


@pytest.mark.parametrize(
    ("is_available", "init", "said"),
    [
        (
            lambda: bool(
                warnings.warn("The NVIDIA driver on your system is too old (found version 11040)", stacklevel=1)
            ),
            lambda: _raise(RuntimeError("another text")),
            "The NVIDIA driver on your system is too old (found version 11040)",
        ),
        (lambda: False, lambda: _raise(RuntimeError("No CUDA GPUs are available\nmore")), "No CUDA GPUs are available"),
        (lambda: _raise(OSError("libcuda.so.1")), lambda: None, "libcuda.so.1"),
        (lambda: False, lambda: None, None),
    ],
)
def test_torch_says_why_it_sees_none_by_a_warning_or_an_error(monkeypatch, is_available, init, said):
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert visible_gpus() == (0, said)


def test_this_process():
    found = process_facts()
    assert found == {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
