"""Which checkpoint a run that failed could go on from."""

from ddp_tokens.checkpoint_files import expected_files, make_manifest
from ddp_tokens.files import write_json
from ddp_tokens.identity import newest_usable

ALL = expected_files(2)
IDENTITY = {"seed": 17}


def write_checkpoint(directory, step, seed=17):
    directory.mkdir(parents=True)
    for name in ALL:
        (directory / name).write_bytes(b"content")
    write_json(directory / "common.json", {"identity": {"seed": seed}})
    write_json(directory / "manifest.json", make_manifest(directory, step, world_size=2))
    return directory


def test_the_latest_whole_checkpoint_that_this_run_could_resume_is_found(tmp_path):
    """By update, whichever folder it lies in; not by name alone: step-10000 comes after step-9000."""
    earlier = write_checkpoint(tmp_path / "interrupt" / "step-9000", 9000)
    hidden = write_checkpoint(tmp_path / ".continuous.0a1b" / "step-10000", 10000)
    altered = write_checkpoint(tmp_path / "interrupt" / "step-10001", 10001)
    (altered / "rank-1.json").write_text("altered")
    write_checkpoint(tmp_path / "resume" / "step-10002", 10002, seed=18)
    (write_checkpoint(tmp_path / "resume" / "step-10003", 10003) / "common.json").write_text("{")
    (write_checkpoint(tmp_path / "resume" / "step-10004", 10004) / "manifest.json").unlink()
    write_checkpoint(tmp_path / "resume" / ".step-10005.tmp", 10005)
    (tmp_path / "resume" / "step-10006").write_text("a file")
    assert newest_usable(tmp_path / ".run.1b0a", IDENTITY, before=20000) == hidden
    assert newest_usable(tmp_path / ".run.1b0a", IDENTITY, before=10000) == earlier
    assert newest_usable(tmp_path / ".run.1b0a", IDENTITY, before=9000) is None
    assert newest_usable(tmp_path / "nothing" / ".run.1b0a", IDENTITY, before=1) is None


def test_what_the_run_goes_on_from_by_itself_comes_before_a_later_one_of_another_run(tmp_path):
    own = write_checkpoint(tmp_path / ".continuous.0a1b" / "step-0035", 35)
    write_checkpoint(tmp_path / "interrupt" / "step-0050", 50)
    assert newest_usable(own.parent, IDENTITY, before=100) == own
    (own / "rank-1.json").write_text("altered")
    assert newest_usable(own.parent, IDENTITY, before=100) == tmp_path / "interrupt" / "step-0050"
