"""Parts by rank, put together: by checks without torch, and by what trains on. Files written by hand."""

import json
import re

import numpy
import pytest
import torch
from safetensors.numpy import save

from ddp_tokens.checkpoint_files import MODEL, expected_files, make_manifest, parts_of, rank_part, verify
from ddp_tokens.checks.tensor_files import read_whole
from ddp_tokens.errors import CheckpointError, EvidenceError
from ddp_tokens.files import write_json
from ddp_tokens.sharded_parts import fill, kinds_of, part_bytes
from ddp_tokens.tensors import load_tensors, load_whole

WHOLE = numpy.arange(10, dtype=numpy.float32).reshape(5, 2)


def write(folder, rank, begins=0, array=WHOLE, places=True, name="weight"):
    told = {name: {"saved_offsets": [begins, 0]}}
    header = {"DCP_SHARDING_INFO": json.dumps(told)} if places else None
    (folder / rank_part(MODEL, rank)).write_bytes(save({name: array}, header))


def test_parts_make_the_whole_in_whatever_order_ranks_hold_them(tmp_path):
    """Rank 1 holds nothing of it, and rank 2 what comes before the part of rank 0."""
    write(tmp_path, 0, 2, WHOLE[2:])
    write(tmp_path, 1, 5, WHOLE[5:])
    write(tmp_path, 2, 0, WHOLE[:2])
    assert [path.name for path in parts_of(tmp_path / MODEL)] == [f"model-rank-{rank}.safetensors" for rank in range(3)]
    assert (read_whole(tmp_path / MODEL)["weight"] == WHOLE).all()
    assert torch.equal(load_whole(tmp_path / MODEL)["weight"], torch.from_numpy(WHOLE))
    kinds = kinds_of(tmp_path / MODEL)
    assert (kinds["weight"].shape, kinds["weight"].dtype) == ((5, 2), torch.float32)
    found = torch.zeros(5, 2)
    fill(tmp_path / MODEL, {"weight": found})
    assert torch.equal(found, torch.from_numpy(WHOLE))


def test_eleven_parts_are_in_the_order_of_ranks(tmp_path):
    for rank in range(11):
        write(tmp_path, rank, rank, WHOLE[:1] + rank)
    assert read_whole(tmp_path / MODEL)["weight"][:, 0].tolist() == list(range(11))


def test_a_missing_part_is_noticed(tmp_path):
    write(tmp_path, 0, 0, WHOLE[:2])
    write(tmp_path, 1, 3, WHOLE[3:])
    with pytest.raises(
        EvidenceError, match=re.escape("the ranks' parts of model.safetensors do not make a whole of weight")
    ):
        read_whole(tmp_path / MODEL)
    with pytest.raises(EvidenceError, match="the ranks' files of model hold 8 of 10 values of weight; make it again"):
        kinds_of(tmp_path / MODEL)


@pytest.mark.parametrize("told", [None, "[]", "{", '{"weight": {}}', '{"weight": {"saved_offsets": ["x"]}}'])
def test_a_part_that_does_not_say_where_it_belongs_is_refused(tmp_path, told):
    header = None if told is None else {"DCP_SHARDING_INFO": told}
    (tmp_path / rank_part(MODEL, 0)).write_bytes(save({"weight": WHOLE}, header))
    with pytest.raises(EvidenceError, match=r"model-rank-0\.safetensors does not say where its values belong"):
        read_whole(tmp_path / MODEL)
    if told not in (None, '{"weight": {"saved_offsets": ["x"]}}'):
        with pytest.raises(EvidenceError, match="holds a damaged part of model"):
            kinds_of(tmp_path / MODEL)


def test_a_damaged_part_is_named(tmp_path):
    (tmp_path / rank_part(MODEL, 0)).write_bytes(b"PK\x03\x04 what torch.save writes")
    with pytest.raises(EvidenceError, match=r"model-rank-0\.safetensors is not a whole safetensors file"):
        read_whole(tmp_path / MODEL)
    with pytest.raises(EvidenceError, match="holds a damaged part of model"):
        kinds_of(tmp_path / MODEL)


def test_without_parts_the_file_itself_is_missing(tmp_path):
    with pytest.raises(EvidenceError, match=r"model\.safetensors does not exist"):
        read_whole(tmp_path / MODEL)


def test_the_same_tensors_are_the_same_bytes_and_readable(tmp_path):
    tensors = {"b": torch.ones(2), "a": torch.zeros(3), "step": torch.tensor(4.0)}
    data = part_bytes(tensors)
    assert data == part_bytes(dict(reversed(tensors.items())))
    (tmp_path / rank_part(MODEL, 0)).write_bytes(data)
    assert {name: tensor.tolist() for name, tensor in load_whole(tmp_path / MODEL).items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    assert load_tensors(tmp_path / rank_part(MODEL, 0)).keys() == tensors.keys()


def test_the_manifest_says_that_there_are_parts(tmp_path):
    for name in expected_files(2, sharded=True):
        (tmp_path / name).write_bytes(b"{}")
    manifest = make_manifest(tmp_path, 3, 2, sharded=True)
    write_json(tmp_path / "manifest.json", manifest)
    assert verify(tmp_path) == manifest
    assert manifest["sharded"] is True
    for wrong in ({**manifest, "sharded": False}, {**manifest, "sharded": 1}, {**manifest, "parts": True}):
        write_json(tmp_path / "manifest.json", wrong)
        with pytest.raises(CheckpointError, match="is damaged"):
            verify(tmp_path)
    assert "sharded" not in make_manifest_of_whole(tmp_path)


def make_manifest_of_whole(folder):
    for name in expected_files(2):
        (folder / name).write_bytes(b"{}")
    return make_manifest(folder, 3, 2)
