"""Which run a working checkpoint belongs to, and which one is used."""

import pytest

from ddp_tokens.checkpoint import load
from ddp_tokens.files import write_text
from ddp_tokens.working import Working, working_key
from ddp_tokens.world import World
from tests.unit.training import advance, fresh_run, new_state, start_of

GIVEN = {
    "run": "continuous",
    "until": 6,
    "identity": {"seed": 17, "plan.json": "ab", "torch": "2.13"},
    "world": World(),
    "code": {"src/ddp_tokens/trainer.py": "cd"},
    "resumed": None,
}


def test_all_ranks_find_the_same_folder():
    assert working_key(**GIVEN) == working_key(**GIVEN | {"world": World(rank=0, size=1)})
    two = [working_key(**GIVEN | {"world": World(rank, rank, 2)}) for rank in range(2)]
    assert two[0] == two[1] != working_key(**GIVEN)


@pytest.mark.parametrize(
    "change",
    [
        {"run": "interrupt"},
        {"until": 3},
        {"identity": GIVEN["identity"] | {"seed": 18}},
        {"identity": GIVEN["identity"] | {"plan.json": "ac"}},
        {"identity": GIVEN["identity"] | {"torch": "2.14"}},
        {"code": {"src/ddp_tokens/trainer.py": "ce"}},
        {"code": {"src/ddp_tokens/window.py": "cd"}},
    ],
)
def test_another_run_has_another_folder(change):
    assert working_key(**GIVEN | change) != working_key(**GIVEN)


def test_a_run_that_resumes_another_checkpoint_has_another_folder(tmp_path):
    keys = [working_key(**GIVEN)]
    for content in ("one", "two"):
        write_text(tmp_path / "manifest.json", content)
        keys.append(working_key(**GIVEN | {"resumed": tmp_path}))
    assert len(set(keys)) == 3


@pytest.fixture
def working(tmp_path):
    return Working(tmp_path / ".continuous.0123456789abcdef", every=2, keep=2, identity={}, world=World())


def saved(working, *steps):
    state = fresh_run(0)
    working.keep_start(start_of(state))
    for step in steps:
        advance(state, step)
        assert working.save(state).name == f"step-{step:04d}"


def left(working):
    return sorted(path.name for path in working.folder.iterdir())


def test_every_so_many_updates_but_not_at_the_last(working):
    assert [step for step in range(1, 7) if working.is_due(step, 6)] == [2, 4]


def test_never(tmp_path):
    never = Working(tmp_path, every=0, keep=2, identity={}, world=World())
    assert not any(never.is_due(step, 7) for step in range(1, 7))


def test_nothing_is_found_where_nothing_is(working):
    assert working.find() is None


def test_the_newest_is_found_and_the_last_two_are_kept(working):
    saved(working, 1, 2, 3)
    assert left(working) == ["start", "step-0002", "step-0003"]
    assert working.find() == working.folder / "step-0003"


def test_what_a_killed_process_left_half_written_is_not_found(working):
    saved(working, 1)
    (working.folder / ".step-0002.tmp").mkdir()
    (working.folder / "step-0003").mkdir()
    assert working.find() == working.folder / "step-0001"


def test_a_checkpoint_of_a_later_update_goes_when_the_run_comes_by_again(working):
    """It was skipped because it is damaged; it must not count among those that are kept."""
    saved(working, 1, 4)
    (working.folder / "step-0004" / "model.safetensors").unlink()
    state = new_state()
    load(working.find(), state, {}, World())
    advance(state, 2)
    working.save(state)
    assert left(working) == ["start", "step-0001", "step-0002"]


@pytest.mark.parametrize("name", ["manifest.json", "start-rank-0.json", "start-rank-0.safetensors"])
def test_without_its_first_start_a_run_starts_anew(working, caplog, name):
    saved(working, 1)
    (working.folder / "start" / name).unlink()
    assert working.find() is None
    assert caplog.messages == [f"warning: {working.folder}/start is damaged, so the run starts anew"]


def test_the_first_start_is_given_back(working):
    state = fresh_run(1)
    start = start_of(state)
    working.keep_start(start)
    advance(state, 3)
    found = working.first_start()
    assert found.document == start.document
    assert found.generators["torch_cpu"].equal(start.generators["torch_cpu"])


def test_all_folders_of_the_run_are_removed_and_no_others(working):
    saved(working, 1)
    runs = working.folder.parent
    for name in (".continuous.fedcba9876543210", ".interrupt.0123456789abcdef", "continuous", ".continuous.lock"):
        write_text(runs / name / "file", "content")
    working.remove("continuous")
    assert sorted(path.name for path in runs.iterdir()) == [
        ".continuous.lock",
        ".interrupt.0123456789abcdef",
        "continuous",
    ]
