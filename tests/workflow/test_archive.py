"""One file for a paper: what is in it, that it is the same each time, and when Snakemake makes it again."""

import csv
import io
import json
import os
import shutil
import socket
import zipfile
from pathlib import Path

import pytest
import yaml

from ddp_tokens.archive.collect import result_files
from ddp_tokens.archive.layout import comparison_digest, is_compared, sums
from ddp_tokens.archive.make import Project, make_archive
from ddp_tokens.config import OwnRows
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import sha256_of_bytes
from ddp_tokens.steps import read_settings
from tests.unit.archive.browser import browser, program
from tests.workflow.archives import ARCHIVE, contents_of
from tests.workflow.projects import rules_to_run, snakemake

# What tells of the machine or of times, and what states digests of that.
VARIES = ("machine/", "README.md", "CHECKLIST.md", "report.html", "SHA256SUMS")


def settings(project, of):
    return read_settings(project / "results" / of / "settings" / "pack.json")


def made(project, into, limit_mib=256, experiment=None):
    """The same by a call, in the project's folder."""
    path = into / "made.zip"
    experiment = experiment or settings(project, "tiny")
    place = Project(project, project / "results")
    return make_archive(path, place, experiment, settings(project, "controls"), limit_mib), path


def test_it_holds_the_evidence_the_verdicts_and_how_they_came_about(archived, contents):
    of_tiny = {name.removeprefix("results/tiny/") for name in contents if name.startswith("results/tiny/")}
    assert of_tiny >= {
        *(
            "config.yaml",
            "plan.json",
            "initial.safetensors",
            "corpus/rows.jsonl",
            "corpus/lock.json",
            "evaluation.json",
        ),
        *("summary.json", "summary.csv", "checks/gradient_parity.json", "checks/resume.json", "window/rank-1.json"),
        *("reference/parts.safetensors", "gradients/mean_of_means.float64.safetensors", "zero_window/rank-0.json"),
        *("runs/continuous/step-0004/model.safetensors", "runs/interrupt/step-0002/optimizer.safetensors"),
        *("runs/resume/history.jsonl", "runs/resume/ranks/state-rank-1.safetensors"),
        *(f"figures/{name}.{kind}" for name in ("tokens", "gradients", "resume") for kind in ("png", "svg", "pdf")),
    }
    verdicts = json.loads(contents["results/tiny/summary.json"])["verdicts"]
    compared = {path for verdict in verdicts for path in verdict["evidence"]}
    assert len(compared) > 40
    assert compared <= set(contents)
    assert {"results/controls/controls.json", "results/controls/config.yaml"} <= set(contents)
    assert {"archive.json", "README.md", "CHECKLIST.md", "report.html", "CITATION.cff", "LICENSE"} <= set(contents)
    assert {"source/Snakefile", "source/envs/requirements.lock", "source/src/ddp_tokens/plan.py"} <= set(contents)
    unwanted = ("settings/", "logs/", "benchmarks/", ".snakemake", "__pycache__", "gate.txt", "environment.json")
    assert not [name for name in contents if name.startswith("results/") and any(part in name for part in unwanted)]


def test_its_digests_are_true(contents):
    digests = {name: sha256_of_bytes(data) for name, data in contents.items() if name != "SHA256SUMS"}
    assert contents["SHA256SUMS"].decode() == sums(digests)
    document = json.loads(contents["archive.json"])
    assert document["comparison_digest"] == comparison_digest(digests)
    assert document["as_expected"] is True
    assert document["source"] == {"commit": None, "date": None, "dirty": None, "untracked": []}
    for page in ("README.md", "CHECKLIST.md", "report.html"):
        assert document["comparison_digest"] in contents[page].decode(), page


@pytest.mark.skipif(program() is None, reason="needs Chromium (Debian's package chromium), not found here")
def test_the_report_opens_without_a_fault_where_it_is_unpacked(archived, tmp_path):
    """On a desk and on a phone: no error, nothing asked of the network, every image, every link to a file."""
    with zipfile.ZipFile(archived / ARCHIVE) as archive:
        archive.extractall(tmp_path)
    with browser() as opened:
        for width in (1280, 390):
            assert opened.look_at(tmp_path / "report.html", width).faults == []


def test_the_settings_in_it_build_the_same_experiment(archived, contents, tmp_path):
    (tmp_path / "tiny.yaml").write_bytes(contents["results/tiny/config.yaml"])
    assert load_experiment(tmp_path / "tiny.yaml") == load_experiment(archived / "config" / "tiny.yaml")
    (tmp_path / "controls.yaml").write_bytes(contents["results/controls/config.yaml"])
    assert load_experiment(tmp_path / "controls.yaml") == load_experiment(archived / "config" / "controls.yaml")


def test_the_machine_is_told_without_names_of_hosts(contents):
    machine = json.loads(contents["machine/environment.json"])["machine"]
    assert machine["cores"] == os.cpu_count()
    text = contents["machine/environment.json"].decode()
    assert '"host"' not in text
    assert '"pid"' not in text
    assert f'"{socket.gethostname()}"' not in text
    imported = json.loads(contents["machine/imported.json"])
    assert {"python", "torch", "numpy", "safetensors"} <= set(imported)
    rows = list(csv.DictReader(io.StringIO(contents["machine/wall_times.csv"].decode())))
    assert {("tiny", "continuous"), ("controls", "control_table")} <= {(row["experiment"], row["rule"]) for row in rows}
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_snakemakes_provenance_is_told_for_every_result(contents):
    told = json.loads(contents["machine/provenance.json"])
    made_by = {name: of["rule"] for name, of in told.items()}
    assert made_by["results/tiny/runs/resume"] == "resume"
    assert made_by["results/tiny/checks/loss.json"] == "check_loss"
    assert all(of["started"] < of["ended"] for of in told.values())
    results = {name for name in contents if is_compared(name) and not name.endswith("config.yaml")}
    assert not {name for name in results if not any(name == output or name.startswith(f"{output}/") for output in told)}


def test_a_second_call_has_nothing_to_do(archived):
    assert rules_to_run(archived, ARCHIVE) == set()


def test_a_changed_document_is_another_archive_and_nothing_else_is_built(archived):
    readme = archived / "README.md"
    before = readme.read_text()
    try:
        readme.write_text(f"{before}\nOne more line.\n")
        assert rules_to_run(archived, ARCHIVE) == {"pack"}
    finally:
        readme.write_text(before)
    assert rules_to_run(archived, ARCHIVE) == set()


def test_two_builds_have_the_same_results_and_so_the_same_digest(archived, contents, built_again, tmp_path):
    """Of the chain: the bytes of the controls are compared in tests/distributed/test_controls_on_ranks.py."""
    other = tmp_path / "other"
    shutil.copytree(built_again, other)
    shutil.copytree(archived / "results" / "controls", other / "results" / "controls")
    shutil.copy(archived / "results/tiny/settings/pack.json", other / "results/tiny/settings/pack.json")
    document, path = made(other, tmp_path)
    again = contents_of(path)
    assert document.comparison_digest == json.loads(contents["archive.json"])["comparison_digest"]
    assert set(again) == set(contents)
    assert [name for name in contents if contents[name] != again[name] and not name.startswith(VARIES)] == []
    assert contents["machine/wall_times.csv"] != again["machine/wall_times.csv"]  # it was another build


def test_the_same_files_give_the_same_bytes(archived, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (_, one), (_, two) = made(archived, tmp_path / "a"), made(archived, tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() == (archived / ARCHIVE).read_bytes()


@pytest.mark.parametrize(
    "name", ["runs/resume/history.jsonl", "gradients/token_mean.native.safetensors", "figures/tokens.svg"]
)
def test_another_result_is_another_digest(archived, contents, tmp_path, name):
    file = archived / "results" / "tiny" / name
    before, times = file.read_bytes(), file.stat()
    try:
        file.write_bytes(before + b" ")
        document, _ = made(archived, tmp_path)
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert document.comparison_digest != json.loads(contents["archive.json"])["comparison_digest"]


def test_what_is_too_large_is_left_out_and_counts_by_its_digest(archived, contents, tmp_path):
    large = archived / "results/tiny/runs/resume/ranks/rank-0.jsonl"
    before, times = large.read_bytes(), large.stat()
    try:
        large.write_bytes(b" " * (2**22 + 1))
        (tmp_path / "all").mkdir()
        whole, _ = made(archived, tmp_path / "all")
        document, path = made(archived, tmp_path, limit_mib=4)
    finally:
        large.write_bytes(before)
        os.utime(large, ns=(times.st_atime_ns, times.st_mtime_ns))
    name = "results/tiny/runs/resume/ranks/rank-0.jsonl"
    assert whole.omitted == {}
    assert document.comparison_digest == whole.comparison_digest
    assert document.omitted == {
        name: {
            "bytes": 2**22 + 1,
            "sha256": sha256_of_bytes(b" " * (2**22 + 1)),
            "made_by": "Snakemake's rule resume, in a rebuild",
        }
    }
    left = contents_of(path)
    assert set(contents) - set(left) == {name}
    assert f"| `{name}` | 4,194,305 |" in left["README.md"].decode()
    assert name not in left["SHA256SUMS"].decode()


def test_own_rows_go_along_or_are_named(archived, tmp_path):
    """In the project's folder, where git does not know them; in the source already; outside."""
    rows = archived / "data" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text("{}\n")
    outside = tmp_path / "rows.jsonl"
    outside.write_text("{}\n")
    (archived / "config" / "known.jsonl").write_text("{}\n")
    found = {}
    before = Path.cwd()
    os.chdir(archived)
    try:
        for path in ("data/rows.jsonl", "config/known.jsonl", str(outside)):
            experiment = settings(archived, "tiny").model_copy(update={"corpus": OwnRows(path=path)})
            found[path] = made(archived, tmp_path, experiment=experiment)[0], contents_of(tmp_path / "made.zip")
    finally:
        os.chdir(before)
        shutil.rmtree(rows.parent)
        (archived / "config" / "known.jsonl").unlink()
    document, left = found["data/rows.jsonl"]
    assert left["inputs/data/rows.jsonl"] == b"{}\n"
    assert document.omitted == {}
    document, left = found["config/known.jsonl"]
    assert [name for name in left if name.startswith("inputs/")] == []
    assert "source/config/known.jsonl" in left
    document, left = found[str(outside)]
    [name] = document.omitted
    assert name == f"inputs{outside}"
    assert document.omitted[name]["made_by"] == f"yours: it must lie at {outside}"


def test_own_rows_beside_the_project_are_refused(archived, tmp_path):
    experiment = settings(archived, "tiny").model_copy(update={"corpus": OwnRows(path="../rows.jsonl")})
    with pytest.raises(ArchiveError, match=r"field corpus.path, ../rows.jsonl, leads out of the project's"):
        made(archived, tmp_path, experiment=experiment)


def test_a_name_that_could_not_be_read_again_is_refused(archived, tmp_path):
    odd = archived / "config" / "a\u202eb.yaml"
    odd.write_text("")
    try:
        with pytest.raises(ArchiveError) as error:
            made(archived, tmp_path)
    finally:
        odd.unlink()
    assert str(error.value) == (
        "source/config/a\\u202eb.yaml has a character in its name that cannot be shown, so that no archive can hold "
        "it: give the file another name"
    )


def test_what_is_missing_is_named(archived, tmp_path):
    hidden = archived / "results/tiny/window"
    hidden.rename(archived / "results/tiny/.window")
    try:
        with pytest.raises(ArchiveError, match=r"results/tiny/window is missing: build results/archive/tiny.zip again"):
            made(archived, tmp_path)
    finally:
        (archived / "results/tiny/.window").rename(hidden)
    (archived / "LICENSE").rename(archived / "LICENCE")
    try:
        with pytest.raises(ArchiveError, match=r"LICENSE is missing: an archive must say how to cite it"):
            made(archived, tmp_path)
    finally:
        (archived / "LICENCE").rename(archived / "LICENSE")
    citation = archived / "CITATION.cff"
    before = citation.read_text()
    try:
        citation.write_text(before.replace("license:", "licence:"))
        with pytest.raises(ArchiveError, match=r"CITATION.cff has no license: an archive must state"):
            made(archived, tmp_path)
        citation.write_text("a: [")
        with pytest.raises(ArchiveError, match=r"CITATION.cff is no valid YAML"):
            made(archived, tmp_path)
    finally:
        citation.write_text(before)
    assert not (tmp_path / "made.zip").exists()


def test_leftovers_are_no_results(archived):
    extra = archived / "results/tiny/runs/resume/.hidden"
    other = archived / "results/tiny/by_hand.json"
    extra.write_text("")
    other.write_text("{}")
    try:
        names = result_files(archived / "results", settings(archived, "tiny"), settings(archived, "controls"))
    finally:
        extra.unlink()
        other.unlink()
    assert "results/tiny/plan.json" in names
    assert not [name for name in names if "hidden" in name or "by_hand" in name]


def test_the_scaling_is_an_input_where_it_was_measured(archived):
    manifest = archived / "results/tiny/scaling/manifest.json"
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text("{}")
    try:
        assert {"scaling", "pack"} <= rules_to_run(archived, ARCHIVE)  # out of date, so measured again
    finally:
        shutil.rmtree(manifest.parent)
    assert "scaling" not in rules_to_run(archived, ARCHIVE)


def test_the_target_archive_asks_for_the_gates_too(archived):
    assert rules_to_run(archived, "archive") == set()
    gate = archived / "results/tiny/gate.txt"
    gate.rename(archived / "gate.txt")
    try:
        assert rules_to_run(archived, "archive") == {"gate", "archive"}
    finally:
        (archived / "gate.txt").rename(gate)


@pytest.mark.parametrize("limit", ["0", "big", "1.5", "true"])
def test_a_limit_that_is_none_is_refused(archived, limit):
    done = snakemake(archived, ARCHIVE, "--dry-run", "--config", f"archive_limit_mib={limit}")
    assert done.returncode != 0
    assert "field 'archive_limit_mib' must be a whole number from 1 (MiB), not" in done.stdout


def test_an_experiment_cannot_be_called_archive(archived):
    (archived / "config" / "archive.yaml").write_text(yaml.safe_dump({"steps": 4, "interrupt_at": 2}))
    try:
        done = snakemake(archived, "--dry-run", "--config", "experiments=[archive]")
    finally:
        (archived / "config" / "archive.yaml").unlink()
    assert done.returncode != 0
    assert "'archive' is no experiment: `snakemake archive` builds them" in done.stdout
