"""The generators of this process, read as values that JSON and safetensors hold, and put back."""

import hashlib
import json
import random

import numpy
import pytest
import torch

from ddp_tokens.files import to_json
from ddp_tokens.generators import read_generators, restore_generators


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(17), numpy.random.seed(17), torch.manual_seed(17)


def draws():
    return random.random(), float(numpy.random.random()), torch.rand(3).tolist()


def halves():
    """Python and NumPy make normal numbers in pairs: the second of each, when one has been drawn."""
    return random.gauss(0, 1), float(numpy.random.standard_normal())


def test_what_is_read_is_what_the_libraries_say():
    found = read_generators("cpu")
    assert set(found.plain) == {"python", "numpy"}
    _, words, half = random.getstate()
    assert found.plain["python"] == [list(words), half]
    name, keys, *rest = numpy.random.get_state()
    assert found.plain["numpy"] == [name, keys.tolist(), *rest]
    [(name, state)] = found.tensors.items()
    assert name == "torch_cpu"
    assert torch.equal(state, torch.get_rng_state())


def test_restoring_gives_the_same_draws_also_from_a_file():
    halves()
    found = read_generators("cpu")
    assert found.plain["python"][1] is not None, "half of a pair of normal numbers is kept"
    assert found.plain["numpy"][3] == 1
    assert found.plain["numpy"][4] != 0.0
    from_file = type(found)(json.loads(json.dumps(found.plain)), found.tensors)
    expected = halves(), draws()
    assert draws() != expected[1]
    for generators in (found, from_file):
        restore_generators(generators)
        assert (halves(), draws()) == expected


def test_reading_draws_nothing():
    expected = draws()
    random.seed(17), numpy.random.seed(17), torch.manual_seed(17)
    read_generators("cpu")
    assert draws() == expected


def test_digests_are_of_the_json_and_of_the_bytes():
    found = read_generators("cpu")
    state = torch.get_rng_state().numpy().tobytes()
    assert found.digests == {
        "python": hashlib.sha256(to_json(found.plain["python"]).encode()).hexdigest(),
        "numpy": hashlib.sha256(to_json(found.plain["numpy"]).encode()).hexdigest(),
        "torch_cpu": hashlib.sha256(state).hexdigest(),
    }
    torch.rand(1)
    later = read_generators("cpu").digests
    assert [name for name in later if later[name] != found.digests[name]] == ["torch_cpu"]


def test_the_generator_of_a_gpu_is_read_and_put_back_only_where_there_is_one(monkeypatch):
    """torch's calls for a GPU are replaced: this shows what is asked for, not that a GPU draws again."""
    on_gpu, restored = torch.tensor([7, 0, 255], dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: on_gpu)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    restore_generators(read_generators("cpu"))
    assert restored == []
    found = read_generators("cuda:1")
    assert list(found.tensors) == ["torch_cpu", "torch_cuda"]
    assert found.digests["torch_cuda"] == hashlib.sha256(bytes([7, 0, 255])).hexdigest()
    restore_generators(found)
    assert [value.tolist() for value in restored] == [[7, 0, 255]]
