"""The order of an epoch is that of torch's DistributedSampler, without the rows that it repeats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from ddp_tokens.corpora.rows import Row
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.epochs import windows_per_epoch
from ddp_tokens.plan import make_epochs
from ddp_tokens.sampler import sampler


def numbered(number):
    return TrainingRows(Row(f"{index}", "train", (0,), (0,)) for index in range(number))


def planned(rows, world_size, *, epochs=1, accumulation=1, batch=1, seed=0, drop_last=False):
    windows = windows_per_epoch(rows, world_size, accumulation * batch, drop_last)
    deal = sampler(rows, world_size, seed, drop_last)
    how = {"steps": epochs * windows, "accumulation": accumulation, "batch": batch, "drop_last": drop_last}
    return list(make_epochs(numbered(rows), deal, **how))


def indices(plan, rank):
    return [[[int(row_id) for row_id in microbatch] for microbatch in window[rank]] for window in plan]


def loaded(rows, world_size, rank, *, epochs, accumulation, batch, seed, drop_last):
    """What a training script of torch's own parts computes: windows of batches of indices. Where the sampler pads, the
    places that it has repeated are known by their number only: a rank's last, where it has one row fewer.
    """
    dealt = DistributedSampler(range(rows), world_size, rank, seed=seed, drop_last=drop_last)
    own = len(range(rank, rows, world_size))
    loader = DataLoader(range(rows), batch_size=batch, sampler=dealt, drop_last=drop_last)
    windows = []
    for epoch in range(epochs):
        dealt.set_epoch(epoch)
        batches, left = [], own
        for indices_of_batch in loader:
            counted = indices_of_batch.tolist()[: max(0, left)]
            left -= len(indices_of_batch)
            batches.append(counted)
        of_epoch = [batches[start : start + accumulation] for start in range(0, len(batches), accumulation)]
        windows += [w for w in of_epoch if not drop_last or len(w) == accumulation]
    return windows


CASES = [
    (rows, world_size, accumulation, batch, drop_last)
    for rows in (16, 17, 21, 40)
    for world_size in (1, 2, 3)
    for accumulation, batch in ((1, 1), (1, 4), (2, 3))
    for drop_last in (False, True)
    if not drop_last or rows // world_size >= accumulation * batch
]


@pytest.mark.parametrize(("rows", "world_size", "accumulation", "batch", "drop_last"), CASES)
def test_the_plan_is_what_the_sampler_and_a_loader_deal(rows, world_size, accumulation, batch, drop_last):
    """Three epochs, in which the order differs. A batch of nothing but a repeated row is one without rows here, beside
    others of its window left out.
    """
    how = {"epochs": 3, "accumulation": accumulation, "batch": batch, "seed": 7, "drop_last": drop_last}
    plan = planned(rows, world_size, **how)
    for rank in range(world_size):
        expected = [[batch for batch in window if batch] or [[]] for window in loaded(rows, world_size, rank, **how)]
        assert indices(plan, rank) == expected
    windows = len(plan) // 3
    assert plan[:windows] != plan[windows : 2 * windows] != plan[2 * windows :]


SIZES = (st.integers(1, 50), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))


@given(*SIZES)
def test_each_row_is_there_once_in_each_epoch(rows, world_size, accumulation, batch, seed):
    plan = planned(rows, world_size, epochs=2, accumulation=accumulation, batch=batch, seed=seed)
    for epoch in (plan[: len(plan) // 2], plan[len(plan) // 2 :]):
        of_ranks = [
            [i for window in indices(epoch, rank) for microbatch in window for i in microbatch]
            for rank in range(world_size)
        ]
        assert sorted(index for own in of_ranks for index in own) == list(range(rows))
        assert max(map(len, of_ranks)) - min(map(len, of_ranks)) <= 1
        for window in epoch:
            assert len(window) == world_size
            assert all(1 <= len(own) <= accumulation and max(map(len, own)) <= batch for own in window)
            assert sum(len(microbatch) for own in window for microbatch in own) > 0
        for window in epoch[:-1]:
            assert all([len(microbatch) for microbatch in own] == [batch] * accumulation for own in window)


@given(*SIZES)
def test_with_drop_last_all_windows_are_full_and_no_row_is_there_twice(rows, world_size, accumulation, batch, seed):
    if rows // world_size < accumulation * batch:
        return
    plan = planned(rows, world_size, accumulation=accumulation, batch=batch, seed=seed, drop_last=True)
    assert all([len(microbatch) for microbatch in own] == [batch] * accumulation for window in plan for own in window)
    ids = [row_id for window in plan for own in window for microbatch in own for row_id in microbatch]
    assert len(set(ids)) == len(ids)
    assert rows - len(ids) < world_size * (accumulation * batch + 1), "no more is left out than fills no window"


def test_the_last_window_is_short_and_uneven():
    """21 rows, 2 ranks, 2 x 3 per window: 11 and 10 rows; the second window holds 3 + 2 and 3 + 1."""
    assert [[[len(m) for m in own] for own in window] for window in planned(21, 2, accumulation=2, batch=3)] == [
        [[3, 3], [3, 3]],
        [[3, 2], [3, 1]],
    ]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_without_a_row_takes_part_with_a_microbatch_of_none(world_size):
    """W * k * b + 1 rows: all but rank 0 have none left in the last window."""
    first, last = planned(world_size * 2 * 3 + 1, world_size, accumulation=2, batch=3)
    assert [[len(m) for m in own] for own in first] == [[3, 3]] * world_size
    assert [[len(m) for m in own] for own in last] == [[1]] + [[0]] * (world_size - 1)


def test_fewer_rows_than_ranks_are_dealt_too():
    assert [[len(m) for m in own] for own in planned(2, 3)[0]] == [[1], [1], [0]]


def test_a_run_may_end_inside_an_epoch():
    whole = planned(21, 2, epochs=3, batch=4, seed=3)
    deal = sampler(21, 2, 3, False)
    assert len(whole) == 9
    for steps in (1, 4, 9):
        part = make_epochs(numbered(21), deal, steps=steps, accumulation=1, batch=4, drop_last=False)
        assert list(part) == whole[:steps]


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 9), st.integers(0, 3), st.booleans())
def test_the_order_of_an_epoch_is_the_samplers(rows, world_size, seed, epoch, drop_last):
    """But for what it repeats, which is a rank's last."""
    dealt = sampler(rows, world_size, seed, drop_last)(epoch)
    for rank in range(world_size):
        torchs = DistributedSampler(range(rows), world_size, rank, seed=seed, drop_last=drop_last)
        torchs.set_epoch(epoch)
        assert list(dealt[rank]) == list(torchs)[: len(range(rank, rows, world_size))]


def test_another_seed_deals_another_order():
    assert planned(21, 2, seed=1) != planned(21, 2, seed=2)
    assert planned(21, 2, seed=1) == planned(21, 2, seed=1)


def test_torchs_own_generator_is_left_alone():
    before = torch.get_rng_state()
    planned(21, 2, epochs=2)
    assert torch.equal(torch.get_rng_state(), before)
