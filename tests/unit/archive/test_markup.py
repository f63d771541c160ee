"""Escaping: what a cell says is what a reader sees."""

import shutil
import subprocess

import pytest

from ddp_tokens.archive.markup import in_markdown, latex_table, markdown_table, text_table


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("token_mean.native.first", "token_mean.native.first"),
        ("_slanted_ text", r"\_slanted\_ text"),
        ("a | b", r"a \| b"),
        ("`code`", r"\`code\`"),
        ("a\\|b", r"a\\\|b"),
        ("**bold** <b>", r"\*\*bold\*\* \<b\>"),
        ("[a](b) ~c~ $d$", r"\[a\](b) \~c\~ \$d\$"),
        ("two\nlines", "two lines"),
        ("± 2 % é", "± 2 % é"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text, escaped):
    assert in_markdown(text) == escaped


def test_a_markdown_table_has_as_many_cells_as_its_header():
    header, rule, row = markdown_table(["a|b", "c"], [["x|y", "1e-08"]]).splitlines()
    assert header.count(" | ") == rule.count("|") - 2 == row.count(" | ") == 1
    assert row == r"| x\|y   | 1e-08 |"


def test_latex_escapes_what_would_be_a_command():
    table = latex_table(["check_name"], [[r"50 % & a^b # $x$ {y} ~z \w <v>"]])
    assert r"50 \% \& a\^{}b \# \$x\$ \{y\} \textasciitilde{}z \textbackslash{}w" in table
    assert r"\ensuremath{<}v\ensuremath{>}" in table
    assert r"check\_name" in table
    assert table.startswith("\\begin{tabular}{l}\n\\toprule")
    assert table.endswith("\\end{tabular}")


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        ("2.98e-08", r"$2.98 \times 10^{-8}$"),
        ("3.15e+11", r"$3.15 \times 10^{11}$"),
        ("atol 1e-06 and rtol 0.0001", r"atol $1 \times 10^{-6}$ and rtol 0.0001"),
        ("step-1e-5f", "step-1e-5f"),
        ("4be-8", "4be-8"),
    ],
)
def test_latex_writes_powers_of_ten(number, shown):
    [row] = [line for line in latex_table(["error"], [[number]]).splitlines() if line.endswith(r"\\")][1:]
    assert row.removesuffix(r"\\").strip() == shown


def test_latex_has_letters_that_pdflatex_lacks():
    table = latex_table(["a"], [["x ≤ 1 → y ≥ \N{MINUS SIGN}2 ± é a|b --into"]])
    shown = r"x \ensuremath{\leq} 1 \ensuremath{\to} y \ensuremath{\geq} \ensuremath{-}2 \ensuremath{\pm} é"
    assert rf"{shown} a\textbar{{}}b -{{}}-into" in table


def test_latex_takes_no_cell_for_an_option_of_the_line_break():
    table = latex_table(["a"], [["first"], ["[2pt]"], ["*"]])
    assert " {}[2pt]" in table
    assert " {}*" in table


def test_no_format_takes_a_text_for_a_number():
    """A commit such as 1e10 and a case such as 007 stay as they are."""
    for table in (text_table(["a"], [["007"]]), markdown_table(["a"], [["007"]]), latex_table(["a"], [["007"]])):
        assert "007" in table


EVERYTHING = r"50 % & a^b # $x$ {y} ~z \w <v> a|b -- 2.98e-08 ± é ≤ ≥ → `"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex and its package booktabs")
def test_pdflatex_takes_it(tmp_path):
    table = latex_table(["check_name"], [[EVERYTHING], ["[2pt]"], ["*"]])
    start = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "paper.tex").write_text(f"{start}\n{table}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("table", [text_table, markdown_table, latex_table])
def test_a_cell_cannot_act_on_a_terminal_nor_make_a_row_of_its_own(table):
    """Nor a title; a text that is no Unicode can be printed."""
    cell = "fail\nok\x1b[8m\u202e\ud800"
    plain, made = table(["title"], [["cell"]]), table([cell], [[cell]])
    assert len(made.splitlines()) == len(plain.splitlines())
    assert made.replace("\n", "").isprintable()
    told = {text_table: r"\x1b[8m\u202e\ud800", markdown_table: r"\\x1b\[8m\\u202e\\ud800"}
    told[latex_table] = r"\textbackslash{}x1b[8m\textbackslash{}u202e\textbackslash{}ud800"
    assert made.count(told[table]) == 2
