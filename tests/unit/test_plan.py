from hashlib import sha256
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_tokens.config import GeneratedCorpus
from ddp_tokens.corpora.generated import make
from ddp_tokens.corpora.rows import supervised_in
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.errors import EvidenceError, PlanError
from ddp_tokens.files import to_json
from ddp_tokens.plan import (
    BY_INDEX,
    BY_LENGTH,
    counts_per_rank,
    dealt,
    equally_many_microbatches,
    make_epochs,
    make_plan,
    make_shard,
    microbatches_of,
    one_share_each,
    planned_steps,
    pools,
    read_plan,
    repartition,
    windows_to_compare,
    write_plan,
)
from tests.helpers import make_row

ROWS = [make_row(f"row-{index:02d}", length=1 + (7 * index) % 11) for index in range(24)]
BY_ID = {row.id: row for row in ROWS}


def plan_of(rows=ROWS, **changes):
    how = {"seed": 1, "steps": 5, "world_size": 2, "accumulation": 2, "batch": 3} | changes
    return list(make_plan(TrainingRows(rows), **how))


def ids_of_pools(rows, world_size, sharding=BY_LENGTH):
    return [[rows[index].id for index in pool] for pool in pools(TrainingRows(rows), world_size, sharding)]


@given(st.integers(0, 40), st.integers(1, 6))
def test_every_row_is_in_exactly_one_pool(number, world_size):
    rows = [make_row(f"r{index}", length=1 + index % 5) for index in range(number)]
    parts = ids_of_pools(rows, world_size)
    assert sorted(row_id for part in parts for row_id in part) == sorted(row.id for row in rows)
    assert len(parts) == world_size
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_pools_are_in_order_of_length_then_id():
    rows = [make_row("b", 2), make_row("c", 1), make_row("a", 2), make_row("d", 9)]
    assert ids_of_pools(rows, 2) == [["c", "a"], ["b", "d"]]


def test_two_ranks_split_the_built_in_corpus_at_64_tokens():
    """512 training rows have 16 to 64 tokens and 512 have 65 to 128, so the halves in order of length are these."""
    rows = [row for row in make(GeneratedCorpus(), 17) if row.split == "train"]
    length = {row.id: len(row.tokens) for row in rows}
    short, long = ids_of_pools(rows, 2)
    assert (len(short), len(long)) == (512, 512)
    assert max(length[row_id] for row_id in short) == 64
    assert min(length[row_id] for row_id in long) == 65


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 9))
def test_the_shape_and_the_draws_of_a_plan(world_size, accumulation, batch, seed):
    plan = plan_of(seed=seed, world_size=world_size, accumulation=accumulation, batch=batch)
    of_rank = [set(pool) for pool in ids_of_pools(ROWS, world_size)]
    assert len(plan) == 5
    for window in plan:
        assert len(window) == world_size
        for rank, microbatches in enumerate(window):
            assert [len(microbatch) for microbatch in microbatches] == [batch] * accumulation
            drawn = [row_id for microbatch in microbatches for row_id in microbatch]
            assert len(set(drawn)) == len(drawn)  # without replacement inside a window
            assert set(drawn) <= of_rank[rank]  # only from its own pool


def test_each_window_draws_anew():
    """A window that takes the whole pool leaves all of it to the next, in another order."""
    first, second = plan_of(steps=2, batch=6)
    for rank in range(2):
        drawn = [[row_id for microbatch in window[rank] for row_id in microbatch] for window in (first, second)]
        assert sorted(drawn[0]) == sorted(drawn[1])
        assert drawn[0] != drawn[1]


def test_the_same_seed_makes_the_same_plan_and_another_seed_another():
    assert plan_of(seed=3) == plan_of(seed=3)
    assert plan_of(seed=3) != plan_of(seed=4)


def test_the_draws_of_a_seed_are_these():
    """Each window draws for rank 0 first. The generator is part of the format: another would change every result."""
    rng, of_rank = Random(1 + 10), ids_of_pools(ROWS, 2)
    for window in plan_of(seed=1):
        for microbatches, pool in zip(window, of_rank, strict=True):
            assert [row_id for microbatch in microbatches for row_id in microbatch] == rng.sample(pool, 6)


def test_the_order_of_the_rows_does_not_matter():
    assert plan_of(list(reversed(ROWS))) == plan_of()


def test_a_longer_run_begins_like_a_shorter_one():
    assert plan_of(steps=9)[:5] == plan_of(steps=5)


def test_a_pool_that_is_too_small_is_refused():
    with pytest.raises(
        PlanError, match=r"accumulation x batch = 2 x 7 = 14 rows .* the smallest pool holds 12 .*: lower"
    ):
        plan_of(batch=7)


def test_the_smallest_pool_decides():
    """25 rows on two ranks: pools of 12 and 13, and 13 rows are needed."""
    rows = [*ROWS, make_row("one-more", 30)]
    with pytest.raises(PlanError, match="13 rows per rank and window, but the smallest pool holds 12"):
        plan_of(rows, accumulation=1, batch=13)


def test_more_ranks_than_rows_is_refused():
    with pytest.raises(PlanError, match="holds 0"):
        plan_of(ROWS[:2], world_size=3, accumulation=1, batch=1)


SEVEN = [make_row(name, 2) for name in "abcdefg"]


def seven_dealt(epoch):
    """To two ranks, in the rows' order, and the other way round in every second epoch."""
    order = list(range(7)) if epoch % 2 == 0 else list(range(6, -1, -1))
    return [order[::2], order[1::2]]


def epochs_of(deal=seven_dealt, **changes):
    how = {"steps": 4, "accumulation": 1, "batch": 2, "drop_last": False} | changes
    return list(make_epochs(TrainingRows(SEVEN), deal, **how))


def test_epochs_by_hand():
    """Ranks hold a c e g and b d f: windows of two rows each, of which the last of an epoch is one short."""
    asked = []
    epochs_of(lambda epoch: (asked.append(epoch), seven_dealt(epoch))[1])
    assert asked == [0, 1], "no epoch more than four windows need"
    forwards = [[[["a", "c"]], [["b", "d"]]], [[["e", "g"]], [["f"]]]]
    backwards = [[[["g", "e"]], [["f", "d"]]], [[["c", "a"]], [["b"]]]]
    assert epochs_of() == forwards + backwards
    assert epochs_of(steps=1) == forwards[:1]
    assert epochs_of(steps=7) == (forwards + backwards + forwards + backwards)[:7]


def test_epochs_with_accumulation_by_hand():
    """Two microbatches of one row; rank 1 has one less in the last window."""
    assert epochs_of(steps=2, accumulation=2, batch=1) == [
        [[["a"], ["c"]], [["b"], ["d"]]],
        [[["e"], ["g"]], [["f"]]],
    ]
    assert epochs_of(steps=1, accumulation=2, batch=3) == [[[["a", "c", "e"], ["g"]], [["b", "d", "f"]]]]


def test_what_does_not_fill_a_window_can_be_left_out():
    """Rank 1 has three rows, so that one window of two is full on both ranks; of three rows each, one too."""
    assert epochs_of(steps=2, drop_last=True) == [[[["a", "c"]], [["b", "d"]]], [[["g", "e"]], [["f", "d"]]]]
    assert epochs_of(steps=1, batch=3, drop_last=True) == [[[["a", "c", "e"]], [["b", "d", "f"]]]]


def test_a_rank_that_has_nothing_left_has_a_microbatch_without_rows():
    """Five rows: a c e and b d. After two each, one is left, of rank 0."""
    assert epochs_of(lambda epoch: [[0, 2, 4], [1, 3]], steps=2) == [[[["a", "c"]], [["b", "d"]]], [[["e"]], [[]]]]


def test_a_window_without_a_supervised_unit_is_refused_by_its_number_and_first_row():
    """The second window holds c and b, of which nothing counts; the first is made before."""
    rows = TrainingRows([make_row("a", 3), make_row("b", 2, units=0), make_row("c", 2, units=0), make_row("d", 1)])
    plan = make_epochs(rows, lambda epoch: [[0, 2], [3, 1]], steps=2, accumulation=1, batch=1, drop_last=False)
    assert next(plan) == [[["a"]], [["d"]]]
    sentence = (
        "window 2 of the plan, from row 'c' on, holds no supervised token on any rank, so it has no mean: "
        "label more rows, or raise batch or accumulation"
    )
    with pytest.raises(PlanError) as refusal:
        next(plan)
    assert str(refusal.value) == sentence


def test_a_first_rank_without_a_row_is_not_where_an_empty_window_begins():
    rows = TrainingRows([make_row("a", 3, units=0)])
    plan = make_epochs(rows, lambda epoch: [[], [0]], steps=1, accumulation=1, batch=1, drop_last=False)
    with pytest.raises(PlanError, match="from row 'a' on"):
        next(plan)


def test_counts_per_rank_count_supervised_units_only():
    rows = {"a": make_row("a", 5, units=2), "b": make_row("b", 3), "c": make_row("c", 4, units=0)}
    assert counts_per_rank([[["a"], ["b"]], [["c"]]], rows) == [5, 0]


def test_windows_to_compare_are_the_first_and_the_earliest_most_unequal():
    rows = {f"r{length}": make_row(f"r{length}", length) for length in range(1, 10)}
    plan = [[[["r8"]], [["r9"]]], [[["r1"]], [["r9"]]], [[["r9"]], [["r1"]]]]  # spreads 1, 8, 8; sums 17, 10, 10
    assert windows_to_compare(plan, rows) == {"first": 0, "most_unequal": 1}


SETTINGS = {"seed": 1, "world_size": 2}


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, [[[["a"]], [["b"]]]], SETTINGS, corpus_sha256="abc")
    return path


def test_reads_back_what_was_written(plan_file):
    assert read_plan(plan_file, "abc", SETTINGS) == [[[["a"]], [["b"]]]]


def test_a_plan_tells_how_many_updates_it_was_made_for(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, [[[["a"]], [["b"]]]], SETTINGS | {"steps": 7}, corpus_sha256="abc")
    assert planned_steps(path) == 7
    with pytest.raises(PlanError, match=r"none.json does not exist: run prepare first"):
        planned_steps(tmp_path / "none.json")


def test_a_reader_that_knows_fewer_settings_compares_those(plan_file):
    assert read_plan(plan_file, "abc", {"seed": 1, "timeout_s": 5})
    with pytest.raises(PlanError, match="seed 1, not 2"):
        read_plan(plan_file, "abc", {"seed": 2})


@pytest.mark.parametrize(
    ("corpus", "settings", "text"),
    [
        ("abc", {"seed": 1, "world_size": 4}, "was made for world_size 2, not 4: prepare again"),
        ("xyz", SETTINGS, "was made for corpus_sha256 abc, not xyz: prepare again"),
    ],
)
def test_a_plan_for_another_experiment_is_refused_by_name(plan_file, corpus, settings, text):
    with pytest.raises(PlanError, match=text):
        read_plan(plan_file, corpus, settings)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"plan.json does not exist: run prepare first"):
        read_plan(tmp_path / "plan.json", "abc", SETTINGS)


def test_a_truncated_plan_is_named(plan_file):
    plan_file.write_text(plan_file.read_text()[:20])
    with pytest.raises(EvidenceError, match=r"plan.json is not valid JSON"):
        read_plan(plan_file, "abc", SETTINGS)


def flat(window):
    return [row for of_rank in window for microbatch in of_rank for row in microbatch]


WINDOWS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4)


def numbered(sizes):
    """A window whose microbatches have these sizes, by rank; each row is another."""
    names = iter(range(10**6))
    return [[[f"r{next(names)}" for _ in range(size)] for size in of_rank] for of_rank in sizes]


@given(WINDOWS, st.integers(1, 6))
def test_a_window_that_is_dealt_anew_holds_each_row_once(sizes, world_size):
    window = numbered(sizes)
    rows, largest = flat(window), max(size for of_rank in sizes for size in of_rank)
    new = repartition(window, world_size)
    assert flat(new) == rows
    assert len(new) == world_size
    shares = [sum(map(len, of_rank)) for of_rank in new]
    assert max(shares) - min(shares) <= 1
    idle = max(0, world_size - len(rows))
    assert new[world_size - idle :] == [[[]]] * idle
    for share, of_rank in zip(shares[: world_size - idle], new, strict=False):
        parts = [len(microbatch) for microbatch in of_rank]
        assert 1 <= min(parts) <= max(parts) <= largest
        assert max(parts) - min(parts) <= 1
        assert len(parts) == -(-share // largest)  # no more microbatches than needed
    assert repartition(window, world_size) == new


def test_four_rows_of_two_ranks_by_hand():
    window = [[["a", "b"]], [["c"], ["d"]]]
    assert repartition(window, 3) == [[["a"]], [["b"]], [["c", "d"]]]
    assert repartition(window, 1) == [[["a", "b"], ["c", "d"]]]


def test_a_plan_is_dealt_window_by_window():
    plan = plan_of(world_size=2)
    assert dealt(plan, 2) == plan
    uneven = [[["a", "b"], ["c"]], [["d"]]]
    assert dealt([uneven], 2) == [uneven] != [repartition(uneven, 2)]
    new = dealt(plan, 3)
    assert [flat(window) for window in new] == [flat(window) for window in plan]
    assert {len(window) for window in new} == {3}
    assert len({tuple(flat(window)) for window in new}) == len(plan)
    assert [flat(window) for window in dealt(plan, 13)] == [flat(window) for window in plan]
    assert {len(window) for window in dealt(plan, 13)} == {13}


def test_a_shard_holds_every_world_size_th_row():
    """Indices 0 to 6 modulo 3; neither lengths nor ids decide."""
    rows = [make_row(row_id, length) for row_id, length in zip("gfedcba", (9, 1, 5, 2, 7, 3, 4), strict=True)]
    assert [list(make_shard(rank, 3, 7)) for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert ids_of_pools(rows, 3, BY_INDEX) == [["g", "d", "a"], ["f", "c"], ["e", "b"]]
    assert ids_of_pools(rows, 1, BY_INDEX) == [list("gfedcba")]
    assert list(make_shard(2, 3, 2)) == []


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=40), st.integers(1, 6))
def test_shards_do_not_overlap_and_cover_everything(shapes, world_size):
    """`shapes`: tokens of each row, and how many of them are supervised at most."""
    rows = [make_row(f"r{i}", length, units=min(length, units)) for i, (length, units) in enumerate(shapes)]
    shards = [[rows[index] for index in make_shard(rank, world_size, len(rows))] for rank in range(world_size)]
    for one in range(world_size):
        for other in range(one):
            assert not set(shards[one]) & set(shards[other])
    assert set().union(*shards) == set(rows)
    assert sum(map(len, shards)) == len(rows)
    assert sum(map(supervised_in, shards)) == supervised_in(rows)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    if len(rows) >= world_size:
        assert [shard[0] for shard in shards] == rows[:world_size]  # so no two ranks begin with the same row


def test_the_pools_of_sharding_by_index_are_the_shards():
    rows = TrainingRows(ROWS)
    assert pools(rows, 3, BY_INDEX) == [make_shard(rank, 3, 24) for rank in range(3)]
    assert ids_of_pools(ROWS, 3, BY_INDEX) != ids_of_pools(ROWS, 3, BY_LENGTH)
    assert pools(rows, 3, BY_LENGTH) == pools(rows, 3)


def test_sharded_by_index_a_rank_draws_by_a_seed_of_its_own():
    """By hand, for seed 4: rank r draws 2 of its rows in each of 2 windows, and its generator is Random(4 + r).

    sample(range(5), 2) of Random(4) gives 1, 2 and then 0, 3; of Random(5) it gives 4, 2 and then 2, 0. Position i of
    rank r's shard is row 2 i + r, which is 2, 4 and 0, 6 on rank 0; 9, 5 and 5, 1 on rank 1.
    """
    rows = [make_row(f"{index}", 1) for index in range(10)]
    plan = plan_of(rows, seed=4, steps=2, accumulation=2, batch=1, sharding=BY_INDEX)
    first = [[["2"], ["4"]], [["9"], ["5"]]]
    second = [[["0"], ["6"]], [["5"], ["1"]]]
    assert plan == [first, second]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_draws_of_a_rank_do_not_depend_on_other_ranks_draws(world_size):
    plan = plan_of(seed=7, world_size=world_size, sharding=BY_INDEX)
    for rank in range(world_size):
        rng, shard = Random(7 + rank), ids_of_pools(ROWS, world_size, BY_INDEX)[rank]
        for window in plan:
            drawn = [row_id for microbatch in window[rank] for row_id in microbatch]
            assert drawn == rng.sample(shard, 6)
            assert [len(microbatch) for microbatch in window[rank]] == [3, 3]


def test_sharded_by_index_the_order_of_the_rows_matters():
    assert plan_of(list(reversed(ROWS)), sharding=BY_INDEX) != plan_of(sharding=BY_INDEX)


def test_a_shard_that_is_too_small_is_refused():
    with pytest.raises(PlanError, match=r"14 rows per rank and window, but the smallest pool holds 12 "):
        plan_of(batch=7, sharding=BY_INDEX)


def test_a_plan_by_length_keeps_its_bytes():
    """SHA-256 of the plan of the built-in corpus before sharding could be chosen; every published result came of it."""
    training = [row for row in make(GeneratedCorpus(), 17) if row.split == "train"]
    how = {"seed": 17, "steps": 100, "world_size": 2, "accumulation": 2, "batch": 8}
    plan = plan_of(training, **how)
    assert (
        sha256(to_json(plan).encode()).hexdigest() == "af8a22dc29d1f3a6fabcaa592f9e3fc8166559ac9f2db9e792a73501312c1f8c"
    )
    assert plan_of(training, sharding=BY_LENGTH, **how) == plan


def test_each_process_gets_the_share_of_one_rank_in_turn():
    """Shares of 3 windows of 2 ranks, in order: a, b, c, d, e, f. Three processes take abc, def, and abc again."""
    plan = [[[["a"]], [["b"]]], [[["c1"], ["c2"]], [["d"]]], [[["e"]], [["f"]]]]
    a, b, c, d, e, f = (share for window in plan for share in window)
    assert one_share_each(plan, 1) == [[a], [b], [c]]
    assert one_share_each(plan, 2) == plan
    assert one_share_each(plan, 3) == [[a, b, c], [d, e, f], [a, b, c]]


# The last window of an epoch: rank 0 has one row, rank 1 none.
LEFT_OVER = [[["a"]], [[]]]


def test_a_rank_without_a_row_computes_one_that_does_not_count():
    rows = {"a": make_row("a", 3), "b": make_row("b", 2)}
    assert microbatches_of(LEFT_OVER, 0, rows) == [[rows["a"]]]
    assert microbatches_of(LEFT_OVER, 1, rows) == [[rows["a"].unsupervised()]]
    assert microbatches_of([[[]], [["b"], ["a"]]], 0, rows) == [[rows["b"].unsupervised()]]
    assert counts_per_rank(LEFT_OVER, rows) == [3, 0]


def test_a_rank_without_a_row_makes_a_window_the_most_unequal():
    rows = {row_id: make_row(row_id, 4) for row_id in "abc"}
    assert windows_to_compare([[[["b"]], [["c"]]], LEFT_OVER], rows) == {"first": 0, "most_unequal": 1}


def test_ranks_that_wait_in_every_forward_get_equally_many_microbatches():
    """Those without rows come last, each window has its own number, and plans with equal numbers stay as they are."""
    plan = [[[["a"], ["b"], ["c"]], [["d"]], [[]]], [[["e"]], [["f"]], [["g"]]]]
    assert equally_many_microbatches(plan) == [[[["a"], ["b"], ["c"]], [["d"], [], []], [[], [], []]], plan[1]]
    assert plan[0][1] == [["d"]]


def test_a_window_with_a_rank_without_rows_is_dealt_anew():
    assert repartition([[["a", "b"], ["c"]], [[]]], 3) == [[["a"]], [["b"]], [["c"]]]
    assert repartition(LEFT_OVER, 1) == [[["a"]]]
    assert dealt([LEFT_OVER], 2) == [LEFT_OVER]
    assert dealt([LEFT_OVER], 3) == [[[["a"]], [[]], [[]]]]


def test_no_process_gets_a_share_without_rows_alone():
    """In a world of its own there would be no row at all."""
    plan = [[[["b"]], [["c"]]], LEFT_OVER]
    assert one_share_each(plan, 1) == [[[["b"]]], [[["c"]]]]
    assert one_share_each(plan, 2) == [[[["b"]], [["c"]]], [[["a"]], [["b"]]]]
