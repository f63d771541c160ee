from hypothesis import given
from hypothesis import strategies as st

from ddp_tokens.corpora import known_ids
from ddp_tokens.corpora.known_ids import KnownIds


@given(st.lists(st.integers(0, 30).map(str)))
def test_an_id_is_known_from_its_second_time_on(ids):
    known, seen = KnownIds(), set()
    for row_id in ids:
        assert known.add(row_id) == (row_id in seen)
        seen.add(row_id)
        assert len(known) == len(seen)


def test_as_many_as_one_likes():
    """Beyond 682 of 1024 slots the table grows, beyond 1365 again, and so on."""
    known, ids = KnownIds(), [f"row-{index}" for index in range(10_000)]
    assert not any(map(known.add, ids))
    assert len(known) == 10_000
    assert all(map(known.add, ids))
    assert len(known) == 10_000
    assert not known.add("another")


def test_hashes_that_want_the_same_slot_get_another(monkeypatch):
    """Three that agree in their last ten bits, and the hash 0, which stands for an empty slot, twice."""
    hashes = {"a": 5, "b": 5 + 1024, "c": 5 - 2048, "d": 1023, "e": 1023 + 1024, "f": 0}
    monkeypatch.setattr(known_ids, "hash", hashes.get, raising=False)
    known = KnownIds()
    assert [known.add(row_id) for row_id in hashes] == [False] * 6
    assert [known.add(row_id) for row_id in hashes] == [True] * 6
