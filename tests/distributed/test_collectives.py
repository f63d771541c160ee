"""Sums over ranks, and the process group's way in and out."""

import pytest
import torch

from ddp_tokens.distributed import barrier, global_count, process_group, sum_over_ranks, texts_of_ranks
from ddp_tokens.window import count_window
from ddp_tokens.world import World
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.tiny import row


def collectives_in(function, *arguments):
    """What the function returns, and the names of the gloo operations that ran meanwhile, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = function(*arguments)
    return result, [event.name for event in profile.events() if event.name.startswith("gloo:")]


def count_units(world: World, counts: list[int]) -> list:
    return collectives_in(global_count, counts[world.rank])


def sum_floats(world: World, values: list[list[float]]) -> list:
    return collectives_in(sum_over_ranks, values[world.rank])


def count_a_window(world: World, lengths: list[list[int]]) -> list:
    return collectives_in(count_window, [[row(*[1] * length)] for length in lengths[world.rank]], "window 1")


@pytest.mark.parametrize("counts", [[7], [5, 1], [0, 3], [12, 36, 1], [3, 0, 0, 5]])
def test_units_are_summed_over_ranks_in_one_all_reduce(tmp_path, counts):
    assert run_ranks(count_units, len(counts), tmp_path, counts) == [[sum(counts), ["gloo:all_reduce"]]] * len(counts)


def test_counts_are_whole_numbers_beyond_what_a_float_can_count(tmp_path):
    """2^53 + (2^53 + 1) is odd and larger than 2^53, so float64 has no such number, and float32 even less."""
    counts = [2**53, 2**53 + 1]
    assert float(sum(counts)) != sum(counts)
    assert [count for count, _ in run_ranks(count_units, 2, tmp_path, counts)] == [2**54 + 1] * 2


def test_sums_are_taken_in_float64_element_by_element_in_one_all_reduce(tmp_path):
    """1 + 2^-40 needs 41 bits: float64 has 53, float32 24. Powers of two, so the order of the sum cannot matter."""
    assert float(torch.tensor(1 + 2**-40, dtype=torch.float32)) == 1.0
    values = [[1.0, 10.0], [2**-40, 20.0], [2**-40, 30.0]]
    assert run_ranks(sum_floats, 3, tmp_path, values) == [[[1 + 2**-39, 60.0], ["gloo:all_reduce"]]] * 3


def test_a_window_is_counted_over_all_microbatches_and_ranks_in_one_all_reduce(tmp_path):
    """Rank 0 holds 2 + 3 tokens, rank 1 holds 1 + 6: 12 in all."""
    own = run_ranks(count_a_window, 2, tmp_path, [[2, 3], [1, 6]])
    assert own == [[[5, 12], ["gloo:all_reduce"]], [[7, 12], ["gloo:all_reduce"]]]


def share_texts(world: World, texts: list[str]) -> list:
    return collectives_in(texts_of_ranks, texts[world.rank], "cpu", "texts")


@pytest.mark.parametrize("texts", [["alone"], ["", "größer"], ["a", "", "3 \n\0"], ["", ""]])
def test_texts_of_all_ranks_of_any_lengths_by_rank(tmp_path, texts):
    names = ["gloo:all_gather"] * 2
    assert run_ranks(share_texts, len(texts), tmp_path, texts) == [[texts, names]] * len(texts)


def raise_inside(world: World) -> list:
    seen = []
    try:
        with process_group("gloo", 20):
            barrier()
            seen.append(torch.distributed.is_initialized())
            raise ArithmeticError("inside")
    except ArithmeticError as error:
        seen += [str(error), torch.distributed.is_initialized()]
    with process_group("gloo", 20):
        return [*seen, global_count(world.rank + 1)]


def leave_alone(world: World) -> list:
    """Rank 1 fails inside the group while rank 0 waits for it in a collective."""
    try:
        with process_group("gloo", 20):
            barrier()
            if world.rank == 1:
                raise ArithmeticError("inside")
            global_count(1)
    except (ArithmeticError, RuntimeError) as error:
        return [type(error).__name__, torch.distributed.is_initialized()]
    return ["no error", torch.distributed.is_initialized()]


def test_the_group_is_left_when_an_exception_is_raised_and_another_can_be_joined(tmp_path):
    """Units of ranks 0 and 1 in the second group: 1 + 2 = 3."""
    assert run_ranks(raise_inside, 2, tmp_path, joined=False) == [[True, "inside", False, 3]] * 2


def test_a_rank_that_leaves_ends_the_wait_of_the_others(tmp_path):
    first, second = run_ranks(leave_alone, 2, tmp_path, joined=False)
    assert second == ["ArithmeticError", False]
    assert first[0] != "no error"
    assert first[1] is False


def never_join(world: World) -> None:
    with process_group("gloo", 2):
        if world.rank == 1:
            torch.distributed.distributed_c10d._get_default_store().wait(["a key that nobody sets"])
        global_count(1)


def test_a_collective_without_answer_is_an_error_after_the_time_limit(tmp_path):
    """Both ranks wait for what never comes; the group's own limit, 2 s, ends them long before the helper's 60 s."""
    with pytest.raises(RankError, match=r"(?i)timed? ?out"):
        run_ranks(never_join, 2, tmp_path, joined=False)


def test_one_process_without_a_group_counts_for_itself():
    assert global_count(7) == 7
    assert sum_over_ranks([1.5, 2.0]) == [1.5, 2.0]
    assert texts_of_ranks("own", "cpu", "texts") == ["own"]
