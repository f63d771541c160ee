"""report.html as it is opened: from a file, at the width of a desk and of a phone, and on paper."""

import pytest

from ddp_tokens.archive.report_page import report_page
from tests.unit.archive.browser import browser, leads_somewhere, program
from tests.unit.archive.made_up import archive, with_scaling

pytestmark = pytest.mark.skipif(program() is None, reason="needs Chromium (Debian's package chromium), not found here")

DESK, PHONE = 1280, 390
A4 = (680, 1009)  # pixels of 1/96 inch inside margins of 1.5 cm
LONG = "results/tiny/" + "a_long_name_without_a_break_" * 8 + ".json"
PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>a page</title>
<meta name="viewport" content="width=device-width"><body id="top">{}</body></html>"""
PIXEL = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/%3E"


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """With a name that has no place to break, of a file that was left out."""
    folder = tmp_path_factory.mktemp("unpacked")
    contents, document, experiment = archive(
        omitted={LONG: {"bytes": 2**30, "sha256": "5" * 64, "made_by": "Snakemake's rule resume, in a rebuild"}}
    )
    contents = with_scaling(contents)
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "report.html").write_text(report_page(contents, document, experiment))
    return folder


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_page_has_no_fault_on_a_screen(opened, unpacked, width):
    seen = opened.look_at(unpacked / "report.html", width)
    assert seen.faults == []
    assert seen.images == 5
    assert len(seen.links) > 30
    assert "Is the gradient right?" in seen.text
    assert LONG in seen.text


def test_the_page_has_no_fault_on_paper_and_its_first_part_fits_a_sheet(opened, unpacked):
    seen = opened.look_at(unpacked / "report.html", *A4, media="print")
    assert seen.faults == []
    assert seen.pdf.startswith(b"%PDF")
    assert 200 < seen.front < A4[1]


def faults_of(opened, tmp_path, body, width=PHONE):
    (tmp_path / "page.html").write_text(PAGE.format(body))
    return opened.look_at(tmp_path / "page.html", width).faults


def test_a_page_without_a_fault_has_none(opened, tmp_path):
    (tmp_path / "a b.json").write_text("{}")
    body = (
        f'<img src="{PIXEL}" alt=""><a href="a%20b.json">file</a><a href="#top">top</a><a href="https://example.org">'
    )
    assert faults_of(opened, tmp_path, body) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<script>console.error('it went wrong')</script>", "console error: it went wrong"),
        ("<script>console.warn('look here')</script>", "console warning: look here"),
        ("<script>throw new Error('thrown')</script>", "console error: Uncaught"),
        ('<img src="https://example.org/a.png" alt="">', "outside request: https://example.org/a.png"),
        (
            "<style>@font-face{font-family:a;src:url(https://example.org/a.woff2)}p{font-family:a}</style><p>text</p>",
            "outside request: https://example.org/a.woff2",
        ),
        ('<img src="data:image/png;base64,AAAA" alt="">', "broken image: data:image/png;base64,AAAA"),
        ('<img src="missing.png" alt="">', "broken image: missing.png"),
        ('<a href="missing.json">file</a>', "dead link: missing.json"),
        ('<a href="../page.html">outside the folder</a>', "dead link: ../page.html"),
        ('<a href="#missing">part</a>', "dead link: #missing"),
        ('<p style="width: 500px">wide</p>', "too wide: "),
    ],
)
def test_each_fault_is_noticed(opened, tmp_path, body, fault):
    found = faults_of(opened, tmp_path, body)
    assert any(each.startswith(fault) for each in found), found


def test_faults_of_one_page_are_not_those_of_the_next(opened, tmp_path):
    assert faults_of(opened, tmp_path, "<script>console.error('it went wrong')</script>")
    assert faults_of(opened, tmp_path, "<p>nothing wrong</p>") == []


def test_a_link_to_a_folder_or_out_of_the_archive_leads_nowhere(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path.parent / "outside.json").write_text("{}")
    for link in ("inside", "../outside.json", (tmp_path / "inside").as_uri(), "%2e%2e/outside.json"):
        assert not leads_somewhere(link, [], tmp_path)


def fail_in_a_browser(used):
    with browser() as found:
        used.append(found)
        assert found.profile.is_dir()
        raise ValueError("a test that fails")


def test_a_failure_leaves_no_browser_and_no_profile_behind():
    used = []
    with pytest.raises(ValueError, match="a test that fails"):
        fail_in_a_browser(used)
    [found] = used
    assert found.process.returncode is not None
    assert not found.profile.exists()


def test_a_browser_that_has_ended_is_an_error_and_not_a_wait(tmp_path):
    with browser() as found:
        found.process.kill()
        with pytest.raises((RuntimeError, BrokenPipeError)):
            found.look_at(tmp_path / "page.html", DESK)
