"""Each digest derived anew: SHA-256 of the JSON text as it is written, or of a state's bytes."""

import hashlib

import numpy

from ddp_tokens.start_files import (
    GENERATORS,
    generator_digests,
    held_digests,
    start_state,
    start_tensors,
    torch_digests,
)


def of(data):
    return hashlib.sha256(data).hexdigest()


def state(*values):
    return numpy.array(values, numpy.uint8)


def test_the_files_of_a_rank():
    assert (start_state(3), start_tensors(3)) == ("start-rank-3.json", "start-rank-3.safetensors")


def test_states_of_torch_are_told_by_their_bytes_in_the_order_of_their_names():
    found = torch_digests({"torch_cuda": state(7), "torch_cpu": state(1, 255)})
    assert list(found.items()) == [("torch_cpu", of(b"\x01\xff")), ("torch_cuda", of(b"\x07"))]


def test_of_the_plain_values_only_the_generators_count():
    found = generator_digests({"history": [], "numpy": 2, "python": [1]}, {"torch_cpu": state(9)})
    assert found == {"python": of(b"[\n  1\n]\n"), "numpy": of(b"2\n"), "torch_cpu": of(b"\x09")}
    assert set(found) < set(GENERATORS) == {"python", "numpy", "torch_cpu", "torch_cuda"}


def test_what_is_held_is_told_part_by_part_weights_first():
    """A check names the first part that differs, so the order says what matters most."""
    rank_part = {"history": 3, "python": 4, "numpy": 5}
    common = {"optimizer": 1, "history": 2, "extras": {}}
    found = held_digests("of the model", "of its moments", common, rank_part, {"python": "p"})
    assert list(found.items()) == [
        ("model.safetensors", "of the model"),
        ("optimizer.safetensors", "of its moments"),
        ("optimizer_scalars", of(b"1\n")),
        ("history", of(b"2\n")),
        ("rank_history", of(b"3\n")),
        ("python", "p"),
    ]


def test_what_else_has_a_state_is_told_one_by_one_before_the_generators():
    common = {"optimizer": 1, "history": 2, "extras": {"schedule": 3, "scaler": {"scale": 4}}}
    found = held_digests("", "", common, {"history": 3}, {"python": "p"})
    assert list(found)[-3:] == ["extras.scaler", "extras.schedule", "python"]
    assert found["extras.schedule"] == of(b"3\n")
    assert found["extras.scaler"] == of(b'{\n  "scale": 4\n}\n')
