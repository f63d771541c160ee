import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from ddp_tokens.archive.report_page import report_page
from tests.unit.archive.made_up import EVALUATION, archive, checks, parity, summary, verdict, with_scaling
from tests.unit.controls.synthetic import missed

EVIDENCE = "results/tiny/reference/parts.safetensors"
OMITTED = {EVIDENCE: {"bytes": 3 * 2**30, "sha256": "5" * 64, "made_by": "Snakemake's rule reference, in a rebuild"}}


class Parsed(HTMLParser):
    """Links, pictures, ids and text; `open` holds what was not closed."""

    VOID = ("meta", "img", "br", "hr", "link", "input")

    def __init__(self, page):
        super().__init__()
        self.links, self.pictures, self.ids, self.tags, self.open, self.words = [], [], [], [], [], []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if "href" in found:
            self.links.append(found["href"])
        if "src" in found:
            self.pictures.append(found["src"])
        if "id" in found:
            self.ids.append(found["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "title"} & set(self.open):
            self.words.append(data)


def parsed(**of):
    contents, document, experiment = archive(**of)
    return Parsed(report_page(contents, document, experiment))


def test_the_first_things_are_claim_verdict_digest_source_and_four_answers():
    text = parsed().text
    places = [
        text.index(part)
        for part in (
            "Claimed: the gradient that DistributedDataParallel leaves on 2 ranks",
            "stopped after update 2 and was resumed is the uninterrupted run of 4 updates",
            "verdicts in 8 checks, all as expected.",
            f"Comparison digest {'d' * 64}",
            f"commit {'c' * 40} of 2026-01-02T03:04:05+00:00, unchanged",
            "Is the gradient right? Yes",
            "Is the resume exact? Yes",
            "What does the trained model score? 54.05 % of the test tokens right",
            "Would the checks have caught known mistakes? Yes",
            "Figures Verdicts Scores Controls",
        )
    ]
    assert places == sorted(places)


def test_the_same_contents_give_the_same_page_whether_bytes_or_files(tmp_path):
    contents, document, experiment = archive()
    once = report_page(contents, document, experiment)
    as_files = {}
    for number, (name, content) in enumerate(reversed(contents.items())):
        as_files[name] = tmp_path / str(number)
        as_files[name].write_bytes(content)
    assert report_page(as_files, document, experiment) == once


def test_the_page_needs_nothing_else():
    contents, document, experiment = archive()
    page = report_page(with_scaling(contents), document, experiment)
    found = Parsed(page)
    assert found.open == []
    assert not {"script", "link", "iframe", "object", "embed"} & set(found.tags)
    assert len(found.pictures) == 5
    assert all(picture.startswith("data:image/svg+xml;base64,") for picture in found.pictures)
    assert not re.search(r"https?://|@import|url\(|\son\w+=", page)
    assert len(found.ids) == len(set(found.ids))


def test_every_link_leads_to_a_file_of_the_archive_or_a_part_of_the_page():
    contents, document, experiment = archive(omitted=OMITTED)
    contents = with_scaling(contents)
    found = Parsed(report_page(contents, document, experiment))
    assert len(found.links) > 30
    for link in found.links:
        if link.startswith("#"):
            assert link[1:] in found.ids
        else:
            assert unquote(link) in contents, link


def test_each_verdict_links_to_what_it_compared_with_its_digest():
    found = parsed()
    number = sum(map(len, checks().values()))
    assert found.links.count("results/tiny/plan.json") == number
    assert found.links.count(EVIDENCE) == number
    assert found.text.count("n" * 64) == number
    assert "results/tiny/checks/gradient_parity.json" in found.links


def test_what_was_left_out_is_named_and_not_linked():
    found = parsed(omitted=OMITTED)
    assert EVIDENCE not in found.links
    assert f"{EVIDENCE} (left out of the archive, 3.0 GiB) {'s' * 64}" in found.text
    assert f"{EVIDENCE} 3.0 GiB {'5' * 64} Snakemake's rule reference, in a rebuild" in found.text
    assert "Left out" not in parsed().text


def test_what_a_verdict_compared_and_nobody_holds_is_named_and_not_linked():
    elsewhere = verdict("a_case")
    elsewhere = replace(elsewhere, evidence={"/elsewhere/a.json": "e" * 64})
    found = parsed(of_summary=summary(loss=[elsewhere]))
    assert f"/elsewhere/a.json (not in the archive) {'e' * 64}" in found.text
    assert "/elsewhere/a.json" not in found.links


def test_a_failure_is_told_on_top_and_marked_in_its_table():
    wrong = [replace(each, outcome="fail") if each.case == "token_mean.native.first" else each for each in parity()]
    text = parsed(of_summary=summary(gradient_parity=wrong)).text
    first, _, rest = text.partition("Figures Verdicts")
    assert "not all as expected: gradient_parity/token_mean.native.first is fail, expected pass." in first
    assert "Is the gradient right? No Not as expected: gradient_parity/token_mean.native.first is fail" in first
    assert "Is the resume exact? Yes" in first
    assert "✗ not as expected" in rest


def test_missed_controls_are_told_on_top_and_marked_in_the_table():
    text = parsed(judged=missed()).text
    first, _, rest = text.partition("Figures Verdicts")
    assert "Would the checks have caught known mistakes? No" in first
    row = "mean_of_means normalization gradient_parity fail mean of means pass ✗ not as expected"
    assert row in rest


def test_an_archive_without_controls_says_so():
    contents, document, experiment = archive()
    del contents["results/controls/controls.json"]
    text = Parsed(report_page(contents, document, experiment)).text
    assert "Would the checks have caught known mistakes? Cannot be told" in text
    assert "The archive holds no controls." in text


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            {"commit": None, "date": None, "dirty": None},
            "commit not known, since git could not be asked (version 0.1.0)",
        ),
        (
            {"commit": "c" * 40, "date": None, "dirty": True},
            f"commit {'c' * 40}, with uncommitted changes (version 0.1.0)",
        ),
    ],
)
def test_the_state_of_the_source_is_told(source, told):
    assert told in parsed(source=source).text.replace(" , ", ", ")


def test_changes_are_linked_where_the_archive_holds_them():
    contents, document, experiment = archive(source={"commit": "c" * 40, "date": None, "dirty": True})
    found = Parsed(report_page(contents | {"source.diff": b"+"}, document, experiment))
    assert "source.diff" in found.links


def test_train_anyway_is_told():
    assert "train_anyway was set:" in parsed(of_summary=summary(settings={"train_anyway": True})).text
    assert "train_anyway was set:" not in parsed().text


def test_units_machine_versions_and_times_are_told():
    text = parsed().text
    assert "Rules of tiny Wall time (s) CPU time (s) Memory (MiB) resume 29.63 8.56 963.30" in text
    assert "processor A CPU, 2 cores for the project memory 8.0 GiB" in text
    assert "threads per rank 1" in text
    assert "python 3.11.7 torch 2.13.0+cpu" in text
    assert "Losses are in nats" in text


def test_all_settings_are_shown():
    text = parsed().text
    assert "interrupt_at : 2" in text
    assert "world_size : 2" in text


def test_what_was_not_recorded_is_said():
    contents, document, experiment = archive()
    kept = {name: content for name, content in contents.items() if name != "machine/imported.json"}
    assert "Versions that training imported Not recorded." in Parsed(report_page(kept, document, experiment)).text


def test_scaling_is_told_only_where_it_was_measured():
    contents, document, experiment = archive()
    found = Parsed(report_page(with_scaling(contents), document, experiment))
    assert "Scaling Two were faster than one." in found.text
    assert "machine/scaling/scaling.pdf" in found.links
    without = Parsed(report_page(contents, document, experiment))
    assert "scaling" not in without.ids


def test_two_commands_verify_and_rebuild():
    text = parsed().text
    assert "tiny/source/.venv/bin/python -m ddp_tokens.cli verify tiny.zip" in text
    assert "tiny/source/.venv/bin/python -m ddp_tokens.cli rebuild tiny.zip --into rebuilt" in text


def test_whatever_an_archive_says_is_escaped():
    evil = "<script>alert(1)</script>"
    contents, document, experiment = archive(
        of_summary=summary(
            scores=EVALUATION | {"samples": [evil], "samples_at_start": [evil]},
            loss=[verdict(evil, criterion=evil, text=evil)],
        ),
        source={"commit": evil, "date": evil, "dirty": False},
        omitted={EVIDENCE: OMITTED[EVIDENCE] | {"made_by": evil}},
    )
    machine = json.loads(contents["machine/environment.json"])
    machine["machine"]["cpu"] = evil
    contents["machine/environment.json"] = json.dumps(machine).encode()
    page = report_page(contents, document, experiment)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 8
