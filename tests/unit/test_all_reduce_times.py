import pytest

from ddp_tokens.all_reduce_times import covered_s


@pytest.mark.parametrize(
    ("begun", "ended", "seconds"),
    [
        ([1.0], [3.0], 2.0),
        ([1.0, 4.0], [3.0, 5.0], 3.0),  # 2 and 1, one after the other
        ([1.0, 2.0], [3.0, 5.0], 4.0),  # 1 to 5: the second from 2 to 3 is the first's time too
        ([1.0, 2.0], [6.0, 3.0], 5.0),  # the second ends inside the first
        ([4.0, 1.0], [5.0, 3.0], 3.0),  # in any order
        ([], [], 0.0),
    ],
)
def test_time_that_two_buckets_share_counts_once(begun, ended, seconds):
    assert covered_s(begun, ended) == seconds


def test_a_bucket_that_never_ended_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        covered_s([1.0, 2.0], [3.0])
