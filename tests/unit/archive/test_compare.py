"""The tool: what it prints, what it writes, what it refuses."""

import json

import pytest

from ddp_tokens.archive.compare import main
from ddp_tokens.archive.comparison_texts import ROWS_SHOWN, bounded
from ddp_tokens.errors import ArchiveError
from tests.unit.archive.archives import files_of, summary, verdict, write_archive

CONTROLS = {"results/controls/controls.json": {"headline": "0 of 0 controls", "verdicts": []}}
PNG = "results/tiny/figures/tokens.png"


@pytest.fixture
def before(tmp_path):
    judged = [verdict("resume", "parameters", error=1.0000001), verdict("resume", "history")]
    score = {"test": {"loss": 1.5, "accuracy": 0.25}}
    files = files_of(of_summary=summary(*judged, **score), config="optimizer: {lr: 0.1}\ntext: 'a|b `c`'\n")
    same = {"results/tiny/figures/same.png": b"same", "results/controls/controls.png": b"c1"}
    return write_archive(tmp_path / "a.zip", files | CONTROLS | {PNG: b"one", "machine/imported.json": {}} | same)


@pytest.fixture
def after(tmp_path):
    judged = [verdict("resume", "parameters", "fail", "pass", ["optimizer_lost"], error=1.0000002)]
    files = files_of(of_summary=summary(*judged), config="optimizer: {lr: 0.2}\ntext: ''\n")
    more = {"results/tiny/figures/same.png": b"same", "results/tiny/figures/new.png": b"n"}
    return write_archive(tmp_path / "b.zip", files | {PNG: b"two"} | more)


def printed(capsys, *arguments):
    assert main("compare", [str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_text(before, after, capsys):
    out = printed(capsys, before, after)
    assert out.startswith("a.zip (tiny) against b.zip (tiny)\n\nThe results are not the same byte for byte")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "optimizer.lr 0.1 0.2" in lines
    assert "resume parameters pass fail, expected pass (optimizer_lost)" in lines
    assert "resume history pass absent" in lines
    assert "resume parameters error 1.0000001 1.0000002" in lines, "all digits where rounding would hide it"
    assert "test loss 1.5 absent" in lines
    assert "Only before." in lines
    assert "Only before: controls/controls.json, controls/controls.png." in lines


def test_markdown_is_escaped(before, after, capsys):
    out = printed(capsys, before, after, "--format", "markdown")
    assert out.startswith("# a.zip (tiny) against b.zip (tiny)\n")
    assert r"a\|b \`c\`" in out
    for line in out.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    assert "## Settings" in out


def test_json_is_the_whole_document(before, after, capsys):
    document = json.loads(printed(capsys, before, after, "--format", "json"))
    assert document["settings"][0] == {"name": "optimizer.lr", "before": 0.1, "after": 0.2}
    assert document["before"]["name"] == "a.zip"


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_the_same_archives_give_the_same_bytes(before, after, capsys, form):
    assert printed(capsys, before, after, "--format", form) == printed(capsys, before, after, "--format", form)


def test_an_archive_and_itself(before, capsys):
    out = printed(capsys, before, before)
    assert "The results are the same, byte for byte" in out
    assert "All settings are the same." in out
    assert "Both: 0 of 0 controls." in out


def test_whether_all_is_as_expected_is_seen_from_the_verdicts(before, after, tmp_path, capsys):
    """Both say of themselves that it is, in archive.json."""
    none = write_archive(tmp_path / "none.zip", files_of(of_summary=summary()))
    told = "Verdicts: before, all are as expected; after, NOT all are as expected."
    assert told in printed(capsys, before, after)
    assert told in printed(capsys, before, none)


def test_two_experiments_are_said_first(before, tmp_path, capsys):
    other = write_archive(tmp_path / "other.zip", files_of("other"), "other")
    assert printed(capsys, before, other).splitlines()[2] == "Two experiments: tiny before, other after."


def test_into_a_folder(before, after, tmp_path, capsys):
    folder = tmp_path / "comparison"
    folder.mkdir()
    assert main("compare", [str(before), str(after), "--into", str(folder)]) == 0
    text, told = capsys.readouterr()
    assert (folder / "compare.txt").read_text() == text
    assert "compare.md" in told
    assert json.loads((folder / "compare.json").read_text())["same_experiment"]
    made = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.png")}
    assert made == {
        "figures/before/tokens.png": b"one",
        "figures/after/tokens.png": b"two",
        "figures/after/new.png": b"n",
        "figures/before/controls.png": b"c1",
    }
    markdown = (folder / "compare.md").read_text()
    assert "| tokens | ![before: tokens](figures/before/tokens.png) | ![after: tokens](figures/after/tokens.png) |" in (
        markdown
    )
    assert "| new |  | ![after: new](figures/after/new.png) |" in markdown


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_folder_that_holds_something_is_left_alone(before, after, tmp_path, kind):
    target = tmp_path / "target"
    if kind == "folder":
        (target / "inside").mkdir(parents=True)
    elif kind == "file":
        target.write_text("")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArchiveError, match=r"target is .*: name (a folder|one) that is not there yet"):
        main("compare", [str(before), str(after), "--into", str(target)])
    assert not (target / "compare.md").exists()


def test_names_are_bounded():
    assert bounded(["a", "b", "c"], 3) == "a, b, c"
    assert bounded(["a", "b", "c"], 2) == "a, b and 1 more"


def test_rows_are_bounded_but_in_json(tmp_path, capsys):
    sides = []
    for name, value in (("a", 1), ("b", 2)):
        config = "".join(f"field_{index}: {value}\n" for index in range(ROWS_SHOWN + 5))
        sides.append(write_archive(tmp_path / f"{name}.zip", files_of(config=config)))
    out = printed(capsys, *sides)
    assert out.count("field_") == ROWS_SHOWN
    assert "And 5 more rows, which --format json has." in out
    assert printed(capsys, *sides, "--format", "json").count('"field_') == ROWS_SHOWN + 5
