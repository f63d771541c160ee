"""What a rebuild refuses before it starts anything, what it unpacks, and what it says of a chain that cannot run."""

import os
import signal

import pytest
import yaml

from ddp_tokens.archive import rebuild as module
from ddp_tokens.archive.chain import Chain
from ddp_tokens.archive.collect import OF_CONTROLS, OF_EXPERIMENT, result_files
from ddp_tokens.archive.folders import require_buildable, unpack_project
from ddp_tokens.archive.rebuild import main, rebuilt_files
from ddp_tokens.archive.recorded import opened
from ddp_tokens.config import Experiment
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import read_json, sha256_of_bytes, write_bytes
from tests.unit.archive.archives import as_bytes, files_of, write_archive

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


@pytest.mark.parametrize(
    ("option", "told"), [("--cores", "a whole number from 1 is needed"), ("--limit-gib", "argument --limit-gib")]
)
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_numbers_must_be_positive(tmp_path, capsys, option, told, value):
    with pytest.raises(SystemExit) as ended:
        main("rebuild", ["tiny.zip", "--into", str(tmp_path / "new"), option, value])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


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


@pytest.fixture
def heeding_ctrl_c():
    """As a terminal starts a program; one that is started in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_says_what_is_left_where(tmp_path, chain_that, capsys, heeding_ctrl_c):
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


MADE_UP = {
    "results/tiny/plan.json": "[]\n",
    "results/tiny/evaluation.json": {"test": {"loss": 0.5, "accuracy": 0.54, "units": 1000}},
    "results/controls/config.yaml": "seed: 2\n",
    "results/controls/trained/lost/history.jsonl": '{"loss": 1.0}\n',
    "source/config/controls.yaml": "seed: 2\n",
}


def made_up(**changes):
    """What an archive holds with controls. `changes`: field of a verdict of the controls -> value."""
    checks = {"check": "loss", "verdicts": [VERDICT]}
    control = {"check": "window", "verdict": VERDICT | {"case": "lost"} | changes}
    controls = {"headline": "1 of 1", "verdicts": [control]}
    return MADE_UP | {"results/tiny/checks/loss.json": checks, "results/controls/controls.json": controls}


@pytest.fixture
def rebuilt(tmp_path, chain_that, capsys):
    """Returns exit code, what was printed and rebuild.json of a chain that makes the given files below results/."""

    def run(archived, made):
        for name, value in (files_of() | made).items():
            if name.startswith("results/") and not name.endswith("config.yaml"):
                write_bytes(tmp_path / "made" / name, as_bytes(value))
        arguments = chain_that(f'test "$1" = -c && exec cat "$3"; cp -r "{tmp_path}/made/results" .')
        code = main("rebuild", [str(archive_with(tmp_path, archived)), *arguments])
        return code, capsys.readouterr().out, read_json(tmp_path / "new" / "rebuild.json")

    return run


def test_the_same_is_confirmed(rebuilt):
    code, out, document = rebuilt(made_up(), made_up())
    assert code == 0, out
    assert document["same_results"]
    assert document["archived_digest"] == document["rebuilt_digest"]
    assert "The rebuild confirms the archive; the results are the same, byte for byte" in out


def test_controls_are_compared_too(rebuilt):
    code, out, document = rebuilt(made_up(), made_up(outcome="fail"))
    assert code == 1
    assert [(of["check"], of["case"]) for of in document["verdicts"] if of["problem"]] == [("window", "lost")]
    assert "window/lost was pass, expected pass, rebuilt fail, expected pass" in out
    assert document["unkept"] == ["results/controls/controls.json"]


def test_controls_that_were_not_reached_again(rebuilt):
    code, out, document = rebuilt(made_up(), {n: of for n, of in made_up().items() if "controls/controls" not in n})
    assert code == 1
    assert "window/lost was not reached again" in out
    assert document["unkept"] == ["results/controls/controls.json"]


def test_scores_that_are_not_reached_again(rebuilt):
    """The injected fault: an archive that claims a better accuracy."""
    better = {"results/tiny/evaluation.json": {"test": {"loss": 0.5, "accuracy": 0.99, "units": 1000}}}
    code, out, document = rebuilt(made_up() | better, made_up())
    assert code == 1
    assert "Scores: 1 of 2 are not as archived" in out
    assert "test.accuracy was 0.99, rebuilt 0.54" in out
    assert "does NOT confirm" in out
    assert document["unkept"] == []


def test_no_scores_where_scores_were(rebuilt):
    code, out, _ = rebuilt(made_up(), made_up() | {"results/tiny/evaluation.json": []})
    assert code == 1
    assert "test.accuracy was 0.54, rebuilt missing" in out


def test_what_was_trained_farther_away_is_said(rebuilt):
    other = {"results/controls/trained/lost/history.jsonl": '{"loss": 2.0}\n'}
    code, out, document = rebuilt(made_up(), made_up() | other)
    assert code == 0
    assert document["farther"] == list(other)
    assert (
        "The verdicts and scores are confirmed; 1 file differs by more than the tolerance, it is results/contr" in out
    )


@pytest.mark.parametrize("name", ["results/tiny/checks/more.json", "results/controls/cases/more/plan.json"])
def test_what_only_the_rebuild_has_is_seen(rebuilt, name):
    code, out, document = rebuilt(made_up(), made_up() | {name: {"check": "more", "verdicts": []}})
    assert code == 1
    assert not document["same_results"]
    assert document["unkept"] == [name]
    assert name in out.split("Added:")[1]


def test_what_no_archive_holds_is_no_file_more(rebuilt):
    aside = ("tiny/logs/a.log", "tiny/gate.txt", "tiny/checks/.hidden", "controls/gate.txt", "archive/tiny.zip")
    code, out, document = rebuilt(made_up(), made_up() | {f"results/{name}": "x" for name in aside})
    assert code == 0, out
    assert document["same_results"]


def test_the_files_are_those_of_an_archive_of_the_rebuild(tmp_path):
    """Of every part one file, and one in a folder of it."""
    experiment, controls = Experiment(name="tiny"), Experiment(name="controls")
    for of, parts in ((experiment, OF_EXPERIMENT), (controls, OF_CONTROLS)):
        for part in parts:
            for name in (part,) if "." in part else (f"{part}/a", f"{part}/b/c", f"{part}/.d", f"{part}/.e/f"):
                write_bytes(tmp_path / "results" / of.name / name, b"")
        write_bytes(tmp_path / "results" / of.name / "config.yaml", b"")
    with opened(archive_with(tmp_path, made_up())) as run:
        assert rebuilt_files(run, tmp_path) == sorted(result_files(tmp_path / "results", experiment, controls))


VERDICT = {
    "case": "global_mean",
    "expected": "pass",
    "outcome": "pass",
    "criterion": "",
    "observed": {},
    "evidence": {},
}
