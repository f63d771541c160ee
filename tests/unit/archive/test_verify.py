"""Each stage of `verify` on a small archive, and what it says. Verdicts: tests/workflow/test_archive_verify.py."""

import json
import os
import signal
import tempfile

import pytest

from ddp_tokens.archive import verify as module
from ddp_tokens.archive.digest_check import problems_of_comparison, problems_of_sums
from ddp_tokens.archive.figure_check import figures_in, problems_of_figures
from ddp_tokens.archive.layout import DOCUMENT, README, REPORT, SUMS, sums
from ddp_tokens.archive.reading import open_archive
from ddp_tokens.archive.rejudge import Judgement
from ddp_tokens.archive.verify import main, verify
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import sha256_of_bytes
from ddp_tokens.judging import JUDGES
from ddp_tokens.options import run_as_program
from tests.unit.archive.made import FILES, finished, write

NOT_LOOKED_AT = "      not looked at, since files are not what they should be: crate, figures, verdicts"
CONTROLS = {
    f"results/controls/controls.{form}": FILES[f"results/tiny/figures/tokens.{form}"] for form in ("png", "svg", "pdf")
}
WHOLE = finished(FILES | CONTROLS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tiny.zip"


def verdict(**changes):
    return Verdict(**{"case": "one", "expected": "pass", "outcome": "pass", "criterion": "x", "observed": {}} | changes)


JUDGED = (*JUDGES, "controls")
DIGEST = json.loads(WHOLE[DOCUMENT])["comparison_digest"]
NOT_MADE_AGAIN = (
    "      README.md, CHECKLIST.md, report.html are not made again, since the archived source is not the one that "
    "verifies: SHA256SUMS alone speaks for them"
)
OF_SUMS = f"          SHA-256 of SHA256SUMS, which covers pages, source and machine too: {sha256_of_bytes(WHOLE[SUMS])}"


@pytest.fixture
def judged(monkeypatch):
    """Stands for the verdicts: all as stated and as expected, unless a test changes them."""
    found = [Judgement(name, "as stated", [], [verdict(evidence={})]) for name in JUDGED]
    monkeypatch.setattr(module, "rejudge", lambda *_: found)
    return found


def lines_of(path):
    with open_archive(path) as archive:
        return verify(archive).lines


def failures(lines):
    return [line for line in lines if line.startswith("FAIL")]


def test_all_holds(path, judged, capsys):
    assert main("verify", [str(write(path, WHOLE))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"ok    {len(WHOLE) - 1} files have the SHA-256 that SHA256SUMS states",
        "ok    archive.json, README.md and report.html state the comparison digest of the results",
        "ok    ro-crate-metadata.json is a Workflow RO-Crate and describes every file",
        "ok    4 figures, each as pdf, png, svg",
        *(f"ok    {name}: as stated" for name in JUDGED),
        "ok    every verdict is as expected",
        NOT_MADE_AGAIN,
        f"verified: tiny, comparison digest {DIGEST}",
        OF_SUMS,
    ]


def test_what_could_only_be_reread_is_named_with_an_exit_code_of_its_own(path, judged, capsys):
    judged[1].only_reread = True
    assert main("verify", [str(write(path, WHOLE))]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == "part  gradient_parity: as stated"
    assert lines[-2] == f"verified, but for gradient_parity (only reread): tiny, comparison digest {DIGEST}"
    judged.pop()
    assert main("verify", [str(write(path, finished(FILES)))]) == 3
    assert "but for gradient_parity (only reread), controls (not in the archive): " in capsys.readouterr().out


def test_an_interruption_leaves_nothing(path, judged, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupted(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it goes on")

    monkeypatch.setattr(module, "rejudge", interrupted)
    assert main("verify", [str(write(path, WHOLE))]) == 130
    assert capsys.readouterr().err == "verify: interrupted, nothing is left behind\n"
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_one_byte_of_each_file_is_found(path, judged, capsys, name):
    """The zip itself is whole: each CRC is that of the altered file."""
    data = bytearray(WHOLE[name])
    at = data.index(b'"comparison_digest": "') + 22 if name == DOCUMENT else 0
    data[at] = ord("0") if data[at] != ord("0") else ord("1")
    assert bytes(data) != WHOLE[name]
    assert main("verify", [str(write(path, WHOLE | {name: bytes(data)}))]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = failures(lines)
    assert all(name in line for line in found[:1])
    if name != SUMS:
        assert found[0] == (
            f"FAIL  {name}: SHA-256 is {sha256_of_bytes(bytes(data))}, SHA256SUMS says {sha256_of_bytes(WHOLE[name])}"
        )
    assert lines[-2:] == [NOT_LOOKED_AT, f"NOT verified: tiny, {len(found)} problem{'s' * (len(found) != 1)} in {path}"]


def test_files_that_are_missing_or_more(path, judged):
    files = {name: data for name, data in WHOLE.items() if name != "LICENSE"} | {"more.txt": b"x"}
    assert failures(lines_of(write(path, files))) == [
        "FAIL  LICENSE is missing, and SHA256SUMS states it",
        "FAIL  more.txt is there, and SHA256SUMS does not state it",
    ]
    files = {name: data for name, data in WHOLE.items() if name not in (SUMS, README, REPORT)}
    assert failures(lines_of(write(path, files))) == [
        "FAIL  SHA256SUMS is missing: nothing says what the files must be",
        "FAIL  README.md is missing",
        "FAIL  report.html is missing",
    ]


def test_sums_in_another_form():
    digests = {"a": "0" * 64, "b": "1" * 64}
    right = sums(digests).encode()
    assert problems_of_sums({**digests, SUMS: "2" * 64}, right) == []
    other = "SHA256SUMS states these files, but not once each, sorted by path, as sha256sum writes them"
    lines = right.splitlines(keepends=True)
    for data in (b"".join(reversed(lines)), right + lines[0], right[:-1], right.replace(b"\n", b"\r\n")):
        assert problems_of_sums(digests, data) == [other]
    assert problems_of_sums(digests, right + b"what\n") == ["SHA256SUMS, line 3 is no digest and path"]
    assert problems_of_sums(digests, right.replace(b"  a", b" *a"))[0] == "SHA256SUMS, line 1 is no digest and path"


def test_the_comparison_digest_is_that_of_the_results(path, judged):
    """All digests are right, and yet archive.json, README and report speak of other results."""
    other, own = finished(FILES | {"results/tiny/plan.json": b"{}"}), finished(FILES)
    stated, right = (json.loads(files[DOCUMENT])["comparison_digest"] for files in (own, other))
    files = other | {name: own[name] for name in (DOCUMENT, README, REPORT)}
    files[SUMS] = sums({name: sha256_of_bytes(data) for name, data in files.items() if name != SUMS}).encode()
    lines = lines_of(write(path, files))
    assert failures(lines) == [
        f"FAIL  archive.json: comparison_digest is {stated}, of the files it is {right}",
        f"FAIL  README.md does not state the comparison digest {right}",
        f"FAIL  report.html does not state the comparison digest {right}",
    ]
    assert lines[-1] == NOT_LOOKED_AT


def test_files_that_were_left_out_count_by_their_digest(path, judged):
    omitted = {"results/tiny/large": {"sha256": "7" * 64, "bytes": 12345, "made_by": "continuous"}}
    files = finished(FILES, omitted=omitted)
    lines = lines_of(write(path, files))
    assert failures(lines) == []
    assert lines[2] == "      not in the archive: results/tiny/large (12,345 bytes; continuous)"
    with open_archive(path) as archive:
        document, digests = archive.document, archive.sha256()
    assert problems_of_comparison(document, digests, files) == []
    document.omitted["results/tiny/large"]["sha256"] = "8" * 64
    assert len(problems_of_comparison(document, digests, files)) == 3


def test_figures():
    assert figures_in(FILES, "tiny") == [f"results/tiny/figures/{name}" for name in ("gradients", "resume", "tokens")]
    assert problems_of_figures(figures_in(FILES, "tiny"), FILES, FILES.__getitem__) == []
    more = {"results/tiny/figures/own.png": b"\x89PNG\r\n\x1a\n", "results/controls/controls.json": b"{}"}
    files = {name: data for name, data in (FILES | more).items() if not name.endswith("tokens.svg")}
    files |= {"results/tiny/figures/resume.pdf": b"<svg>", "results/tiny/figures/resume.svg": b"<html>"}
    files |= {"results/tiny/figures/resume.png": b"%PDF-1.4"}
    assert problems_of_figures(figures_in(files, "tiny"), files, files.__getitem__) == [
        *(f"results/controls/controls.{form} is missing" for form in ("pdf", "png", "svg")),
        *(f"results/tiny/figures/own.{form} is missing" for form in ("pdf", "svg")),
        *(f"results/tiny/figures/resume.{form} does not begin as such a file does" for form in ("pdf", "png", "svg")),
        "results/tiny/figures/tokens.svg is missing",
    ]
    assert len(problems_of_figures(figures_in([], "tiny"), [], files.__getitem__)) == 9


def test_what_is_wrong_with_crate_and_figures_is_told(path, judged):
    files = {name: data for name, data in FILES.items() if name != "results/tiny/figures/tokens.pdf"}
    files = finished({**files, "results/tiny/figures/tokens.png": b"GIF"})
    del files["LICENSE"]
    files[SUMS] = sums({name: sha256_of_bytes(data) for name, data in files.items() if name != SUMS}).encode()
    assert failures(lines_of(write(path, files))) == [
        "FAIL  ro-crate-metadata.json: LICENSE is described and not there",
        "FAIL  results/tiny/figures/tokens.pdf is missing",
        "FAIL  results/tiny/figures/tokens.png does not begin as such a file does",
    ]


def test_verdicts_that_differ_or_are_not_as_expected(path, judged, capsys):
    judged[1].problems.append("token_mean: outcome is x")
    judged[2].verdicts = [verdict(evidence={}, case="w", outcome="fail", diagnosis=("never_reduced",))]
    judged[3].only_reread = True
    assert main("verify", [str(write(path, WHOLE))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert failures(lines) == [
        "FAIL  gradient_parity: token_mean: outcome is x",
        "FAIL  window/w is fail, expected pass (never_reduced)",
        "FAIL  archive.json: as_expected is true, and not every verdict is",
    ]
    assert lines[-1] == f"NOT verified: tiny, 3 problems in {path}"


def test_an_archive_that_says_it_is_not_as_expected(path, judged):
    judged[0].verdicts = []
    files = finished(FILES, as_expected=False)
    assert failures(lines_of(write(path, files))) == ["FAIL  loss holds no verdict"]
    judged[0].verdicts = judged[1].verdicts
    assert failures(lines_of(path)) == ["FAIL  archive.json: as_expected is false, and every verdict is"]


def test_what_is_unpacked_is_removed_also_on_failure(path, monkeypatch, tmp_path):
    temporary, seen = tmp_path / "temporary", []
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def fails(folder, *_):
        seen.extend(str(of.relative_to(folder)) for of in folder.rglob("*") if of.is_file())
        raise ArchiveError("stop")

    monkeypatch.setattr(module, "rejudge", fails)
    with pytest.raises(ArchiveError, match="stop"):
        lines_of(write(path, WHOLE))
    assert sorted(seen) == sorted(WHOLE)
    assert list(temporary.iterdir()) == []


def test_what_is_refused_is_one_sentence_and_exit_code_2(path, capsys):
    assert run_as_program("verify", lambda arguments: main("verify", arguments), [str(path)]) == 2
    assert capsys.readouterr().err == f"verify: {path} does not exist: name the zip file of an archive\n"


def test_the_limit(path, judged, capsys):
    write(path, WHOLE)
    with pytest.raises(ArchiveError, match="allow it with --limit-gib 1"):
        main("verify", [str(path), "--limit-gib", "0.000001"])
    assert main("verify", [str(path), "--limit-gib", "0.5"]) == 0
    for wrong in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(SystemExit):
            main("verify", [str(path), f"--limit-gib={wrong}"])
    assert "must be a number above 0" in capsys.readouterr().err
