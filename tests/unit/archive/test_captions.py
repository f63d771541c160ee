import base64
import re

import pytest

from ddp_tokens.archive.captions import FIGURES, OF_SCALING, caption, figures, machine_text
from tests.unit.archive.made_up import MACHINE, PIXEL, archive, with_scaling


def text_of(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_each_figure_has_its_picture_its_three_files_and_a_caption():
    contents, _, experiment = archive()
    found = figures(FIGURES, contents, experiment)
    assert [figure["name"] for figure in found] == ["tokens", "gradients", "resume", "controls"]
    for figure in found:
        start, _, data = figure["picture"].partition(",")
        assert start == "data:image/svg+xml;base64"
        assert base64.b64decode(data).decode() == PIXEL
        assert list(figure["links"]) == ["PNG", "SVG", "PDF"]
        assert all(path in contents for path in figure["links"].values())
        assert len(text_of(figure["caption"])) > 300


def test_captions_are_those_of_the_report_filled_in():
    contents, _, experiment = archive()
    text = text_of(caption(contents, experiment, "gradients"))
    assert text.startswith("How far the distributed gradient of tiny is from the gradient of the same window")
    assert "1e-06 + 0.0001 x |ref|" in text
    assert not {"{{", "{%", "\\|", "``", "*"} & set(re.findall(r"\{\{|\{%|\\\||``|\*", text))
    assert "in each of the 4 windows" in text_of(caption(contents, experiment, "tokens"))
    assert "stopped after update 2" in text_of(caption(contents, experiment, "resume"))


@pytest.mark.parametrize("figure", [*FIGURES, *OF_SCALING], ids=lambda figure: figure.caption)
def test_no_caption_holds_a_complaint_of_docutils_or_leaves_something_empty(figure):
    contents, _, experiment = archive()
    html = caption(contents, experiment, figure.caption)
    assert "system-message" not in html
    assert "problematic" not in html
    assert "  " not in " ".join(html.split())


def test_captions_say_on_which_machine_and_ranks():
    contents, _, experiment = archive()
    found = {figure["name"]: figure["machine"] for figure in figures(FIGURES, contents, experiment)}
    machine = "machine: A CPU, 2 cores, with Python 3.11.7 and torch 2.13.0+cpu."
    assert found["tokens"] == f"Computed by 2 ranks on the CPU; {machine}"
    assert found["controls"] == f"Computed by one to four ranks on the CPU; {machine}"


def test_measured_figures_name_the_machine_that_measured():
    contents, _, experiment = archive()
    [found] = figures(OF_SCALING, with_scaling(contents), experiment)
    assert found["machine"] == (
        "Measured on Another CPU, 4 cores, with Python 3.11.7 and torch 2.13.0, over gloo, 1 thread per process."
    )
    assert figures(OF_SCALING, contents, experiment) == []


def test_gpus_are_named_once():
    gpus = [{"name": "A GPU"}, {"name": "A GPU"}]
    assert machine_text(MACHINE | {"gpus": gpus, "cores": 1}).startswith("A CPU, 1 core, A GPU, with Python")


def test_a_caption_can_neither_read_files_nor_bring_html(tmp_path):
    (tmp_path / "secret.txt").write_text("held back")
    contents, _, experiment = archive()
    text = f".. include:: {tmp_path / 'secret.txt'}\n\n.. raw:: html\n\n   <script>alert(1)</script>\n\n<b>\n"
    html = caption(contents | {"source/report/tokens.rst": text.encode()}, experiment, "tokens")
    assert "held back" not in html
    assert "<script" not in html
    assert "&lt;b&gt;" in html


def test_a_readers_docutils_settings_change_nothing(tmp_path, monkeypatch):
    contents, _, experiment = archive()
    plain = caption(contents, experiment, "tokens")
    (tmp_path / "docutils.conf").write_text("[general]\nsmart_quotes: yes\ninitial_header_level: 5\n")
    monkeypatch.chdir(tmp_path)
    assert caption(contents, experiment, "tokens") == plain
