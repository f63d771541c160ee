"""What a rebuild refuses before it starts anything, what it unpacks, and what it says of a chain that cannot run."""

import os

import pytest
import yaml

from ddp_tokens.archive import rebuild as module
from ddp_tokens.archive.chain import Chain
from ddp_tokens.archive.folders import require_buildable, unpack_project
from ddp_tokens.archive.rebuild import main
from ddp_tokens.archive.recorded import opened
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import sha256_of_bytes
from tests.unit.archive.archives import files_of, write_archive

SOURCE = {
    "source/Snakefile": "rule all:\n",
    "source/config/tiny.yaml": "seed: 5\n",
    "source/config/config.yaml": "experiments: [tiny, other]\nseed: 7\n",
    "source/results/README.md": "what lies here\n",
}


def archive_with(tmp_path, further=None, omitted=None, config="seed: 1\n"):
    return write_archive(tmp_path / "tiny.zip", files_of(config=config) | SOURCE | (further or {}), omitted=omitted)


def unpacked(archive, folder):
    with opened(archive) as run:
        unpack_project(run, folder)
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def refusal(archive, folder):
    with pytest.raises(ArchiveError) as caught:
        unpacked(archive, folder)
    return str(caught.value)


def test_source_inputs_and_the_archived_settings_are_unpacked(tmp_path):
    archive = archive_with(tmp_path, {"inputs/data/rows.jsonl": "{}\n", "source/data/README.md": "rows\n"})
    assert unpacked(archive, tmp_path / "new") == {
        "Snakefile": "rule all:\n",
        "config/tiny.yaml": "seed: 1\n",
        "config/config.yaml": "experiments:\n- tiny\n",
        "data/README.md": "rows\n",
        "data/rows.jsonl": "{}\n",
        "results/README.md": "what lies here\n",
    }


@pytest.mark.parametrize(
    "name",
    ["source/results/tiny/plan.json", "inputs/results/controls/x", "source/.snakemake/x", "inputs/.venv/installed"],
)
def test_what_would_be_taken_for_made_is_refused(tmp_path, name):
    told = refusal(archive_with(tmp_path, {name: "x"}), tmp_path / "new")
    assert f"{name} would be taken for something that the rebuild has made" in told
    assert not (tmp_path / "new").exists()


def test_a_file_of_source_and_inputs(tmp_path):
    archive = archive_with(tmp_path, {"inputs/config/tiny.yaml": "x"})
    assert "config/tiny.yaml is in the archive twice" in refusal(archive, tmp_path / "new")


def test_an_archive_without_source(tmp_path):
    archive = write_archive(tmp_path / "tiny.zip", files_of())
    assert "source/Snakefile is not in it" in refusal(archive, tmp_path / "new")


def left_out(name, data=b"rows"):
    return {name: {"sha256": sha256_of_bytes(data), "bytes": len(data), "made_by": "nobody"}}


@pytest.mark.parametrize("name", ["2024", "on", "null", "1e3", "tiny"])
def test_any_name_stays_a_name(tmp_path, name):
    archive = write_archive(tmp_path / "a.zip", files_of(name) | SOURCE, name)
    unpacked(archive, tmp_path / "new")
    assert yaml.safe_load((tmp_path / "new" / "config" / "config.yaml").read_text()) == {"experiments": [name]}


def test_a_file_in_the_place_of_the_results(tmp_path):
    """It is no result of this experiment: whether the chain can run beside it is seen when it does."""
    archive = write_archive(tmp_path / "a.zip", files_of() | {"source/Snakefile": "", "source/results": "a file"})
    assert unpacked(archive, tmp_path / "new")["results"] == "a file"


@pytest.mark.parametrize("name", ["source/docs/large.png", "inputs/data/rows.jsonl"])
def test_what_was_left_out_and_is_needed(tmp_path, name):
    archive = archive_with(tmp_path, omitted=left_out(name))
    assert f"{name} was left out as too large" in refusal(archive, tmp_path / "new")


def test_results_that_were_left_out_are_made_again(tmp_path):
    archive = archive_with(tmp_path, omitted=left_out("results/tiny/initial.safetensors"))
    assert "Snakefile" in unpacked(archive, tmp_path / "new")


def test_rows_that_lie_elsewhere_must_lie_there(tmp_path):
    rows = tmp_path / "elsewhere" / "rows.jsonl"
    config = f"corpus: {{kind: own, path: {rows}}}\n"
    archive = archive_with(tmp_path, omitted=left_out(f"inputs{rows}"), config=config)
    assert f"the experiment reads {rows}, which is no part of the archive" in refusal(archive, tmp_path / "new")
    rows.parent.mkdir()
    rows.write_bytes(b"others")
    assert "put the file with SHA-256" in refusal(archive, tmp_path / "new")
    rows.write_bytes(b"rows")
    assert "Snakefile" in unpacked(archive, tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "what"),
    [("a b", "a space"), ("a:b", "':'"), ("a$b", "'$'"), ("a'b", '"\'"'), ("a{b", "'{'"), ("a}b", "'}'")],
)
def test_a_path_in_which_nothing_can_be_built(tmp_path, name, what):
    with pytest.raises(
        ArchiveError, match=r"nothing can be built in a folder with .* in its path: name another"
    ) as told:
        require_buildable(tmp_path / name / "new")
    assert what.strip('"') in str(told.value)
    require_buildable(tmp_path / "a_b" / "new")


def test_a_link_that_leads_into_such_a_path(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    with pytest.raises(ArchiveError, match="a space in its path"):
        main("rebuild", [str(archive_with(tmp_path)), "--into", str(tmp_path / "link")])


def test_a_folder_that_holds_something(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("")
    with pytest.raises(ArchiveError, match="new is not empty: name a folder that is not there yet, or an empty one"):
        main("rebuild", [str(archive_with(tmp_path)), "--into", str(tmp_path / "new")])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine"]


def test_an_altered_archive_is_not_unpacked(tmp_path):
    archive = archive_with(tmp_path)
    data = archive.read_bytes()
    assert data.count(b"rule all:\n") == 1
    archive.write_bytes(data.replace(b"rule all:\n", b"rule bad:\n"))
    with pytest.raises(ArchiveError, match="source/Snakefile"):
        main("rebuild", [str(archive), "--into", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--cores", "--limit-gib"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_numbers_must_be_positive(tmp_path, capsys, option, value):
    with pytest.raises(SystemExit) as ended:
        main("rebuild", ["tiny.zip", "--into", str(tmp_path / "new"), option, value])
    assert ended.value.code == 2
    assert "a whole number from 1 is needed" in capsys.readouterr().err


@pytest.fixture
def chain_that(tmp_path, monkeypatch):
    """Puts a shell script in the place of the Python that runs Snakemake."""

    def replace(script):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setattr(module, "with_this_python", lambda folder: Chain(folder.resolve(), python, os.environ))
        return ["--into", str(tmp_path / "new"), "--use-this-python"]

    return replace


def test_nothing_could_be_built(tmp_path, chain_that, capsys):
    arguments = chain_that('echo "LaunchError in file x, line 1:"; echo device cuda needs 2 GPUs; exit 1')
    with pytest.raises(
        ArchiveError, match=r"nothing could be built: device cuda needs 2 GPUs \(.*rebuild\.log has all"
    ):
        main("rebuild", [str(archive_with(tmp_path)), *arguments])


def test_an_interruption_says_what_is_left_where(tmp_path, chain_that, capsys):
    arguments = chain_that("kill -INT $PPID; sleep 600")
    assert main("rebuild", [str(archive_with(tmp_path)), *arguments]) == 130
    told = capsys.readouterr().err
    assert f"rebuild: interrupted; {tmp_path / 'new'} holds what was unpacked and built until now" in told
    assert (tmp_path / "new" / "Snakefile").exists()


def test_verdicts_that_are_not_reached_are_missing(tmp_path, chain_that, capsys):
    """A chain that makes a plan and fails: settings are told by the archived source, here by the script."""
    script = 'test "$1" = -c && { cat config/tiny.yaml 2> /dev/null; exit; }; mkdir -p results/tiny; '
    arguments = chain_that(script + "echo '[]' > results/tiny/plan.json; exit 1")
    checks = {"check": "loss", "verdicts": [{**VERDICT}]}
    further = {"results/tiny/plan.json": "[]\n", "results/tiny/checks/loss.json": checks}
    assert main("rebuild", [str(archive_with(tmp_path, further)), *arguments]) == 1
    out = capsys.readouterr().out
    assert "loss/global_mean was not reached again" in out
    assert "results/tiny/checks/loss.json" in out.split("Missing:")[1]
    assert "does NOT confirm" in out
    assert (tmp_path / "new" / "rebuild.json").exists()


VERDICT = {
    "case": "global_mean",
    "expected": "pass",
    "outcome": "pass",
    "criterion": "",
    "observed": {},
    "evidence": {},
}
