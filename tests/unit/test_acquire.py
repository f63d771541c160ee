"""What experiments read from outside the project: listed with its digest, and all that is wrong with it at once."""

import hashlib
import os
import shutil
import socket
from pathlib import Path

import pytest

from ddp_tokens import acquire
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.files import read_json, to_json
from ddp_tokens.layout import Layout
from ddp_tokens.options import run_as_program
from ddp_tokens.prepare import prepare
from tests.helpers import PROJECT, record, write_lines
from tests.unit.corpora.image_data import pictures, write_folder, write_safetensors

PROGRAM = "ddp_tokens.cli acquire"
SMALL = "steps: 2\ninterrupt_at: 1\nbatch: 1\naccumulation: 1\n"
IMAGES = "workload: images\nmodel: {kind: resnet}\n" + SMALL
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "config").mkdir(parents=True)
    monkeypatch.chdir(folder)
    config("config", "experiments: [made]\n")
    config("made", SMALL)
    return folder


def config(name, text):
    path = Path("config", f"{name}.yaml")
    path.write_text(text)
    return str(path)


def own_rows(name, path):
    return config(name, f"corpus: {{path: '{path}'}}\n{SMALL}")


def own_images(name, path):
    return config(name, f"corpus: {{kind: own_images, path: '{path}', train: 6, test: 4}}\n{IMAGES}")


def rows_file(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_lines(path, *(record(f"{split}{i}", split) for split in ("train", "test") for i in range(8)))


def run(capsys, *arguments):
    """Exit code, cells of the table by experiment, last line, problems. It must not write anything."""
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in Path().rglob("*"))
    code = run_as_program("ddp_tokens.cli", lambda own: acquire.main(PROGRAM, own), arguments)
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in Path().rglob("*")) == before
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    lines = told.out.splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[2:-2]]
    return code, {name: rest for name, *rest in cells}, lines[-1], told.err.splitlines()


def prepared(name):
    experiment, at = load_experiment(f"config/{name}.yaml"), Layout(Path("results") / name)
    prepare(experiment, at.rows, at.lock, at.plan)
    return at.lock


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_the_experiments_of_the_project_need_nothing_from_outside(monkeypatch, capsys):
    monkeypatch.chdir(PROJECT)
    code = acquire.main(PROGRAM, [])
    told = capsys.readouterr()
    names = sorted(path.stem for path in Path("config").glob("*.yaml") if path.stem != "config")
    assert (code, told.err) == (0, "")
    assert [line.split()[0] for line in told.out.splitlines()[2:-2]] == names
    assert digest("config/digits.safetensors") in told.out
    assert told.out.endswith(
        f"\n\n{len(names)} experiments, no download needed: {len(names)} read nothing from outside the project\n"
    )


def test_it_needs_no_network(project, capsys, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("a socket was asked for")

    monkeypatch.setattr(socket, "socket", no_network)
    assert run(capsys)[0] == 0


def test_own_rows_are_listed_with_their_digest(project, capsys, tmp_path):
    outside, inside = rows_file(tmp_path / "outside.jsonl"), rows_file(project / "data/rows.jsonl")
    own_rows("far", outside)
    own_rows("near", "data/rows.jsonl")
    size = f"{outside.stat().st_size:,}"
    code, table, last, problems = run(capsys)
    assert (code, problems) == (0, [])
    assert table == {
        "far": [str(outside), "outside", size, digest(outside), "not yet"],
        "made": ["nothing"],
        "near": ["data/rows.jsonl", "in the project", size, digest(inside), "not yet"],
    }
    assert last == (
        "3 experiments, no download needed: 2 read nothing from outside the project, 1 read what is there outside it"
    )


def test_a_folder_of_rows_is_listed_as_it_is_locked(project, capsys):
    for number in range(2):
        lines = (record(f"{split}{i}{number}", split) for split in ("train", "test") for i in range(8))
        Path("data").mkdir(exist_ok=True)
        write_lines(Path(f"data/{number}.jsonl"), *lines)
    own_rows("mine", "data")
    lock = read_json(prepared("mine"))
    size = sum(path.stat().st_size for path in Path("data").iterdir())
    assert run(capsys)[1]["mine"] == ["data", "in the project", f"{size:,}", lock["source_sha256"], "from this"]
    experiment = load_experiment("config/mine.yaml")
    assert acquire.source_files_of(experiment.corpus) == [Path("data/0.jsonl"), Path("data/1.jsonl")]
    Path("data/1.jsonl").unlink()
    code, _, _, problems = run(capsys)
    assert code == 1
    assert "data has changed since prepare" in problems[0]


def test_a_link_counts_by_where_it_leads(project, capsys, tmp_path):
    rows_file(tmp_path / "outside.jsonl")
    (project / "rows.jsonl").symlink_to("../outside.jsonl")
    own_rows("linked", "rows.jsonl")
    images, labels = pictures()
    write_folder(project / "pictures", images, labels)
    shutil.move(project / "pictures/ant/000.png", tmp_path / "000.png")
    (project / "pictures/ant/000.png").symlink_to(tmp_path / "000.png")
    own_images("pictured", "pictures")
    _, table, _, _ = run(capsys)
    assert [table[name][1] for name in ("linked", "pictured")] == ["outside", "outside"]


def test_images_are_pinned_as_the_lock_pins_them(project, capsys, tmp_path):
    """A file by its bytes; a folder by the list of names and digests that prepare writes."""
    images, labels = pictures()
    write_folder(tmp_path / "pictures", images, labels)
    write_safetensors(project / "file.safetensors", images=images, labels=labels)
    own_images("folder", tmp_path / "pictures")
    own_images("file", "file.safetensors")
    pins = {name: read_json(prepared(name))["images"] for name in ("folder", "file")}
    _, table, _, problems = run(capsys)
    assert problems == []
    assert table["file"][1:] == [
        "in the project",
        f"{os.path.getsize('file.safetensors'):,}",
        pins["file"]["sha256"],
        "from this",
    ]
    size = sum(path.stat().st_size for path in (tmp_path / "pictures").rglob("*.png"))
    listing = hashlib.sha256(to_json(pins["folder"]["files"]).encode()).hexdigest()
    assert len(pins["folder"]["files"]) == 12
    assert table["folder"][1:] == ["outside", f"{size:,}", listing, "from this"]


def test_all_problems_are_told_each_in_one_sentence(project, capsys):
    own_rows("gone", "data/rows.jsonl")
    own_rows("folder", "config")
    own_images("classless", "config")
    own_images("missing", "/nowhere/pictures")
    config("typo", "bacth: 3\n")
    config("broken", "batch: [\n")
    os.mkfifo("fifo")
    own_rows("fifo", "fifo")
    code, table, last, problems = run(capsys)
    assert code == 1
    assert [problem.removeprefix(f"{PROGRAM}: ") for problem in problems] == [
        "config/broken.yaml is not valid YAML: while parsing a flow node expected the node content, but found "
        "'<stream end>' in \"<unicode string>\", line 2, column 1: ^",
        "classless: field corpus.path: config holds 0 class folders; there must be 2 or more, one per class, with its "
        "images in it",
        "fifo: field corpus.path: fifo is no file",
        "folder: field corpus.path: config holds broken.yaml, which is no .jsonl or .parquet file: take it away, or "
        "name the file of rows itself",
        "gone: field corpus.path: data/rows.jsonl cannot be read: No such file or directory",
        "missing: field corpus.path: /nowhere/pictures cannot be read: No such file or directory",
        "config/typo.yaml: unknown field 'bacth', did you mean 'batch'?; config/README.md lists every field",
    ]
    assert table["gone"] == ["data/rows.jsonl", "in the project", "cannot be read"]
    assert table["missing"] == ["/nowhere/pictures", "outside", "cannot be read"]
    assert table["made"] == ["nothing"]
    assert last == "8 experiments, 7 problems: not everything is there as it should be"


@pytest.mark.skipif(IS_ROOT, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(project, capsys):
    rows_file(project / "rows.jsonl").chmod(0)
    own_rows("closed", "rows.jsonl")
    images, labels = pictures()
    write_folder(project / "pictures", images, labels)
    Path("pictures/bee/005.png").chmod(0)
    own_images("pictured", "pictures")
    code, _, _, problems = run(capsys)
    assert code == 1
    assert problems == [
        f"{PROGRAM}: closed: field corpus.path: rows.jsonl cannot be read: Permission denied",
        f"{PROGRAM}: pictured: field corpus.path: pictures cannot be read: pictures/bee/005.png: Permission denied",
    ]


def test_another_content_than_was_prepared_is_told_as_training_would(project, capsys):
    images, labels = pictures()
    rows_file(project / "rows.jsonl")
    write_folder(project / "pictures", images, labels)
    write_folder(project / "more", images, labels)
    write_safetensors(project / "file.safetensors", images=images, labels=labels)
    own_rows("rows", "rows.jsonl")
    own_images("altered", "pictures")
    own_images("more", "more")
    own_images("file", "file.safetensors")
    for name in ("rows", "altered", "more", "file"):
        prepared(name)
    code, table, _, problems = run(capsys)
    assert (code, problems, {cells[-1] for cells in table.values()}) == (0, [], {"nothing", "from this"})

    with open("rows.jsonl", "a") as stream:
        stream.write("\n")
    shutil.copy("pictures/ant/000.png", "pictures/ant/001.png")
    shutil.copy("more/ant/000.png", "more/ant/new.png")
    write_safetensors(project / "file.safetensors", images=images[::-1], labels=labels)
    code, table, _, problems = run(capsys)
    assert code == 1
    again = (
        "prepare again (build the experiment's target with `--forcerun prepare`, or by hand `ddp_tokens.cli prepare`), "
        "or go back to what was prepared"
    )
    locked = "(its SHA-256 is not the one that was locked)"
    assert problems == [
        f"{PROGRAM}: altered: pictures/ant/001.png has changed since prepare {locked}: {again}",
        f"{PROGRAM}: file: file.safetensors has changed since prepare {locked}: {again}",
        f"{PROGRAM}: more: more has changed since prepare (ant/new.png is new): {again}",
        f"{PROGRAM}: rows: rows.jsonl has changed since prepare (its SHA-256 is not the one in "
        f"results/rows/corpus/lock.json): {again}",
    ]
    assert table["rows"][-1] == "not from this"


def test_a_lock_of_another_corpus_is_no_problem(project, capsys):
    """The settings have changed, so Snakemake prepares again."""
    config("rows", SMALL)
    prepared("rows")
    rows_file(project / "rows.jsonl")
    own_rows("rows", "rows.jsonl")
    code, table, _, _ = run(capsys)
    assert (code, table["rows"][-1]) == (0, "from another corpus")


def test_a_lock_that_cannot_be_read_is_named(project, capsys):
    rows_file(project / "rows.jsonl")
    own_rows("rows", "rows.jsonl")
    prepared("rows").write_text("{")
    code, _, _, [problem] = run(capsys)
    assert code == 1
    assert problem.startswith(f"{PROGRAM}: rows: results/rows/corpus/lock.json is not valid JSON")


def test_only_the_files_that_are_named(project, capsys, tmp_path):
    rows_file(project / "rows.jsonl")
    elsewhere = str(shutil.copy(own_rows("rows", "rows.jsonl"), tmp_path / "other.yaml"))
    config("typo", "bacth: 3\n")
    twice = ["--config", "config/made.yaml"] * 2
    code, table, last, _ = run(capsys, *twice, "--config", elsewhere)
    assert (code, list(table)) == (0, ["made", "other"])
    assert last == "2 experiments, no download needed: 2 read nothing from outside the project"
    code, table, last, problems = run(capsys, "--config", "config/none.yaml", "--config", "config/made.yaml")
    assert (code, list(table)) == (1, ["made"])
    assert last == "2 experiments, 1 problem: not everything is there as it should be"
    assert problems == [
        f"{PROGRAM}: config/none.yaml cannot be read (No such file or directory): name an experiment's YAML file"
    ]


def test_fields_of_config_yaml_lie_over_the_experiments_that_it_lists(project, capsys):
    """As Snakemake would build them; `later` is not in the list."""
    config("later", SMALL)
    rows_file(project / "rows.jsonl")
    config("config", "experiments: [made]\ncorpus: {path: rows.jsonl}\n")
    _, table, _, _ = run(capsys)
    assert (table["made"][0], table["later"]) == ("rows.jsonl", ["nothing"])


def test_a_broken_config_yaml_is_one_problem_of_its_own(project, capsys):
    config("config", "experiments: [\n")
    code, table, _, problems = run(capsys)
    assert (code, table) == (1, {"made": ["nothing"]})
    assert "config/config.yaml is not valid YAML" in problems[0]


def test_without_experiments_it_says_where_to_go(project, capsys):
    shutil.rmtree("config")
    assert run_as_program("ddp_tokens.cli", lambda own: acquire.main(PROGRAM, own), []) == 2
    assert capsys.readouterr().err == (
        f"ddp_tokens.cli: {project}/config holds no experiment: go to the project's folder, or give --config\n"
    )
