"""Tables for a paper."""

import csv
import io

import pytest

from ddp_tokens.archive.tables import main
from ddp_tokens.errors import ArchiveError
from tests.unit.archive.archives import files_of, summary, verdict, write_archive

PUBLISHED = [{"quantity": "Test loss", "published": "1.3", "measured": "1.2 ± 1 %", "comparable": "level | only"}]
VERDICTS = [
    verdict("gradient_parity", "token_mean.native.first", error=2.9812e-8, tolerance=1.2e-7, power=15414.53),
    verdict(
        "gradient_parity", "mean_of_means.native.first", "fail", diagnosis=["mean_of_means"], max_abs_error=0.01283
    ),
    verdict("resume", "parameters", max_abs_difference=0.0),
]


@pytest.fixture
def archive(tmp_path):
    return write_archive(tmp_path / "tiny.zip", files_of(of_summary=summary(*VERDICTS, published=PUBLISHED)))


@pytest.fixture
def unpublished(tmp_path):
    return write_archive(tmp_path / "other.zip", files_of(of_summary=summary(verdict("loss", "global_mean"))))


def printed(capsys, *arguments):
    assert main("table", [str(argument) for argument in arguments]) == 0
    return capsys.readouterr()


def test_markdown_has_three_digits_and_both_tables(archive, capsys):
    verdicts, published = printed(capsys, archive).out.split("\n\n")
    header, _, first, second, third = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in verdicts.splitlines()
    ]
    assert header == [
        "check",
        "case",
        "expected",
        "outcome",
        "diagnosis",
        "error",
        "tolerance",
        "power",
        "max abs difference",
    ]
    assert first[5:8] == ["2.98e-08", "1.2e-07", "15,415"]
    assert second[:5] == ["gradient_parity", "mean_of_means.native.first", "fail", "fail", "mean_of_means"]
    assert second[-1] == "0.0128"
    assert third[-1] == "0"
    assert "level \\| only" in published
    assert published.endswith("|\n")


def test_latex_is_a_tabular_for_each_table(archive, capsys):
    out = printed(capsys, archive, "--format", "latex").out
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") == out.count(r"\toprule") == 2
    assert r"gradient\_parity & token\_mean.native.first" in out
    assert r"$2.98 \times 10^{-8}$" in out
    assert r"1.2 \ensuremath{\pm} 1 \%" in out


def test_csv_has_all_digits(archive, capsys):
    out = printed(capsys, archive, "--format", "csv", "--table", "verdicts").out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["error"] for row in rows] == ["2.9812e-08", "", ""]
    assert [row["power"] for row in rows] == ["15414.53", "", ""]
    assert [row["max abs difference"] for row in rows] == ["", "0.01283", "0.0"]


def test_one_table_alone(archive, capsys):
    out = printed(capsys, archive, "--table", "published").out
    assert "quantity" in out
    assert "check" not in out


def test_without_published_values_the_verdicts_are_printed_and_a_sentence_says_so(unpublished, capsys):
    told = printed(capsys, unpublished)
    assert "global_mean" in told.out
    assert told.err == f"table: {unpublished}: no published values are known for an experiment of this kind\n"


def test_asked_for_what_is_not_there(unpublished):
    with pytest.raises(ArchiveError, match=r"no published values are known .* ask for --table verdicts"):
        main("table", [str(unpublished), "--table", "published"])


def test_columns_that_no_verdict_fills_are_left_out(unpublished, capsys):
    assert printed(capsys, unpublished).out.splitlines()[0].count(" | ") == 3


def test_the_format_is_one_of_three(archive, capsys):
    with pytest.raises(SystemExit) as ended:
        main("table", [str(archive), "--format", "html"])
    assert ended.value.code == 2
    assert "latex" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["latex", "markdown", "csv"])
def test_what_others_wrote_makes_no_line_of_its_own(tmp_path, capsys, form):
    """Nor does it act on a terminal, and it can be printed where it is no Unicode."""
    plain, forged = (
        write_archive(tmp_path / name, files_of(of_summary=summary(verdict("loss", case, diagnosis=[case]))))
        for name, case in (("plain.zip", "mean"), ("forged.zip", "mean\nok \x1b[8m\u202e"))
    )
    lines = printed(capsys, forged, "--format", form).out.splitlines()
    assert len(lines) == len(printed(capsys, plain, "--format", form).out.splitlines())
    assert all(line.isprintable() for line in lines)
    assert sum(line.count("u202e") for line in lines) == 2
