"""Each kind of damaged or foreign checkpoint is refused by name, on both of its ranks alike, before anything changes.

The checkpoint is of two ranks, in one process; real ranks are in tests/distributed/test_train_command.py.
"""

import json
import pickle
import random
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from ddp_tokens import checkpoint
from ddp_tokens.checkpoint import TrainingState, load, save
from ddp_tokens.checkpoint_files import expected_files, make_manifest
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import read_json, sha256, sha256_of_json, write_json
from ddp_tokens.identity import NOTHING, Allowed
from ddp_tokens.world import World
from tests.unit.training import adamw, advance, fresh_run, new_state

WORLDS = [World(rank, rank, 2) for rank in range(2)]
IDENTITY = {
    "model": {"width": 8},
    "optimizer": {"lr": 0.02},
    "seed": 17,
    "threads_per_rank": 1,
    "world_size": 2,
    "plan.json": "p1",
    "rows.jsonl": "r1",
    "initial.safetensors": "i1",
    "code": "c1",
    "torch": "2.13.0",
    "python": "3.11.7",
}


def save_for_two(directory, state, identity, monkeypatch):
    """As two ranks do: the second writes its part where both wait for each other."""
    temporary = directory.with_name(f".{directory.name}.tmp")

    def second_rank():
        if temporary.exists() and not (temporary / "rank-1.json").exists():
            generators = torch.get_rng_state()
            torch.manual_seed(1)  # the ranks' generators differ
            checkpoint._write_rank_part(temporary, state, identity, WORLDS[1])
            torch.set_rng_state(generators)

    @contextmanager
    def together(*_):
        yield
        second_rank()

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "together", together)
        save(directory, state, identity, WORLDS[0])


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """of_2: update 2. of_3: update 3 of the same run. of_seed: another run. of_adamw: another optimizer."""
    folder = tmp_path_factory.mktemp("originals")
    with pytest.MonkeyPatch.context() as monkeypatch:
        state = fresh_run(2)
        save_for_two(folder / "of_2", state, IDENTITY, monkeypatch)
        advance(state, 3)
        save_for_two(folder / "of_3", state, IDENTITY, monkeypatch)
        other = new_state(seed=5)
        advance(other, 2)
        save_for_two(folder / "of_seed", other, IDENTITY | {"seed": 18}, monkeypatch)
        save_for_two(folder / "of_adamw", fresh_run(2, adamw), IDENTITY, monkeypatch)
    return folder


@pytest.fixture
def at(originals, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(originals / "of_2", tmp_path / "step-0002")


def snapshot(state):
    tensors = [*state.model.state_dict().values()]
    tensors += [v for entries in state.optimizer.state.values() for v in entries.values() if torch.is_tensor(v)]
    return [tensor.clone() for tensor in tensors], len(state.history), len(state.rank_history)


def generators():
    return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def refusal(directory, identity=IDENTITY, allowed=NOTHING, make_state=new_state):
    """The sentence that both ranks say; nothing has changed."""
    said = []
    for world in WORLDS:
        state = make_state()
        before, drawn = snapshot(state), generators()
        with pytest.raises(CheckpointError) as caught:
            load(directory, state, identity, world, allowed)
        after = snapshot(state)
        assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
        assert (before[1:], drawn) == (after[1:], generators())
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "\n" not in said[0]
    return said[0]


def test_the_undamaged_one_is_loaded(at, originals):
    """Or every refusal below would prove nothing; each of the foreign ones is whole as well."""
    for world in WORLDS:
        state = new_state(seed=99)
        assert load(at, state, IDENTITY, world) == IDENTITY
        assert state.step == 2
    load(originals / "of_3", new_state(), IDENTITY, WORLDS[1])
    load(originals / "of_seed", new_state(), IDENTITY | {"seed": 18}, WORLDS[1])
    load(originals / "of_adamw", new_state(adamw), IDENTITY, WORLDS[1])


# How a file is damaged. With `seal`, everything that one file states of another is made to fit: the hardest case.


def seal(at, *, ties=True):
    if ties:
        common = read_json(at / "common.json")
        common["sha256"] = {name: sha256(at / name) for name in ("model.safetensors", "optimizer.safetensors")}
        write_json(at / "common.json", common)
        for rank in range(2):
            part = read_json(at / f"rank-{rank}.json")
            part["generators_sha256"] = sha256(at / f"rank-{rank}.safetensors")
            part["identity_sha256"] = sha256_of_json(common["identity"])
            write_json(at / f"rank-{rank}.json", part)
    write_json(at / "manifest.json", make_manifest(at, read_json(at / "manifest.json")["step"], 2))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def make_folder(path):
    path.unlink()
    path.mkdir()


FILES = expected_files(2)
ALTERED = "{} was altered"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, ALTERED),
        (empty, ALTERED),
        (flip, ALTERED),
        (Path.unlink, "is incomplete, {} is missing"),
        (make_folder, "{} is a folder, not a file"),
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file(at, name, damage, said):
    damage(at / name)
    sentence = refusal(at)
    assert said.format(name) in sentence
    assert str(at) in sentence


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "manifest.json is damaged"),
        (empty, "manifest.json is damaged"),
        (Path.unlink, "it has no manifest.json"),
        (make_folder, "it has no manifest.json"),
    ],
)
def test_a_damaged_manifest(at, damage, said):
    damage(at / "manifest.json")
    assert said in refusal(at)


def edit(at, name, change):
    """Change a JSON file in place; `change` may also give another document."""
    document = read_json(at / name)
    changed = change(document)
    write_json(at / name, document if changed is None else changed)


def foreign(source, *names, ties=False):
    """Files of another checkpoint, under a manifest made anew."""

    def damage(at, originals):
        for name in names:
            shutil.copy(originals / source / name, at / name)
        seal(at, ties=ties)

    return damage


def swap_ranks(*suffixes):
    def damage(at, originals):
        for suffix in suffixes:
            one, other = (at / f"rank-{rank}.{suffix}" for rank in range(2))
            kept = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(kept)
        seal(at, ties=False)

    return damage


def manifest(change):
    return lambda at, originals: edit(at, "manifest.json", change)


def document(name, change, *, ties=True):
    def damage(at, originals):
        edit(at, name, change)
        seal(at, ties=ties)

    return damage


def text(name, *replaced, ties=False):
    def damage(at, originals):
        content = (at / name).read_text()
        assert content.count(replaced[0]) >= 1
        (at / name).write_text(content.replace(*replaced, 1))
        seal(at, ties=ties)

    return damage


def tensors(name, change):
    def damage(at, originals):
        content = load_file(at / name)
        change(content)
        save_file(content, at / name)
        seal(at)

    return damage


def rename(old, new):
    return lambda content: content.update({new: content.pop(old)})


def grow(number):
    """A generator's state with a word too many or another type."""
    return lambda content: content.update(torch_cpu=number(content["torch_cpu"]))


def unknown_file(at, originals):
    (at / "payload.pt").write_bytes(b"who knows")


def replace_by_file(at, originals):
    shutil.rmtree(at)
    at.write_text("not a folder")


BIAS, MOMENTUM = "head.bias", "head.bias/momentum_buffer"
NO_RECORDS = "does not hold the records of updates 1 to 2, each once"
DAMAGE = {
    # what is there
    "a file that nobody knows": (unknown_file, "payload.pt does not belong to the checkpoint"),
    "a file in place of the folder": (replace_by_file, "step-0002 is a file, not a folder"),
    "no folder at all": (lambda at, originals: shutil.rmtree(at), "step-0002 does not exist"),
    # the manifest
    "manifest of another checkpoint": (
        lambda at, originals: shutil.copy(originals / "of_3" / "manifest.json", at),
        "common.json was altered",
    ),
    "manifest lists a file too few": (
        manifest(lambda m: m["sha256"].pop("rank-1.json") and None),
        "incomplete, rank-1.json is missing",
    ),
    "manifest lists a file elsewhere": (
        manifest(lambda m: m["sha256"].update({"../elsewhere.json": "0" * 64})),
        r"manifest.json lists ../elsewhere.json, which is no file of a checkpoint",
    ),
    "manifest of one rank": (manifest(lambda m: m.update(world_size=1)), "manifest.json lists rank-1.json"),
    "manifest of a million ranks": (manifest(lambda m: m.update(world_size=10**6)), "manifest.json is damaged"),
    "manifest of no rank": (manifest(lambda m: m.update(world_size=0)), "manifest.json is damaged"),
    "manifest whose step is true": (manifest(lambda m: m.update(step=True)), "manifest.json is damaged"),
    "manifest of another update": (manifest(lambda m: m.update(step=3)), "common.json does not hold the records"),
    "manifest with a field twice": (
        lambda at, originals: (at / "manifest.json").write_text(
            (at / "manifest.json").read_text().replace('"step": 2', '"step": 2, "step": 2')
        ),
        "manifest.json is damaged, it is not valid JSON (the field step stands there twice)",
    ),
    # parts of another checkpoint, under a manifest made anew
    "both files of both ranks swapped": (swap_ranks("json", "safetensors"), "rank-0.json is of rank 1"),
    "JSON of both ranks swapped": (swap_ranks("json"), "rank-0.json is of rank 1"),
    "generators of both ranks swapped": (
        swap_ranks("safetensors"),
        "rank-0.json does not belong to rank-0.safetensors beside it",
    ),
    "weights of another update": (foreign("of_3", "model.safetensors"), "model.safetensors is not the one that common"),
    "momentum of another update": (
        foreign("of_3", "optimizer.safetensors"),
        "optimizer.safetensors is not the one that common.json was written with",
    ),
    "common part of another update": (
        foreign("of_3", "common.json", "model.safetensors", "optimizer.safetensors"),
        f"common.json {NO_RECORDS}",
    ),
    "a rank of another update": (
        foreign("of_3", "rank-1.json", "rank-1.safetensors"),
        "rank-1.json is of update 3, not 2",
    ),
    "a rank of another run": (
        foreign("of_seed", "rank-1.json", "rank-1.safetensors"),
        "rank-1.json is of a run with another identity than common.json states",
    ),
    "common part of another run": (
        foreign("of_seed", "common.json", "model.safetensors", "optimizer.safetensors"),
        "rank-0.json is of a run with another identity",
    ),
    # JSON, every digest made to fit
    "NaN": (
        text("common.json", '"lr": 0.02', '"lr": NaN'),
        "common.json is damaged, it is not valid JSON (NaN is not a",
    ),
    "an infinity": (text("rank-1.json", '"loss_sum": ', '"loss_sum": 1e999, "x": '), "rank-1.json is damaged"),
    "a field twice": (text("rank-0.json", '"rank": 0', '"rank": 0, "rank": 0'), "(the field rank stands there twice)"),
    "nested too deeply": (
        lambda at, originals: ((at / "rank-0.json").write_text("[" * 10**5), seal(at, ties=False)),
        "rank-0.json is damaged",
    ),
    "a list": (
        lambda at, originals: (write_json(at / "rank-1.json", []), seal(at, ties=False)),
        "rank-1.json is no JSON obj",
    ),
    "a field too few": (
        document("rank-1.json", lambda d: d.pop("numpy") and None),
        "rank-1.json: the field numpy is missing",
    ),
    "a field too many": (
        document("common.json", lambda d: d.update(pickled="gASV")),
        "the field pickled does not belong",
    ),
    "a field of another type": (
        document("common.json", lambda d: d.update(history={})),
        "the field history is missing or of",
    ),
    "a history that is shorter": (
        document("common.json", lambda d: d["history"].pop() and None),
        f"common.json {NO_RECORDS}",
    ),
    "a history out of order": (document("common.json", lambda d: d["history"].reverse()), f"common.json {NO_RECORDS}"),
    "a rank's history that is shorter": (
        document("rank-1.json", lambda d: d["history"].pop(0) and None),
        f"rank-1.json {NO_RECORDS}",
    ),
    "a history of numbers": (document("rank-0.json", lambda d: d.update(history=[1, 2])), f"rank-0.json {NO_RECORDS}"),
    "a generator's state of text": (
        document("rank-1.json", lambda d: d.update(python=["words", None])),
        "rank-1.safetensors or the JSON beside it holds no states of this run's generators",
    ),
    "a generator's position beyond its words": (
        document("rank-0.json", lambda d: d["numpy"].__setitem__(2, 10**6)),
        "rank-0.safetensors or the JSON beside it holds no states",
    ),
    "inexact in a way unknown": (
        document("common.json", lambda d: d["identity"].update(inexact=True)),
        "common.json: the field identity is damaged at inexact",
    ),
    # tensors, every digest made to fit
    "weights of another shape": (
        tensors("model.safetensors", lambda t: t.update({BIAS: torch.zeros(5)})),
        "model.safetensors holds head.bias as float32[5], this run's model as float32[4]",
    ),
    "weights of another type": (
        tensors("model.safetensors", lambda t: t.update({BIAS: t[BIAS].double()})),
        "model.safetensors holds head.bias as float64[4], this run's model as float32[4]",
    ),
    "weights of another name": (
        tensors("model.safetensors", rename(BIAS, "head.offset")),
        "model.safetensors holds head.bias as nothing",
    ),
    "weights too few": (tensors("model.safetensors", lambda t: t.pop(BIAS).sum() and None), "head.bias as nothing"),
    "momentum of another shape": (
        tensors("optimizer.safetensors", lambda t: t.update({MOMENTUM: torch.zeros(1, 4)})),
        "optimizer.safetensors holds head.bias/momentum_buffer as float32[1, 4], its parameter is float32[4]",
    ),
    "momentum of another type": (
        tensors("optimizer.safetensors", lambda t: t.update({MOMENTUM: t[MOMENTUM].half()})),
        "momentum_buffer as float16[4]",
    ),
    "momentum of no parameter": (
        tensors("optimizer.safetensors", rename(MOMENTUM, "tail.bias/momentum_buffer")),
        "optimizer.safetensors holds tail.bias/momentum_buffer, a state of no parameter",
    ),
    "another optimizer": (
        foreign("of_adamw", "common.json", "optimizer.safetensors", "model.safetensors", ties=True),
        "common.json is of an optimizer with other parameters or settings",
    ),
    "an optimizer of other parameters": (
        document("common.json", lambda d: d["optimizer"]["param_groups"][0]["params"].reverse()),
        "common.json is of an optimizer with other parameters",
    ),
    "an optimizer without groups": (
        document("common.json", lambda d: d.update(optimizer={})),
        "the field optimizer is damaged",
    ),
    "a generator too short": (
        tensors("rank-1.safetensors", grow(lambda t: t[:-8].clone())),
        "rank-1.safetensors or the",
    ),
    "a generator of floats": (tensors("rank-1.safetensors", grow(lambda t: t.float())), "rank-1.safetensors or the"),
    "a generator of another name": (
        tensors("rank-0.safetensors", rename("torch_cpu", "torch_tpu")),
        "rank-0.safetensors or the",
    ),
    "a scheduler that this run has not": (
        document("common.json", lambda d: d["extras"].update(scheduler={"last_epoch": 2})),
        "common.json has a state of scheduler, other than this run",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_or_foreign_checkpoint(at, originals, kind):
    damage, said = DAMAGE[kind]
    damage(at, originals)
    sentence = refusal(at)
    assert said in sentence
    assert "step-0002" in sentence


OTHER = {
    "seed": (18, "was written with seed 17, this run has 18: resume with the same settings"),
    "model": ({"width": 16}, "was written with model {'width': 8}, this run has {'width': 16}"),
    "optimizer": ({"lr": 1}, "was written with optimizer "),
    "rows.jsonl": ("r2", "was written with rows.jsonl r1, this run has r2"),
    "plan.json": ("p2", "was written with plan.json p1, this run has p2: resume with the same settings"),
    "initial.safetensors": ("i2", "was written with initial.safetensors i1, this run has i2"),
    "code": ("c2", "was written with code c1, this run has c2"),
    "world_size": (3, "was written with world_size 2, this run has 3: start 2 ranks, or add --allow-repartition"),
    "threads_per_rank": (2, "was written with threads_per_rank 1, this run has 2, which can change bits"),
    "torch": ("2.14", "was written with torch 2.13.0, this run has 2.14, which can change bits"),
    "python": ("3.12", "was written with python 3.11.7, this run has 3.12, which can change bits"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_run_that_differs(at, name):
    value, said = OTHER[name]
    assert f"{at} {said}" in refusal(at, IDENTITY | {name: value})


@pytest.mark.parametrize("allowed", [Allowed(inexact=True), Allowed(repartition=True)])
@pytest.mark.parametrize(
    "name", ["seed", "model", "optimizer", "rows.jsonl", "plan.json", "initial.safetensors", "code"]
)
def test_no_flag_lets_another_path_pass(at, name, allowed):
    assert f"was written with {name} " in refusal(at, IDENTITY | {name: OTHER[name][0]}, allowed)


def test_a_model_of_other_names(at):
    def with_another_head():
        state = new_state()
        state.model.tail = state.model.head
        del state.model.head
        return TrainingState(state.model, torch.optim.SGD(state.model.parameters(), lr=0.02, momentum=0.9))

    sentence = refusal(at, make_state=with_another_head)
    assert "model.safetensors holds head.bias as float32[4], this run's model as nothing" in sentence


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "executed")


@pytest.mark.parametrize("sealed", ["manifest of the original", "manifest made anew", "everything made to fit"])
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_pickle_in_place_of_each_file_is_refused_and_not_executed(at, tmp_path, name, sealed):
    executed = tmp_path / "executed.txt"
    bomb = pickle.dumps(Bomb(executed))
    pickle.loads(bomb)
    assert executed.exists()  # it is live
    executed.unlink()

    (at / name).write_bytes(bomb)
    if name != "manifest.json" and sealed != "manifest of the original":
        seal(at, ties=sealed == "everything made to fit" and name.endswith(".safetensors"))
    sentence = refusal(at)
    assert name in sentence
    if name == "manifest.json" or sealed != "manifest of the original":
        assert "is not valid JSON" in sentence or "is not a whole safetensors file" in sentence
    assert not executed.exists()


def test_there_are_enough_kinds():
    assert len(DAMAGE) + len(OTHER) > 50
    assert len({json.dumps(said) for _, said in DAMAGE.values()}) > 35
