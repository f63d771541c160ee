"""A start record says what a checkpoint at the same moment would hold."""

import json

import pytest
import torch

from ddp_tokens.checkpoint import load, save
from ddp_tokens.checkpoint_files import MODEL, OPTIMIZER
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.files import read_json, sha256_of_bytes, sha256_of_json
from ddp_tokens.generators import read_generators
from ddp_tokens.start import take_start, write_start
from ddp_tokens.world import World
from tests.unit.training import adamw, advance, fresh_run, new_state, start_of


@pytest.fixture(params=[None, adamw], ids=["momentum", "AdamW"])
def state(request):
    return fresh_run(2, request.param)


def test_its_digests_are_those_of_a_checkpoint(state, tmp_path):
    save(tmp_path / "step", state, {}, World())
    held = start_of(state).document["held"]
    manifest = read_json(tmp_path / "step" / "manifest.json")["sha256"]
    common, of_rank = read_json(tmp_path / "step" / "common.json"), read_json(tmp_path / "step" / "rank-0.json")
    torch_cpu = read_arrays(tmp_path / "step" / "rank-0.safetensors")["torch_cpu"]
    assert held == {
        MODEL: manifest[MODEL],
        OPTIMIZER: manifest[OPTIMIZER],
        "optimizer_scalars": sha256_of_json(common["optimizer"]),
        "history": sha256_of_json(common["history"]),
        "rank_history": sha256_of_json(of_rank["history"]),
        "python": sha256_of_json(of_rank["python"]),
        "numpy": sha256_of_json(of_rank["numpy"]),
        "torch_cpu": sha256_of_bytes(torch_cpu.tobytes()),
    }
    assert len(set(held.values())) == len(held)


def test_loading_a_checkpoint_gives_its_start_back(state, tmp_path):
    save(tmp_path / "step", state, {}, World())
    before = start_of(state).document
    advance(state, 3)
    assert start_of(state).document["held"] != before["held"]
    save(tmp_path / "later", state, {}, World())
    load(tmp_path / "step", state, {}, World())
    assert start_of(state).document == before


def test_taking_it_draws_nothing_and_changes_nothing(state):
    first = start_of(state)
    assert start_of(state).document == first.document
    drawn = torch.rand(2)
    torch.set_rng_state(first.generators["torch_cpu"])
    assert torch.equal(torch.rand(2), drawn)


def test_later_updates_do_not_change_what_was_taken(state):
    start = start_of(state)
    before = json.dumps(start.document), start.generators["torch_cpu"].clone()
    advance(state, 4)
    assert json.dumps(start.document) == before[0]
    assert torch.equal(start.generators["torch_cpu"], before[1])
    assert not torch.equal(torch.get_rng_state(), before[1])


def test_a_new_run_starts_with_nothing_done():
    document = start_of(new_state()).document
    assert (document["rank"], document["step"]) == (0, 0)
    assert document["records"] == {"history": 0, "rank_history": 0}
    assert document["tensors"][OPTIMIZER] == 0
    assert document["tensors"][MODEL] == len(new_state().model.state_dict()) > 10


def test_its_files(state, tmp_path):
    when_seeded = read_generators("cpu").digests
    torch.rand(1)
    start = take_start(state, when_seeded, World(rank=1, size=2))
    write_start(tmp_path, start, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start-rank-1.json", "start-rank-1.safetensors"]
    document = read_json(tmp_path / "start-rank-1.json")
    assert document == start.document
    assert document["generators_when_seeded"]["torch_cpu"] != document["held"]["torch_cpu"]
    assert document["generators_when_seeded"]["numpy"] == document["held"]["numpy"]
    [(name, array)] = read_arrays(tmp_path / "start-rank-1.safetensors").items()
    assert (name, sha256_of_bytes(array.tobytes())) == ("torch_cpu", document["held"]["torch_cpu"])
