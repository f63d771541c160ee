import pytest

from ddp_tokens.checkpoint_files import expected_files, make_manifest, verify
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import read_json, write_json

ALL = [
    "common.json",
    "model.safetensors",
    "optimizer.safetensors",
    "rank-0.json",
    "rank-0.safetensors",
    "rank-1.json",
    "rank-1.safetensors",
]


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "step-0002"
    directory.mkdir()
    for name in ALL:
        (directory / name).write_bytes(f"content of {name}".encode())
    write_json(directory / "manifest.json", make_manifest(directory, step=2, world_size=2))
    return directory


def test_the_files_of_two_ranks():
    assert expected_files(2) == ALL


def test_a_whole_checkpoint_gives_its_manifest(checkpoint):
    manifest = verify(checkpoint)
    assert (manifest["step"], manifest["world_size"], sorted(manifest["sha256"])) == (2, 2, ALL)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="step-0009 does not exist: train that run"):
        verify(tmp_path / "step-0009")


def test_a_file_in_its_place_is_named(tmp_path):
    (tmp_path / "README.md").touch()
    with pytest.raises(CheckpointError, match=r"README\.md is a file, not a folder: train that run"):
        verify(tmp_path / "README.md")


def test_the_folder_of_a_run_is_answered_with_its_checkpoint(checkpoint):
    with pytest.raises(CheckpointError, match=f"is not a checkpoint but holds one: name {checkpoint}"):
        verify(checkpoint.parent)


def test_without_a_manifest_it_is_incomplete(checkpoint):
    """The manifest is written last: a process killed while writing leaves none."""
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-0002 is incomplete, it has no manifest\.json"):
        verify(checkpoint)


DAMAGE = {
    "truncated": '{"step": 2, "sha',
    "a list": "[]",
    "without digests": '{"step": 2, "world_size": 2}',
    "world size is text": '{"step": 2, "world_size": "2", "sha256": {}}',
    "digests are null": '{"step": 2, "world_size": 2, "sha256": null}',
}


@pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_manifest_is_refused(checkpoint, text):
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        verify(checkpoint)


def test_a_manifest_without_its_step_is_damaged(checkpoint):
    manifest = read_json(checkpoint / "manifest.json")
    del manifest["step"]
    write_json(checkpoint / "manifest.json", manifest)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        verify(checkpoint)


@pytest.mark.parametrize("name", ALL)
def test_a_missing_file_is_refused_by_name(checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=f"step-0002 is incomplete, {name} is missing"):
        verify(checkpoint)


@pytest.mark.parametrize("name", ALL)
def test_one_altered_bit_is_refused_by_name(checkpoint, name):
    data = bytearray((checkpoint / name).read_bytes())
    data[3] ^= 1
    (checkpoint / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"step-0002/{name} was altered"):
        verify(checkpoint)


def test_a_file_that_the_manifest_does_not_list_is_refused(checkpoint):
    manifest = read_json(checkpoint / "manifest.json")
    del manifest["sha256"]["rank-1.json"]
    write_json(checkpoint / "manifest.json", manifest)
    with pytest.raises(CheckpointError, match=r"rank-1\.json is missing"):
        verify(checkpoint)


def test_an_unexpected_file_is_refused_by_name(checkpoint):
    (checkpoint / "payload.bin").write_bytes(b"who knows")
    with pytest.raises(CheckpointError, match=r"payload\.bin"):
        verify(checkpoint)
