import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_tokens.epochs import ends_epoch, place_in_epoch, windows_per_epoch


def counted(rows, world_size, rows_per_rank, drop_last):
    """Row by row: deal in turn, then take windows for as long as any rank has a row, or while every rank has enough."""
    left = [0] * world_size
    for row in range(rows):
        left[row % world_size] += 1
    windows = 0
    while min(left) >= rows_per_rank if drop_last else any(left):
        left = [max(0, of_rank - rows_per_rank) for of_rank in left]
        windows += 1
    return windows


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_windows_are_as_many_as_dealing_row_by_row_fills(rows, world_size, rows_per_rank, drop_last):
    expected = counted(rows, world_size, rows_per_rank, drop_last)
    if expected:
        assert windows_per_epoch(rows, world_size, rows_per_rank, drop_last) == expected
        return
    with pytest.raises(ValueError, match=f"^{rows} training rows over world_size {world_size} do not fill one window"):
        windows_per_epoch(rows, world_size, rows_per_rank, drop_last)


def test_the_published_number_of_windows():
    """50,000 images on 2 ranks: 25,000 each, in batches of 64 that is 390.6, so 391 windows; 390 are full."""
    assert windows_per_epoch(50_000, 2, 64, drop_last=False) == 391
    assert windows_per_epoch(50_000, 2, 64, drop_last=True) == 390


def test_a_resume_at_window_200_goes_on_in_epoch_1_at_window_75():
    """125 windows per epoch: updates 1 to 125 are epoch 0, updates 126 to 250 are epoch 1, whose window 0 is update
    126. Update 201 is the first after the resume: 201 - 126 = 75.
    """
    assert place_in_epoch(201, 125) == (1, 75)
    assert [place_in_epoch(step, 125) for step in (1, 125, 126, 200, 250)] == [
        (0, 0),
        (0, 124),
        (1, 0),
        (1, 74),
        (1, 124),
    ]


@given(st.integers(1, 500), st.integers(1, 50))
def test_an_update_has_one_place(step, windows):
    epoch, window = place_in_epoch(step, windows)
    assert 0 <= window < windows
    assert epoch * windows + window + 1 == step
    assert ends_epoch(step, windows) == (window == windows - 1)
