"""What an archive records is used only where it is what was recorded."""

import json
import zipfile

import pytest

from ddp_tokens.archive.recorded import opened
from ddp_tokens.archive.writing import write_zip
from ddp_tokens.errors import ArchiveError
from tests.unit.archive.archives import files_of, verdict, write_archive

OMITTED = {"results/tiny/large.safetensors": {"sha256": "a" * 64, "bytes": 10**12, "made_by": "reference"}}


def contents_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def altered(path, **changes):
    """The archive with other bytes under the names given, SHA256SUMS as it was; None: without the file."""
    contents = contents_of(path) | changes
    write_zip(path, {name: data for name, data in contents.items() if data is not None})
    return path


def refusal(path, use=lambda run: None):
    with pytest.raises(ArchiveError) as caught, opened(path) as run:
        use(run)
    return str(caught.value)


@pytest.fixture
def archive(tmp_path):
    controls = {"headline": "1 of 1", "verdicts": [{"check": "resume", "verdict": verdict("", "lost", "fail")}]}
    for control in controls["verdicts"]:
        control["verdict"].pop("check")
    return write_archive(
        tmp_path / "tiny.zip", files_of(**{"results/controls/controls.json": controls}), omitted=OMITTED
    )


def test_what_was_left_out_counts_by_its_digest(archive):
    with opened(archive) as run:
        assert run.sha256["results/tiny/large.safetensors"] == "a" * 64
        assert "archive.json" in run.sha256
        assert set(run.results) == {
            "results/controls/controls.json",
            "results/tiny/config.yaml",
            "results/tiny/large.safetensors",
            "results/tiny/summary.json",
        }


def test_values_are_read(archive):
    with opened(archive) as run:
        assert run.settings() == {"seed": 1}
        assert run.summary().verdicts[0].as_expected
        [control] = run.controls().as_verdicts()
        assert (control.check, control.case, control.problem) == ("resume", "lost", None)
        assert run.mapping("machine/imported.json") == {}


def test_without_controls_there_are_none(tmp_path):
    with opened(write_archive(tmp_path / "tiny.zip", files_of())) as run:
        assert run.controls() is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"results/tiny/config.yaml": b"seed: 2\n"}, "results/tiny/config.yaml: SHA-256 is"),
        ({"results/tiny/config.yaml": None}, "results/tiny/config.yaml is missing, and SHA256SUMS states it"),
        ({"results/tiny/more": b""}, "results/tiny/more is there, and SHA256SUMS does not state it"),
        ({"SHA256SUMS": b"nonsense\n"}, "SHA256SUMS, line 1 is no digest and path"),
        ({"SHA256SUMS": None}, "SHA256SUMS is missing"),
    ],
)
def test_a_change_is_named(archive, changes, problem):
    found = refusal(altered(archive, **changes))
    assert problem in found
    assert found.endswith(": get it again from where it came")


def test_another_comparison_digest_is_refused_although_the_sums_hold(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.unit.archive.made.comparison_digest", lambda sha256: "b" * 64)
    found = refusal(write_archive(tmp_path / "tiny.zip", files_of()))
    assert f"archive.json: comparison_digest is {'b' * 64}, of the files it is " in found


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"a\\u001b\\n": 1, "a\\u001b\\n": 2}', r"is not valid JSON (the field a\x1b\n stands there twice)"),
        ('{"verdicts": [], "evaluation": {}, "published": [{"a\\u202e": 1}]}', "published.0.quantity"),
        (
            json.dumps({"evaluation": {}, "verdicts": [verdict("a", "b") | {"evidence": {"\x1b[8m\nok": 3}}]}),
            r"field 'verdicts.0.evidence.\x1b[8m\nok': Input should be a valid string",
        ),
    ],
)
def test_what_a_file_says_makes_no_line_of_its_own(tmp_path, content, told):
    files = files_of() | {"results/tiny/summary.json": content}
    found = refusal(write_archive(tmp_path / "tiny.zip", files), lambda run: run.summary())
    assert told in found
    assert found.isprintable()


def test_nor_does_what_the_sums_say(archive):
    found = refusal(altered(archive, SHA256SUMS=b"0" * 64 + b"  \x1b[8m\n"))
    assert r": \x1b[8m is missing, and SHA256SUMS states it (and " in found
    assert found.isprintable()


@pytest.mark.parametrize(
    ("name", "content", "use", "problem"),
    [
        ("config.yaml", "", lambda run: run.settings(), "config.yaml holds no settings"),
        ("config.yaml", "- 1\n", lambda run: run.settings(), "config.yaml must hold fields and values, not list"),
        ("config.yaml", "a: [", lambda run: run.settings(), "config.yaml is not valid YAML"),
        ("config.yaml", "a: &a [1]\nb: *a\n", lambda run: run.settings(), "config.yaml refers to parts of itself"),
        ("config.yaml", "x" * 2**17, lambda run: run.settings(), "config.yaml is too large for settings"),
        ("config.yaml", b"\xff", lambda run: run.settings(), "config.yaml is not UTF-8 text"),
        ("config.yaml", "a: 2026-99-99", lambda run: run.settings(), "config.yaml cannot be read as YAML"),
        ("summary.json", b"\xff", lambda run: run.summary(), "summary.json is not valid JSON ('utf-8' codec"),
        ("summary.json", "{", lambda run: run.summary(), "summary.json is not valid JSON"),
        (
            "summary.json",
            {"evaluation": {}},
            lambda run: run.summary(),
            "summary.json field 'verdicts': Field required",
        ),
        ("list.json", [], lambda run: run.mapping("results/tiny/list.json"), "list.json holds no fields"),
    ],
)
def test_contents_of_another_shape_are_one_sentence(tmp_path, name, content, use, problem):
    files = files_of() | {f"results/tiny/{name}": content}
    assert problem in refusal(write_archive(tmp_path / "tiny.zip", files), use)


def test_a_summary_that_is_not_there(tmp_path):
    files = {name: content for name, content in files_of().items() if not name.endswith("summary.json")}
    archive = write_archive(tmp_path / "tiny.zip", files)
    assert "results/tiny/summary.json is not in it" in refusal(archive, lambda run: run.summary())
    assert json.loads(contents_of(archive)["archive.json"])["experiment"] == "tiny"
