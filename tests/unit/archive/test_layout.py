import hashlib

from ddp_tokens.archive.layout import Document, comparison_digest, is_compared, sums

A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_sums_are_what_sha256sum_writes_sorted_by_path():
    assert sums({"results/b": B, "results/a": A}) == f"{A}  results/a\n{B}  results/b\n"


def test_the_comparison_digest_is_that_of_the_lines_of_the_results():
    expected = hashlib.sha256(f"{A}  results/a\n{B}  results/x/b\n".encode()).hexdigest()
    assert comparison_digest({"results/x/b": B, "results/a": A}) == expected


def test_it_covers_results_and_nothing_else():
    alone = comparison_digest({"results/a": A})
    others = dict.fromkeys(("machine/times.csv", "source/results/README.md", "README.md", "report.html", "results"), C)
    assert comparison_digest({"results/a": A, **others}) == alone
    assert comparison_digest({"results/a": B}) != alone
    assert comparison_digest({"results/a": A, "results/b": B}) != alone
    assert comparison_digest({"results/b": A}) != alone
    assert [is_compared(path) for path in ("results/a", "resultsother/a", "machine/results/a")] == [True, False, False]


def test_the_document_holds_its_format():
    document = Document("minimum", A, True, "0.1.0", {"commit": None, "date": None, "dirty": None})
    assert document.as_json()["format"] == 1
    assert Document(**document.as_json()) == document
