"""Each cause, doubt and note, from what ranks tell; and none of them from a window that is right."""

import pytest

from ddp_tokens.audit.judging import Seen
from ddp_tokens.audit.seeing import described, facts_of, notes_of, notes_of_causes, seen_in
from ddp_tokens.errors import AuditError
from ddp_tokens.window_facts import WindowFacts
from tests.unit.audit.synthetic import clipping, microbatch, of_rank, told


def facts(of_ranks, accumulation=0, previous=None):
    return facts_of(of_ranks, accumulation, previous, 3, "Model")


def test_what_is_counted():
    assert facts(told(), accumulation=5, previous=17) == WindowFacts(
        units=((4, 6), (9, 1)),
        labels=((8, 8), (9, 8)),
        positions=((10, 10), (10, 10)),
        accumulation=5,
        previous_units=17,
    )


def test_labels_and_positions_are_no_fewer_than_units():
    """A batch without labels of its own, or of which several predictions have one label."""
    found = facts(told((4, 30), (9, 1)))
    assert found.labels == ((8, 30), (9, 8))
    assert found.positions == ((10, 30), (10, 10))


@pytest.mark.parametrize(("before", "now"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_a_full_window_is_the_longest_so_far(before, now):
    assert facts(told(), accumulation=before).accumulation == now
    assert facts(told((4,), (9, 1)), accumulation=before).accumulation == now


def test_a_module_that_no_rank_ran():
    with pytest.raises(AuditError) as refused:
        facts(told((), ()))
    assert str(refused.value) == (
        "window 3: the optimizer updates and Model was not called with gradients enabled on any rank: pass the module "
        "whose outputs the loss is made of"
    )
    assert facts(told((), (3,))).units == ((), (3,))


def test_a_module_whose_outputs_no_rank_learnt_from():
    with pytest.raises(AuditError) as refused:
        facts(told((), (), without_backward=2))
    assert str(refused.value) == (
        "window 3: Model ran and no backward reached what it returned, on any rank: pass the module whose outputs the "
        "loss is made of"
    )
    assert facts(told((3,), (), without_backward=2)).units == ((3,), ())


def test_a_problem_of_a_rank_comes_before_all_else():
    """A rank that cannot tell what it did tells this only."""
    with pytest.raises(AuditError) as refused:
        facts([of_rank(0), {"problem": "x is y: do z"}])
    assert str(refused.value) == "rank 1, window 3: x is y: do z"


def test_a_window_without_a_unit():
    with pytest.raises(AuditError) as refused:
        facts(told((0, 0), (0,)))
    assert str(refused.value) == (
        "window 3: loss_sum counts no supervised unit on any rank, so there is no mean: check how it counts, or leave "
        "such windows out"
    )


def test_a_right_window_has_nothing_to_be_seen():
    assert seen_in(told()) == Seen(causes={}, doubts=[], is_surely_sum=True)
    assert notes_of(told()) == []


def test_weights_that_move_inside():
    moved = of_rank(1)
    moved["microbatches"][1]["versions"] = 6
    cause = {"weights_updated_inside": "on rank 1 a parameter changes inside the window"}
    assert seen_in([of_rank(0), moved | {"versions": 6}]).causes == cause
    assert seen_in(told(versions=6)).causes == cause


def test_ranks_may_have_made_other_numbers_of_changes():
    """As where one has loaded weights more often: each is compared with itself."""
    other = of_rank(1, versions=9)
    for one in other["microbatches"]:
        one["versions"] = 9
    assert seen_in([of_rank(0), other]).causes == {}


def test_gradients_that_are_cleared_inside():
    cleared = of_rank(1, units=(4, 6, 2))
    cleared["microbatches"][2]["gradients_there"] = False
    assert seen_in([of_rank(0), cleared]).causes == {
        "gradients_cleared_inside": "on rank 1 gradients are cleared before microbatch 3"
    }


def test_gradients_that_are_not_there_and_not_due():
    """Nothing was supervised so far, or two forwards have one backward."""
    of = of_rank(0)
    of["microbatches"][1] |= {"gradients_due": False, "gradients_there": False}
    assert seen_in([of]).causes == {}


def test_gradients_that_were_there_before_the_window_are_no_cause_here():
    of = of_rank(0)
    of["microbatches"][0]["gradients_there"] = True
    assert seen_in([of]).causes == {}


def test_sharded_gradients_are_elsewhere():
    of = of_rank(0, is_sharded=True)
    of["microbatches"][1]["gradients_there"] = False
    assert seen_in([of]).causes == {}


@pytest.mark.parametrize(("after", "is_inside"), [(0, True), (1, True), (2, False)])
def test_clipping_inside(after, is_inside):
    causes = seen_in(told(clippings=[clipping(after=after)])).causes
    expected = {"clipped_inside_window": f"on rank 1 gradients are clipped after microbatch {after}"}
    assert causes == (expected if is_inside else {})


def test_clipping_that_changes_nothing_is_no_cause():
    assert seen_in(told(clippings=[clipping(after=1, factor=1.0)])).causes == {}


@pytest.mark.parametrize(
    ("field", "name", "what"),
    [
        ("weights", "weights_differ_between_ranks", "parameters"),
        ("gradients", "gradients_differ_between_ranks", "gradients"),
    ],
)
def test_ranks_that_differ(field, name, what):
    of_ranks = [of_rank(0), of_rank(1), of_rank(2, **{field: 12}), of_rank(3, **{field: 14})]
    assert seen_in(of_ranks).causes == {
        name: f"rank 2 holds {what} that differ in some bits from those of rank 0 at the update"
    }


def test_sharded_ranks_hold_other_parts():
    of_ranks = [of_rank(rank, weights=None, gradients=None, is_sharded=True) for rank in range(2)]
    assert seen_in(of_ranks).causes == {}


def test_causes_come_in_an_order_from_reason_to_consequence():
    of = of_rank(1, versions=6, weights=12, gradients=14, clippings=[clipping(after=1)])
    of["microbatches"][1]["gradients_there"] = False
    assert list(seen_in([of_rank(0), of]).causes) == [
        "weights_updated_inside",
        "gradients_cleared_inside",
        "clipped_inside_window",
        "weights_differ_between_ranks",
        "gradients_differ_between_ranks",
    ]


def test_a_doubt_of_several_ranks_is_said_once():
    of_ranks = [of_rank(0), of_rank(1, doubts=["x"]), of_rank(2, doubts=["x", "y"]), of_rank(3, doubts=["y"])]
    assert seen_in(of_ranks).doubts == ["rank 1: x", "rank 2: y"]


@pytest.mark.parametrize("sure", [(True, True), (True, False), (False, True), (False, False)])
def test_one_rank_that_saw_a_sum_is_enough(sure):
    of_ranks = [of_rank(rank, is_surely_sum=one) for rank, one in enumerate(sure)]
    assert seen_in(of_ranks).is_surely_sum == any(sure)


def test_clipping_is_noted_once():
    clippings = [clipping(), clipping(norm=1234.5678, max_norm=0.25), clipping(factor=1.0, norm=0.5)]
    of_ranks = [of_rank(0, clippings=clippings), of_rank(1, clippings=clippings)]
    assert notes_of(of_ranks) == [
        "clipped from norm 3.123 to 1, which is undone here",
        "clipped from norm 1235 to 0.25, which is undone here",
    ]


@pytest.mark.parametrize(
    ("outcome", "note"),
    [
        ("pass", ["x_inside: on rank 1 x, and the gradient is right all the same"]),
        ("inconclusive", ["x_inside: on rank 1 x"]),
        ("fail", []),
    ],
)
def test_causes_that_do_not_decide_are_noted(outcome, note):
    assert notes_of_causes(Seen(causes={"x_inside": "on rank 1 x"}), outcome) == note
    assert notes_of_causes(Seen(), outcome) == []


def test_notes_of_ranks():
    assert notes_of([of_rank(0, notes=["x"]), of_rank(1, notes=["y", "z"])]) == ["rank 0: x", "rank 1: y", "rank 1: z"]


def test_what_is_not_compared_is_noted_once():
    assert notes_of([of_rank(rank, not_compared=["x", "y"]) for rank in range(2)]) == ["x", "y"]


def test_rows_that_come_again():
    of = of_rank(1)
    of["microbatches"][0]["rows"] = ["00a", "10b"]
    of["microbatches"][1]["rows"] = ["10b", "10b"]
    assert notes_of([of_rank(0), of]) == ["3 of 8 rows have the content of another row of the window"]


def test_a_rank_with_the_rows_of_another():
    same = of_rank(0)
    same["microbatches"].reverse()  # in another order
    assert notes_of([of_rank(0), of_rank(1), same]) == [
        "rank 2 saw the rows of rank 0",
        "4 of 12 rows have the content of another row of the window",
    ]


def test_ranks_without_rows_saw_no_others():
    of_ranks = [of_rank(0), of_rank(1)]
    for of in of_ranks:
        for one in of["microbatches"]:
            one["rows"] = []
    assert notes_of(of_ranks) == []


def reducing(*of_microbatches, **changes):
    """Each microbatch: counters before the forward, after it, when backward began, and when it ended."""
    ones = [
        microbatch(gradients_there=index > 0, collectives=c, rows=[str(index)])
        for index, c in enumerate(of_microbatches)
    ]
    return of_rank(0) | {"microbatches": ones} | changes


def test_collectives_of_a_backward_are_told_from_others():
    """Those between two microbatches, as of a sum for a log, and of a forward, are no exchange of gradients."""
    once = reducing((7, 7, 7, 7), (9, 10, 10, 13))
    assert described([once])["collectives"] == [[0, 3]]
    assert notes_of([once]) == []


def test_gradients_that_are_reduced_in_every_microbatch():
    every = reducing((7, 7, 7, 9), (9, 9, 9, 11))
    assert described([every])["collectives"] == [[2, 2]]
    note = "reduced_in_every_microbatch: ranks exchange gradients in every microbatch, where once would do"
    assert notes_of([every]) == [note]
    assert notes_of([reducing((7, 7, 7, 9))]) == []
    assert notes_of([every, of_rank(1)]) == []


def test_parameters_that_are_gathered_in_every_backward_are_no_exchange_of_gradients():
    assert notes_of([reducing((7, 7, 7, 9), (9, 9, 9, 13), is_sharded=True)]) == []


def test_a_microbatch_whose_backward_was_not_seen():
    assert described([reducing((7, 7), (8, 8, 8, 9))])["collectives"] == [[None, 1]]


def test_what_is_described():
    assert described(told()) == {
        "world_size": 2,
        "microbatches": [2, 2],
        "units": [[4, 6], [9, 1]],
        "rows": [[2, 2], [2, 2]],
        "positions": [[10, 10], [10, 10]],
        "collectives": [[0, 2], [0, 2]],
    }
