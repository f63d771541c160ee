"""One process; several ranks are in tests/distributed."""

import json
import os
import pickle
import pickletools
import random
import shutil
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch

from ddp_tokens import checkpoint
from ddp_tokens.checkpoint import TrainingState, load, save
from ddp_tokens.checkpoint_files import expected_files, make_manifest, verify
from ddp_tokens.config import Sgd
from ddp_tokens.determinism import seed_rank
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import read_json, write_json
from ddp_tokens.layout import checkpoints_in
from ddp_tokens.trainer import build_optimizer
from ddp_tokens.world import World
from tests.unit.training import adamw, advance, fresh_run, new_state, start_of

IDENTITY = {"seed": 17, "batch": 2}
OPTIMIZERS = {
    "momentum": lambda model: build_optimizer(model, Sgd()),
    "without momentum": lambda model: build_optimizer(model, Sgd(momentum=0)),
    "AdamW": adamw,
}


def draws():
    """Numbers from each generator, in the two ways that keep a second normal number for later."""
    return (
        random.random(),
        random.gauss(0, 1),
        float(numpy.random.random()),
        float(numpy.random.standard_normal()),
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
    )


def tensors_of(state):
    """Parameters, buffers, and every tensor of the optimizer's state."""
    tensors = dict(state.model.state_dict())
    for index, entries in state.optimizer.state_dict()["state"].items():
        tensors |= {f"{index}/{key}": value for key, value in entries.items()}
    return {name: value.clone() for name, value in tensors.items() if isinstance(value, torch.Tensor)}


def assert_same_tensors(left, right):
    assert set(left) == set(right)
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def make_optimizer(request):
    return request.param


@pytest.fixture
def saved(tmp_path):
    """A checkpoint after two updates, and the state that it holds."""
    state = fresh_run(2)
    save(tmp_path / "step-0002", state, IDENTITY, World())
    return tmp_path / "step-0002", state


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, make_optimizer):
    """With dropout, which draws in every update: parameters, optimizer, histories and all later draws are equal."""
    continuous = fresh_run(2, make_optimizer)
    save(tmp_path / "step-0002", continuous, IDENTITY, World())
    at_interruption = tensors_of(continuous)
    advance(continuous, 4)
    later = draws()
    assert any(not torch.equal(value, at_interruption[name]) for name, value in tensors_of(continuous).items())

    resumed = new_state(make_optimizer, seed=99)  # other weights and generators, which loading must replace
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    load(tmp_path / "step-0002", resumed, IDENTITY, World())
    assert_same_tensors(tensors_of(resumed), at_interruption)
    advance(resumed, 4)

    assert_same_tensors(tensors_of(resumed), tensors_of(continuous))
    assert resumed.history == continuous.history
    assert resumed.rank_history == continuous.rank_history
    assert draws() == later


def test_adamw_keeps_its_step_and_both_moments(tmp_path):
    state = fresh_run(2, adamw)
    save(tmp_path / "step-0002", state, IDENTITY, World())
    other = new_state(adamw, seed=99)
    load(tmp_path / "step-0002", other, IDENTITY, World())
    [group] = other.optimizer.param_groups
    assert (group["lr"], tuple(group["betas"])) == (0.01, (0.8, 0.9))
    for entries in other.optimizer.state_dict()["state"].values():
        assert set(entries) == {"step", "exp_avg", "exp_avg_sq"}
        assert float(entries["step"]) == 2


class Counting(torch.optim.SGD):
    """Keeps a whole number for each parameter, as SparseAdam does, beside SGD's tensors."""

    def step(self, closure=None):
        super().step(closure)
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            self.state[parameter]["updates"] = self.state[parameter].get("updates", 10 * index) + 1


def test_an_optimizer_may_keep_plain_values_and_a_parameter_any_name(tmp_path):
    def state_of(*values):
        """A ParameterDict takes names with a slash."""
        model = torch.nn.ParameterDict({"a/b": torch.tensor(values[0]), "c": torch.tensor(values[1])})
        return TrainingState(model, Counting(model.parameters(), lr=0.5, momentum=0.9))

    state = state_of(1.0, 2.0)
    for name, gradient in (("a/b", 3.0), ("c", 4.0)):
        state.model[name].grad = torch.tensor(gradient)
    state.optimizer.step()
    save(tmp_path / "step-0000", state, IDENTITY, World())
    assert read_json(tmp_path / "step-0000" / "common.json")["optimizer"]["state"] == {
        "a/b/updates": 1,
        "c/updates": 11,
    }
    other = state_of(0.0, 0.0)
    load(tmp_path / "step-0000", other, IDENTITY, World())
    assert other.optimizer.state_dict()["state"] == {
        0: {"momentum_buffer": torch.tensor(3.0), "updates": 1},
        1: {"momentum_buffer": torch.tensor(4.0), "updates": 11},
    }
    assert [value.item() for value in other.model.values()] == [1 - 0.5 * 3, 2 - 0.5 * 4]


def test_the_generator_of_a_gpu_is_kept_too(tmp_path, monkeypatch):
    """torch's calls for a GPU are replaced: this shows what is written and given back, not that a GPU draws again."""
    written, restored = torch.tensor([7, 0, 255], dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: written)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    state = fresh_run(1)
    save(tmp_path / "of a gpu", state, IDENTITY, World(device="cuda:0"))
    save(tmp_path / "of a cpu", state, IDENTITY, World())
    load(tmp_path / "of a cpu", new_state(), IDENTITY, World())
    assert restored == []
    load(tmp_path / "of a gpu", new_state(), IDENTITY, World())
    assert [value.tolist() for value in restored] == [[7, 0, 255]]
    held = safetensors.torch.load_file(tmp_path / "of a gpu" / "rank-0.safetensors")
    assert set(held) == {"torch_cpu", "torch_cuda"}


def test_the_second_normal_number_is_kept(tmp_path):
    """Python and numpy make normal numbers in pairs and keep the second: half of a pair is part of the state."""
    state = fresh_run(1)
    random.gauss(0, 1), numpy.random.standard_normal()
    save(tmp_path / "step-0001", state, IDENTITY, World())
    expected = random.gauss(0, 1), float(numpy.random.standard_normal())
    random.seed(1), numpy.random.seed(1)
    load(tmp_path / "step-0001", new_state(), IDENTITY, World())
    assert (random.gauss(0, 1), float(numpy.random.standard_normal())) == expected


def test_saving_draws_nothing(tmp_path):
    state = fresh_run(1)
    save(tmp_path / "step-0001", state, IDENTITY, World())
    after_saving = draws()
    load(tmp_path / "step-0001", new_state(), IDENTITY, World())
    assert draws() == after_saving


def test_a_second_resume_continues_every_count(tmp_path):
    """Known failure second-resume: train to 1, resume to 2, resume again to 4: histories hold all four updates."""
    continuous = fresh_run(4)
    save(tmp_path / "whole", continuous, IDENTITY, World())
    state = fresh_run(1)
    for until in (2, 4):
        save(tmp_path / "step", state, IDENTITY, World())
        state = new_state(seed=99)
        load(tmp_path / "step", state, IDENTITY, World())
        advance(state, until)
    save(tmp_path / "step", state, IDENTITY, World())
    assert [record["step"] for record in state.history] == [1, 2, 3, 4]
    assert [record["step"] for record in state.rank_history] == [1, 2, 3, 4]
    for name in [*expected_files(1), "manifest.json"]:
        assert (tmp_path / "step" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_same_state_gives_the_same_bytes(tmp_path, make_optimizer):
    state = fresh_run(2, make_optimizer)
    for name in ("a", "b"):
        save(tmp_path / name, state, IDENTITY, World())
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted([*expected_files(1), "manifest.json"])
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_was_loaded_is_saved_as_the_same_bytes(saved, tmp_path):
    other = new_state(seed=99)
    load(saved[0], other, IDENTITY, World())
    save(tmp_path / "again", other, IDENTITY, World())
    for path in saved[0].iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def is_pickle(data):
    try:
        list(pickletools.genops(data))
    except (ValueError, UnicodeDecodeError, IndexError):
        return False
    return True


def test_no_file_can_hold_code(tmp_path, make_optimizer):
    """Every file is whole JSON or whole safetensors; none is a pickle or a zip, which torch.save writes."""
    assert is_pickle(pickle.dumps({"a": 1}))
    save(tmp_path / "step-0002", fresh_run(2, make_optimizer), IDENTITY, World())
    for path in (tmp_path / "step-0002").iterdir():
        data = path.read_bytes()
        assert not data.startswith(b"PK")
        assert not is_pickle(data)
        json.loads(data) if path.suffix == ".json" else safetensors.torch.load(data)


def test_a_checkpoint_of_the_same_name_is_replaced_whole(saved):
    directory, state = saved
    (directory / "left over").write_text("from before")
    advance(state, 3)
    save(directory, state, IDENTITY, World())
    assert verify(directory)["step"] == 3
    assert not (directory / "left over").exists()
    assert list(directory.parent.iterdir()) == [directory]  # no temporary and no old directory beside it


def test_what_a_killed_process_left_beside_it_stops_no_later_save(saved):
    directory, state = saved
    for name in (".step-0002.tmp", ".step-0002.old"):
        (directory.parent / name / "folder").mkdir(parents=True)
    advance(state, 3)
    save(directory, state, IDENTITY, World())
    assert verify(directory)["step"] == 3
    assert list(directory.parent.iterdir()) == [directory]


def test_the_folders_above_a_checkpoint_are_made(tmp_path):
    directory = tmp_path / "runs" / "interrupt" / "step-0001"
    save(directory, fresh_run(1), IDENTITY, World())
    assert verify(directory)["step"] == 1


def test_a_failure_while_writing_keeps_the_old_checkpoint(saved):
    """Known failure killed-while-writing: what is half written has no checkpoint's name, and stops no later save."""
    directory, state = saved
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    advance(state, 3)
    whole = state.history[-1]
    state.history[-1] = whole | {"not for JSON": object()}
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(directory, state, IDENTITY, World())
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert checkpoints_in(directory.parent) == [directory]
    state.history[-1] = whole
    save(directory, state, IDENTITY, World())
    assert verify(directory)["step"] == 3
    assert list(directory.parent.iterdir()) == [directory]


def test_the_old_checkpoint_is_removed_only_when_the_new_one_has_its_name(saved, monkeypatch):
    """The injected fault: the process stops where the new checkpoint would take the name."""
    directory, state = saved
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    rename = os.rename

    def stop_at_the_name(source, target):
        if Path(target) == directory:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", stop_at_the_name)
    advance(state, 3)
    with pytest.raises(KeyboardInterrupt):
        save(directory, state, IDENTITY, World())
    contents = [{path.name: path.read_bytes() for path in kept.iterdir()} for kept in directory.parent.iterdir()]
    assert before in contents


def assert_refused_and_unchanged(directory, identity, error, match):
    state = new_state(seed=99)
    before, generators = tensors_of(state), (random.getstate(), torch.get_rng_state())
    with pytest.raises(error, match=match):
        load(directory, state, identity, World())
    assert_same_tensors(tensors_of(state), before)
    assert state.step == 0
    assert random.getstate() == generators[0]
    assert torch.equal(torch.get_rng_state(), generators[1])


@pytest.mark.parametrize("name", expected_files(1))
def test_an_altered_file_is_refused_before_anything_changes(saved, name):
    data = bytearray((saved[0] / name).read_bytes())
    data[-3] ^= 1
    (saved[0] / name).write_bytes(data)
    assert_refused_and_unchanged(saved[0], IDENTITY, CheckpointError, rf"step-0002/{name} was altered")


def test_another_identity_is_refused_before_anything_changes(saved):
    other = IDENTITY | {"batch": 4}
    problem = "step-0002 was written with batch 2, this run has 4"
    assert_refused_and_unchanged(saved[0], other, CheckpointError, problem)


def test_what_another_rank_refuses_is_refused_here_too(saved, monkeypatch):
    """The sum over ranks is replaced by that of a group in which one other rank refuses; real ones are in
    tests/distributed.
    """
    monkeypatch.setattr(checkpoint, "sum_over_ranks", lambda values, device: {"cpu": [values[0] + 1.0]}[device])
    with pytest.raises(CheckpointError, match="step-0002 cannot be used by 1 of 1 ranks, which say why"):
        load(saved[0], new_state(), IDENTITY, World())
    with pytest.raises(CheckpointError, match="step-0002 was written with batch 2"):  # its own reason comes first
        load(saved[0], new_state(), IDENTITY | {"batch": 4}, World())


class Payload:
    """Unpickling this writes a file: what a malicious checkpoint could do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "executed")


@pytest.mark.parametrize("manifest", ["of the original", "made to fit"])
def test_a_planted_pickle_is_refused_and_not_executed(saved, tmp_path, manifest):
    executed = tmp_path / "executed.txt"
    planted = pickle.dumps(Payload(executed))
    pickle.loads(planted)
    assert executed.exists()  # the payload is live
    executed.unlink()

    directory, _ = saved
    (directory / "model.safetensors").write_bytes(planted)
    if manifest == "made to fit":
        write_json(directory / "manifest.json", make_manifest(directory, step=2, world_size=1))
        assert_refused_and_unchanged(
            directory, IDENTITY, CheckpointError, r"model\.safetensors is not a whole safetensors file"
        )
    else:
        assert_refused_and_unchanged(directory, IDENTITY, CheckpointError, r"model\.safetensors was altered")
    assert not executed.exists()


def test_a_copied_checkpoint_is_as_good(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "elsewhere")
    state = new_state(seed=99)
    load(tmp_path / "elsewhere", state, IDENTITY, World())
    assert_same_tensors(tensors_of(state), tensors_of(saved[1]))


def with_extras(state):
    """A scheduler and a gradient scaler, as an experiment that has them would name them."""
    state.extras["scheduler"] = torch.optim.lr_scheduler.StepLR(state.optimizer, step_size=2, gamma=0.5)
    state.extras["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    return state


def scaled_update(state, until):
    for _ in advance(state, until):
        state.extras["scheduler"].step()
        scaler = state.extras["scaler"]
        scaler.scale(torch.zeros(()))  # makes the scaler's tensors, which its state_dict tells as numbers
        scaler._growth_tracker += 1


def test_a_scheduler_and_a_scaler_go_on_too(tmp_path):
    """Rate 0.02, halved after every second update: 0.02, 0.02, 0.01, 0.01, 0.005."""
    seed_rank(17, 0)
    state = with_extras(new_state())
    for until in (1, 2, 3):
        scaled_update(state, until)
    save(tmp_path / "step-0003", state, IDENTITY, World())
    extras = read_json(tmp_path / "step-0003" / "common.json")["extras"]
    assert (extras["scheduler"]["last_epoch"], extras["scheduler"]["_last_lr"]) == (3, [0.01])
    assert (extras["scaler"]["scale"], extras["scaler"]["_growth_tracker"]) == (1024.0, 3)

    resumed = with_extras(new_state(seed=99))
    assert resumed.extras["scaler"].state_dict()["_growth_tracker"] == 0
    load(tmp_path / "step-0003", resumed, IDENTITY, World())
    for name in ("scheduler", "scaler"):
        assert resumed.extras[name].state_dict() == state.extras[name].state_dict()
        part = f"extras.{name}"
        assert start_of(resumed).document["held"][part] == start_of(state).document["held"][part]
    for until in (4, 5):
        scaled_update(state, until)
    load(tmp_path / "step-0003", resumed, IDENTITY, World())
    for until in (4, 5):
        scaled_update(resumed, until)
    assert [group["lr"] for group in resumed.optimizer.param_groups] == [0.005]
    assert_same_tensors(tensors_of(resumed), tensors_of(state))
    for name, of in (("a", state), ("b", resumed)):
        save(tmp_path / name, of, IDENTITY, World())
    assert (tmp_path / "a" / "common.json").read_bytes() == (tmp_path / "b" / "common.json").read_bytes()


def test_an_extra_that_only_one_side_has_is_refused(tmp_path):
    save(tmp_path / "with", with_extras(fresh_run(2)), IDENTITY, World())
    save(tmp_path / "without", fresh_run(2), IDENTITY, World())
    with pytest.raises(CheckpointError, match=r"common\.json is of an optimizer with other parameters or settings"):
        load(tmp_path / "with", new_state(), IDENTITY, World())  # a scheduled group also holds its initial rate
    scaled = new_state()
    scaled.extras["scaler"] = torch.amp.GradScaler("cpu")
    with pytest.raises(CheckpointError, match=r"without/common\.json has no state of scaler, other than this run"):
        load(tmp_path / "without", scaled, IDENTITY, World())


@pytest.mark.parametrize("edit", [lambda state: state.pop("scale"), lambda state: state.update(more=1)])
def test_an_extra_with_other_parts_is_refused_before_anything_is_changed(tmp_path, edit):
    """GradScaler.load_state_dict would raise a KeyError, with weights and optimizer loaded already."""
    directory = tmp_path / "step-0002"
    save(directory, with_extras(fresh_run(2)), IDENTITY, World())
    document = read_json(directory / "common.json")
    edit(document["extras"]["scaler"])
    write_json(directory / "common.json", document)
    write_json(directory / "manifest.json", make_manifest(directory, step=2, world_size=1))
    state = with_extras(new_state(seed=99))
    before = tensors_of(state)
    with pytest.raises(CheckpointError, match=r"common\.json holds a state of scaler with other parts than this run's"):
        load(directory, state, IDENTITY, World())
    assert_same_tensors(tensors_of(state), before)


def test_an_extra_that_json_would_change_is_refused_when_written(tmp_path):
    """MultiStepLR counts its milestones by number; as text they would never be met again."""
    state = fresh_run(1)
    state.extras["scheduler"] = torch.optim.lr_scheduler.MultiStepLR(state.optimizer, milestones=[2, 3])
    with pytest.raises(CheckpointError, match="the state of scheduler has keys that are no text"):
        save(tmp_path / "step-0001", state, IDENTITY, World())
    assert not (tmp_path / "step-0001").exists()
