import pytest

from ddp_tokens.errors import EvidenceError
from ddp_tokens.ring import Link, fit, medians, messages, ring_s, sent_share
from ddp_tokens.scaling_rows import AllReduce, read_all_reduces
from tests.helpers import write_lines

LINK = Link(latency_s=1e-4, byte_s=1e-9)  # 100 us and 1,000 MB/s
SIZES = (4_096, 65_536, 1_048_576, 16_777_216)


def reduced(processes, size, *seconds, repeat=1):
    of_ranks = list(seconds) * (1 if len(seconds) == processes else processes)
    return AllReduce(processes=processes, bytes=size, repeat=repeat, seconds=of_ranks)


def rows_of(link, crowding=lambda ranks: 1.0, processes=(2, 4), sizes=SIZES):
    return [reduced(p, size, crowding(p) * ring_s(p, size, link)) for p in processes for size in sizes]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, 0.0),  # nobody to talk to
        (2, 2 * 1e-4 + 1.0 * 1e-3),
        (4, 6 * 1e-4 + 1.5 * 1e-3),
        (1024, 2046 * 1e-4 + 2 * 1023 / 1024 * 1e-3),
    ],
)
def test_what_a_megabyte_costs_around_the_ring(ranks, expected):
    assert ring_s(ranks, 1_000_000, LINK) == pytest.approx(expected)


def test_many_ranks_send_nearly_twice_the_bytes_and_wait_for_each_message():
    assert [sent_share(ranks) for ranks in (1, 2, 4)] == [0, 1, 1.5]
    assert 1.999 < sent_share(10_000) < 2
    assert [messages(ranks) for ranks in (1, 2, 1024)] == [0, 2, 2046]


def test_each_bucket_pays_the_latency_again_and_the_bytes_once():
    """Four ranks, three buckets: 18 messages of 100 us and 1.5 MB at 1,000 MB/s."""
    assert ring_s(4, 1_000_000, LINK, buckets=3) == pytest.approx(18e-4 + 1.5e-3)


def test_a_repeat_is_told_by_the_rank_that_waited_for_nobody():
    """Smallest of each repeat 3, 1 and 2 ms: the median is 2."""
    rows = [reduced(2, 8, high, low) for high, low in ((0.009, 0.003), (0.001, 0.5), (0.002, 0.002))]
    assert medians(rows) == {(2, 8): 0.002}


@pytest.mark.parametrize("link", [LINK, Link(1e-6, 1e-10), Link(0.01, 1e-8)])
def test_the_fit_finds_the_link_that_made_the_times(link):
    found, fitted = fit(rows_of(link), lambda ranks: 1.0)
    assert (found.latency_s, found.byte_s) == (pytest.approx(link.latency_s), pytest.approx(link.byte_s))
    assert found.bandwidth_mb_s == pytest.approx(1e-6 / link.byte_s)
    assert len(fitted) == 8
    assert all(each.used and each.relative_error == pytest.approx(0, abs=1e-9) for each in fitted)


def test_twice_and_half_are_equally_wrong():
    """Two times that are 2 and 1/2 of the link's, of nearly the same large size, leave the bandwidth where it is."""
    rows = rows_of(LINK, processes=(2,), sizes=(8, 16))
    size = 10**9
    told = ring_s(2, size, LINK)
    found, _ = fit([*rows, reduced(2, size, 2 * told), reduced(2, size + 1, told / 2)], lambda ranks: 1.0)
    assert found.byte_s == pytest.approx(LINK.byte_s, rel=1e-3)


def test_processes_that_share_cores_are_predicted_by_those_that_do_not():
    """Four on two cores: their times are twice those of the ring and 3 ms more, which the fit must not see."""

    def crowding(ranks):
        return max(1.0, ranks / 2)

    crowded = [reduced(4, size, 2 * ring_s(4, size, LINK) + 0.003) for size in SIZES]
    found, fitted = fit([*rows_of(LINK, processes=(2,)), *crowded], crowding)
    assert found.latency_s == pytest.approx(LINK.latency_s)
    assert [each.used for each in fitted] == [True] * 4 + [False] * 4
    largest = fitted[-1]
    assert largest.fitted_s == pytest.approx(2 * ring_s(4, SIZES[-1], LINK))
    assert largest.relative_error == pytest.approx(-0.003 / largest.measured_s)


def test_where_all_share_cores_the_factor_is_taken_out():
    found, fitted = fit(rows_of(LINK, crowding=float), float)
    assert (found.latency_s, found.byte_s) == (pytest.approx(1e-4), pytest.approx(1e-9))
    assert all(each.used for each in fitted)


@pytest.mark.parametrize("rows", [[], [reduced(2, 8, 0.1), reduced(2, 8, 0.2)]])
def test_one_size_tells_no_latency_from_bandwidth(rows):
    with pytest.raises(EvidenceError, match=r"all_reduce.jsonl: two sizes or more are needed .* measure again"):
        fit(rows, lambda ranks: 1.0)


WRONG = {
    '{"processes": 1, "bytes": 8, "repeat": 1, "seconds": [0.1]}': "processes: input should be greater",
    '{"processes": 2, "bytes": 0, "repeat": 1, "seconds": [0.1, 0.1]}': "bytes: input should be greater",
    '{"processes": 2, "bytes": 8, "repeat": 1, "seconds": [0.1, 0]}': "seconds: 1: input should be greater",
    '{"processes": 2, "bytes": 8, "repeat": 1, "seconds": [0.1]}': "seconds needs a number for each of 2 ranks, not 1",
    '{"processes": 2, "bytes": 8, "seconds": [0.1, 0.1]}': "repeat: field required",
}


@pytest.mark.parametrize(("line", "problem"), WRONG.items())
def test_a_row_of_another_form_is_refused_by_line(tmp_path, line, problem):
    good = '{"processes": 2, "bytes": 8, "repeat": 1, "seconds": [0.1, 0.1]}'
    path = write_lines(tmp_path / "all_reduce.jsonl", good, line)
    with pytest.raises(EvidenceError) as refusal:
        read_all_reduces(path)
    assert f"{path}, line 2: " in str(refusal.value)
    assert problem in str(refusal.value)
    assert "measure again" in str(refusal.value)
