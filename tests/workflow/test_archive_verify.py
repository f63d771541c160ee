"""Archives of a project that was really built: each verdict is reached again, and what was altered is found.

All that says so is altered with it, the digests above all: only the verdicts themselves tell.
"""

import json
import random
import shutil
from contextlib import chdir
from pathlib import Path

import numpy
import pytest
import yaml
from safetensors.numpy import load, save

from ddp_tokens.archive import verify as module
from ddp_tokens.archive.layout import CONFIG, DOCUMENT, SUMS, results_of, sums
from ddp_tokens.archive.reading import open_archive
from ddp_tokens.archive.rejudge import Judgement
from ddp_tokens.archive.verify import main, verify
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.files import sha256_of_bytes, to_json
from ddp_tokens.judging import JUDGES
from tests.unit.archive.made import finished, write
from tests.workflow.archives import ARCHIVE, without_controls

TINY = results_of("tiny")
SETTINGS = f"{TINY}/{CONFIG}"
PAGES = "README.md, CHECKLIST.md, report.html"
A_VERDICT = Verdict("one", "pass", "pass", "x", {}, {})
DUMP = f"{TINY}/gradients/token_mean.float64.safetensors"


@pytest.fixture(scope="module")
def files(contents):
    return without_controls(contents)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tiny.zip"


def lines_of(path, files, **options):
    write(path, finished(files, **options))
    with open_archive(path) as archive:
        return verify(archive).lines


def failures(path, files, **options):
    return [line for line in lines_of(path, files, **options) if line.startswith("FAIL")]


def as_bytes(document):
    return to_json(document).encode()


def verdicts_in(files, check):
    return json.loads(files[f"{TINY}/checks/{check}.json"])


def test_an_archive_that_was_built_is_verified(archived, contents, tmp_path, capsys):
    path = Path(shutil.copy(archived / ARCHIVE, tmp_path))
    with chdir(tmp_path):  # nothing around the archive is looked at
        assert main("verify", [path.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    number = {name: len(verdicts_in(contents, name)["verdicts"]) for name in JUDGES}
    assert sum(number.values()) > 30
    told = [f"{n} verdict{'s' * (n != 1)}, computed again, as stated" for n in number.values()]
    assert [line for line in lines if "computed again" in line and "controls" not in line] == [
        f"ok    {name}: {text}" for name, text in zip(JUDGES, told, strict=True)
    ]
    assert f"ok    summary: summary.json and summary.csv hold these {sum(number.values())} verdicts" in lines
    assert "ok    controls: 171 verdicts, computed again, as stated" in lines
    assert f"ok    {PAGES} are what follows from the other files" in lines
    assert lines[-2] == f"verified: tiny, comparison digest {json.loads(contents[DOCUMENT])['comparison_digest']}"
    assert lines[-1].endswith(f" {sha256_of_bytes(contents[SUMS])}")


def about_pages(path, files, monkeypatch):
    """What is said of the pages, where SHA256SUMS is right, whatever the files hold."""
    whole = [Judgement(name, "", [], [A_VERDICT]) for name in (*JUDGES, "controls")]
    monkeypatch.setattr(module, "rejudge", lambda *_: whole)
    digests = {name: sha256_of_bytes(data) for name, data in files.items() if name != SUMS}
    with open_archive(write(path, files | {SUMS: sums(digests).encode()})) as archive:
        lines = verify(archive).lines
    assert lines[0].startswith("ok    ")
    return [line for line in lines if "follows from" in line or "made again" in line]


@pytest.mark.parametrize("page", ["README.md", "CHECKLIST.md", "report.html"])
def test_a_page_that_says_something_else(contents, path, monkeypatch, page):
    """No verdict rests on it, and the comparison digest does not cover it."""
    assert b"2 ranks" in contents[page]
    altered = contents | {page: contents[page].replace(b"2 ranks", b"8 ranks", 1)}
    assert about_pages(path, altered, monkeypatch) == [f"FAIL  {page} is not what follows from the other files"]


def test_a_fact_that_the_pages_tell_otherwise(contents, path, monkeypatch):
    machine = json.loads(contents["machine/environment.json"])
    machine["machine"]["cpu"] = "A faster one"
    altered = contents | {"machine/environment.json": as_bytes(machine)}
    found = about_pages(path, altered, monkeypatch)
    assert found == [f"FAIL  {page} is not what follows from the other files" for page in PAGES.split(", ")]
    altered = contents | {"machine/environment.json": b"[]"}
    assert about_pages(path, altered, monkeypatch)[0].startswith("FAIL  pages cannot be made again: TypeError")


def test_pages_of_another_source_are_not_made_again(contents, path, monkeypatch):
    changed = "source/src/ddp_tokens/templates/archive.html"
    [told] = about_pages(path, contents | {changed: contents[changed] + b"\n"}, monkeypatch)
    assert told.startswith(f"      {PAGES} are not made again, since the archived source is not the one that verifies")
    lock = "source/envs/requirements.lock"
    other = contents[lock].replace(b"\njinja2==", b"\njinja2==0.")
    [told] = about_pages(path, contents | {lock: other}, monkeypatch)
    assert "since jinja2 is installed in another version than the archived lock names" in told


def test_a_byte_of_every_file_is_found_by_name(contents, path):
    """All at once, since one by one takes a quarter of an hour; the zip itself is whole. Of the two files that say
    what the others are, one by one in tests/unit/archive/test_verify.py.
    """
    generator = random.Random(20261201)
    altered = {}
    for name, data in contents.items():
        if data and name not in (DOCUMENT, SUMS):
            at = generator.randrange(len(data))
            altered[name] = data[:at] + bytes([data[at] ^ 1 << generator.randrange(8)]) + data[at + 1 :]
    assert len(altered) > 1500
    with open_archive(write(path, contents | altered)) as archive:
        lines = verify(archive).lines
    for name, data in altered.items():
        stated = f"SHA-256 is {sha256_of_bytes(data)}, SHA256SUMS says {sha256_of_bytes(contents[name])}"
        assert f"FAIL  {name}: {stated}" in lines
    assert not [line for line in lines if line.startswith("ok    ") and "computed again" in line]


def test_a_gradient_that_was_altered(path, files):
    """The token mean becomes a hundredth larger: its digest in the verdicts is another, and it is no mean any more."""
    larger = save({name: numpy.asarray(array * 1.01) for name, array in load(files[DUMP]).items()})
    found = failures(path, files | {DUMP: larger})
    assert any(
        line.startswith(f"FAIL  gradient_parity: token_mean.float64.first: evidence.{DUMP} is ") for line in found
    )
    assert 'FAIL  gradient_parity: token_mean.float64.first: outcome is "pass", computed again it is "fail"' in found
    assert any(
        line.startswith("FAIL  gradient_parity/token_mean.float64.first is fail, expected pass") for line in found
    )
    assert "FAIL  archive.json: as_expected is true, and not every verdict is" in found


def test_a_gradient_that_was_altered_with_its_digest_in_the_verdicts(path, files):
    """The last place that would tell by a digest: the number that is observed tells."""
    larger = save({name: numpy.asarray(array * 1.01) for name, array in load(files[DUMP]).items()})
    old, new = (sha256_of_bytes(data).encode() for data in (files[DUMP], larger))
    altered = {name: data.replace(old, new) for name, data in files.items()} | {DUMP: larger}
    found = failures(path, altered)
    assert not any("evidence" in line for line in found)
    assert any(line.startswith("FAIL  gradient_parity: token_mean.float64.first: observed.error is ") for line in found)


def test_a_verdict_that_was_altered(path, files):
    """The control, which must fail, is said to pass."""
    document = verdicts_in(files, "gradient_parity")
    verdict = next(of for of in document["verdicts"] if of["case"].startswith("mean_of_means.native"))
    assert verdict["outcome"] == "fail"
    verdict["outcome"] = "pass"
    found = failures(path, files | {f"{TINY}/checks/gradient_parity.json": as_bytes(document)})
    assert f'FAIL  gradient_parity: {verdict["case"]}: outcome is "pass", computed again it is "fail"' in found
    assert any(line.startswith("FAIL  summary: summary.json.verdicts[") for line in found)


def test_tolerances_that_were_altered(path, files):
    """Wider by 10: each verdict states its own in its criterion and as a number."""
    settings = yaml.safe_load(files[SETTINGS])
    settings["tolerances"]["float64"] *= 10
    found = failures(path, files | {SETTINGS: yaml.safe_dump(settings).encode()})
    assert any(
        line.startswith("FAIL  gradient_parity: token_mean.float64.first: observed.tolerance is ") for line in found
    )
    assert any(line.startswith("FAIL  gradient_parity: token_mean.float64.first: criterion is ") for line in found)


def test_a_summary_that_was_altered(path, files):
    summary = json.loads(files[f"{TINY}/summary.json"])
    summary["verdicts"][0]["outcome"] = "fail"
    altered = files | {
        f"{TINY}/summary.json": as_bytes(summary),
        f"{TINY}/summary.csv": files[f"{TINY}/summary.csv"].replace(b"pass", b"fail", 1),
    }
    assert failures(path, altered) == [
        'FAIL  summary: summary.json.verdicts[0].outcome is "fail", computed again it is "pass"',
        "FAIL  summary: summary.csv is not the table of these verdicts",
    ]


def test_verdicts_that_are_missing_or_of_no_check(path, files):
    altered = {name: data for name, data in files.items() if name != f"{TINY}/checks/window.json"}
    altered[f"{TINY}/checks/another.json"] = b"{}"
    found = failures(path, altered)
    missing = f"cannot be computed again: {TINY}/checks/window.json does not exist; run the step that makes it"
    assert f"FAIL  window: {missing}" in found
    assert "FAIL  window holds no verdict" in found
    assert "FAIL  summary: another is no check that is known here" in found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"base": "../../../../etc/other.yaml"}, "leads to another file: field 'base' is not for archives"),
        ({"name": "other"}, "field 'name' is 'other', not tiny"),
        ({"world_size": 10**9}, "field 'world_size' is 1000000000, of which no archive holds files"),
        ({"seed": "x"}, "field 'seed': "),
    ],
)
def test_settings_that_are_not_used(path, files, change, problem):
    settings = yaml.safe_load(files[SETTINGS]) | change
    found = failures(path, files | {SETTINGS: yaml.safe_dump(settings).encode()})
    assert found[0].startswith(f"FAIL  {SETTINGS}: cannot be computed again: {SETTINGS}")
    assert problem in found[0]
    assert found[1:] == [
        "FAIL  there is no check",
        "FAIL  archive.json: as_expected is true, and not every verdict is",
    ]


def test_settings_that_would_fill_the_memory(path, files):
    """Ten times ten times ... the same list: a few lines, of which the error's text would be 10^9 words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    for data, problem in (
        ("\n".join(lines).encode(), "refers to parts of itself: settings are written out"),
        (b"# " + b"x" * 70_000, "is too large for settings"),
        (b"a: " + b"[" * 2_000, "RecursionError: maximum recursion depth exceeded"),
    ):
        found = failures(path, files | {SETTINGS: data})
        assert found[0].startswith(f"FAIL  {SETTINGS}: cannot be computed again: ")
        assert problem in found[0]


def test_a_check_whose_files_were_left_out_is_only_reread(path, files):
    model = f"{TINY}/runs/continuous/step-0004/model.safetensors"
    omitted = {model: {"sha256": sha256_of_bytes(files[model]), "bytes": len(files[model]), "made_by": "continuous"}}
    left = {name: data for name, data in files.items() if name != model}
    lines = lines_of(path, left, omitted=omitted)
    assert not any(line.startswith("FAIL") for line in lines)
    assert [line for line in lines if "only reread" in line] == [
        f"part  {name}: {len(verdicts_in(files, name)['verdicts'])} verdicts, only reread: {model} was left out as too "
        "large"
        for name in ("resume", "checkpoints")
    ]


def test_a_check_that_is_only_reread_was_reached_on_these_files(path, files):
    """One of another digest than the verdicts state, left out or in the archive."""
    model = f"{TINY}/runs/continuous/step-0004/model.safetensors"
    common = f"{TINY}/runs/continuous/step-0004/common.json"
    omitted = {model: {"sha256": "7" * 64, "bytes": 1, "made_by": "continuous"}}
    left = {name: data for name, data in files.items() if name != model} | {common: b"{}"}
    found = failures(path, left, omitted=omitted)
    stated, other = sha256_of_bytes(files[model]), sha256_of_bytes(files[common])
    case = "checkpoints: continuous/step-0004"
    assert f"FAIL  {case}: evidence.{model} is {stated}, the archive's is {'7' * 64}" in found
    assert f"FAIL  {case}: evidence.{common} is {other}, the archive's is {sha256_of_bytes(b'{}')}" in found


def test_controls_that_are_not_whole(path, files):
    """A single file below results/controls/: then all of them must be there."""
    found = failures(path, files | {"results/controls/cases/one.json": b"{}"})
    missing = "results/controls/controls.json does not exist; run the step that makes it"
    assert f"FAIL  controls: cannot be computed again: {missing}" in found
    assert "FAIL  controls holds no verdict" in found


def test_whatever_the_files_hold_it_is_told(path, files):
    """Bytes of one file altered, all digests made to fit: never an error that is not a line, and what a verdict rests
    on is never altered unnoticed.
    """
    generator, names = random.Random(20260102), sorted(name for name in files if name.startswith(TINY))
    text = [name for name in names if name.endswith(("json", "jsonl", "yaml", "csv"))]
    evidence = {
        name for check in JUDGES for verdict in verdicts_in(files, check)["verdicts"] for name in verdict["evidence"]
    }
    noticed = set()
    for _ in range(25):
        name = generator.choice(generator.choice([names, text]))
        data = bytearray(files[name])
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(len(data) + 1)
            data[at : at + generator.randint(0, 2)] = generator.choice([b"", b"0", b"]", b'"', b"\xff", b"null", b"-9"])
        found = failures(path, files | {name: bytes(data)})
        assert found or name not in evidence or bytes(data) == files[name]
        noticed |= {name for _ in found}
    assert len(noticed & evidence) > 5
