"""Batches that a loader gave, until the forward that computes them."""

import copy
import gc
import weakref
from collections import UserDict

import pytest
import torch
from torch.utils.data import DataLoader

from ddp_tokens.audit.packing import pack
from ddp_tokens.audit.watched import KEPT, Watched
from ddp_tokens.errors import AuditError


def rows(*numbers):
    return {"x": torch.tensor(numbers, dtype=torch.float32), "labels": torch.tensor(numbers)}


BATCHES = [rows(1, 2), rows(3, 4), rows(5, 6)]


def watching(loader):
    watched = Watched()
    return watched, watched.watch(loader)


def is_of(found, batch):
    """The same form, with tensors of the same memory."""
    (tree, tensors), (of_batch, others) = pack(found, "found"), pack(batch, "batch")
    return tree == of_batch and [one.data_ptr() for one in tensors] == [one.data_ptr() for one in others]


def all_of(found, batches):
    return len(found) == len(batches) and all(map(is_of, found, batches))


def test_nothing_is_taken_where_nothing_is_watched():
    assert Watched().take([torch.ones(1)], {}) is None


def test_a_loader_is_gone_through_as_before():
    _, loader = watching(BATCHES)
    assert len(loader) == 3
    for _ in range(2):
        assert all(one is other for one, other in zip(loader, BATCHES, strict=True))


def test_batches_that_are_computed_one_by_one():
    watched, loader = watching(BATCHES)
    assert all_of([watched.take([batch["x"]], {}) for batch in loader], BATCHES)


def test_a_loader_that_is_ahead():
    """A trainer takes the next batch to know whether there is one."""
    watched, loader = watching(BATCHES)
    batches = list(loader)
    assert all_of([watched.take([], {"x": batch["x"]}) for batch in batches], BATCHES)


def test_batches_that_are_computed_in_another_order():
    watched, loader = watching(BATCHES)
    batches = list(loader)
    found = [watched.take([batches[place]["x"]], {}) for place in (2, 0, 1)]
    assert all_of(found, [BATCHES[2], BATCHES[0], BATCHES[1]])


def test_a_batch_is_found_by_its_content():
    """What a forward is given is a copy, as on another device."""
    watched, loader = watching(BATCHES)
    list(loader)
    assert is_of(watched.take([{"inputs": (torch.tensor([3.0, 4.0]),)}], {}), BATCHES[1])


def test_the_batch_with_most_tensors_in_common():
    mask = torch.ones(2)
    one, other = {"x": torch.zeros(2), "mask": mask}, {"x": torch.full((2,), 5.0), "mask": mask}
    watched, loader = watching([one, other])
    list(loader)
    assert is_of(watched.take([torch.full((2,), 5.0), torch.ones(2)], {}), other)


def test_of_equal_batches_the_oldest():
    one, other = rows(1, 2), rows(1, 2)
    watched, loader = watching([one, other])
    list(loader)
    assert is_of(watched.take([rows(1, 2)["x"]], {}), one)
    assert is_of(watched.take([rows(1, 2)["x"]], {}), other)


@pytest.mark.parametrize(
    "other",
    [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([[1.0, 2.0]])],
    ids=("longer", "another dtype", "another shape"),
)
def test_a_tensor_that_looks_alike_is_another(other):
    watched, loader = watching(BATCHES)
    list(loader)
    with pytest.raises(AuditError, match="none has a tensor in common"):
        watched.take([other], {})


def test_an_empty_tensor_is_no_sign():
    watched, loader = watching([{"x": torch.ones(1), "none": torch.ones(0)}, {"x": torch.zeros(1)}])
    list(loader)
    with pytest.raises(AuditError, match="none has a tensor in common"):
        watched.take([torch.ones(0)], {})


def test_inputs_that_are_computed_from_the_only_batch():
    watched, loader = watching(BATCHES)
    for batch in loader:
        assert is_of(watched.take([batch["x"] / 2], {}), batch)


def test_inputs_that_are_computed_from_one_of_several_batches():
    watched, loader = watching(BATCHES)
    list(loader)
    with pytest.raises(AuditError) as refused:
        watched.take([torch.ones(7)], {})
    assert str(refused.value) == (
        "3 batches were taken from the watched loader and none has a tensor in common with what the module was called "
        "with: watch the loader whose batches the loop computes one by one"
    )


def test_a_forward_without_a_batch():
    watched, _ = watching(BATCHES)
    with pytest.raises(AuditError, match=r"^the module was called with gradients more often"):
        watched.take([torch.ones(7)], {})


def test_a_batch_is_computed_once():
    watched, loader = watching(BATCHES)
    next(iter(loader))
    assert is_of(watched.take([BATCHES[0]["x"]], {}), BATCHES[0])
    with pytest.raises(AuditError, match=r"^the module was called with gradients more often"):
        watched.take([BATCHES[0]["x"]], {})


def test_batches_of_an_evaluation_are_never_computed_and_do_not_disturb():
    """A module that is called without gradients is not listened to, so that its batches stay."""
    watched, loader = watching(BATCHES)
    _, evaluation = watching([])
    evaluation = watched.watch([rows(7, number) for number in range(5)])
    list(evaluation)
    assert all_of([watched.take([batch["x"]], {}) for batch in loader], BATCHES)


def test_only_the_newest_batches_are_kept():
    watched, loader = watching(rows(number) for number in range(KEPT + 1))
    batches = list(loader)
    assert is_of(watched.take([batches[1]["x"]], {}), batches[1])
    with pytest.raises(AuditError, match=f"^{KEPT - 1} batches were taken"):
        watched.take([batches[0]["x"]], {})


def test_several_loaders():
    watched, one = watching(BATCHES)
    other = watched.watch([rows(9, 9)])
    list(one), list(other)
    assert watched.take([rows(9, 9)["x"]], {})["labels"].tolist() == [9, 9]


@pytest.mark.parametrize("kind", [tuple, list, lambda batch: UserDict(x=batch[0], labels=batch[1])])
def test_batches_of_any_kind(kind):
    batches = [kind((batch["x"], batch["labels"])) for batch in BATCHES]
    watched, loader = watching(batches)
    list(loader)
    assert is_of(watched.take([BATCHES[1]["x"]], {}), batches[1])


def test_a_batch_that_cannot_be_taken_apart_is_refused():
    watched, loader = watching([{"x": torch.ones(1), "y": object()}])
    list(loader)
    with pytest.raises(AuditError, match=r"^the batch\.y is a object, which cannot be taken to another rank"):
        watched.take([torch.ones(1)], {})


class Loader(list):
    batch_size = 2


def test_attributes_are_those_of_the_loader():
    _, loader = watching(Loader(BATCHES))
    assert loader.batch_size == 2
    assert len(loader) == 3
    with pytest.raises(AttributeError, match="'Loader' object has no attribute 'nothing'"):
        _ = loader.nothing


@pytest.fixture
def of_torch():
    """Watches a DataLoader of the three batches, and ends that."""
    watched = Watched()
    loader = DataLoader(BATCHES, batch_size=None, num_workers=0)
    yield watched, watched.watch(loader), loader
    watched.stop()


def test_a_dataloader_stays_what_it_is(of_torch):
    """Trainers ask for its kind, and make another one with a sampler for each rank: that one is watched as well."""
    watched, watching_one, loader = of_torch
    assert watching_one is loader
    again = type(loader)(loader.dataset, batch_size=None, sampler=[2, 0])
    assert type(iter(again)) is type(iter(loader))
    for place, batch in zip((2, 0), again, strict=True):
        assert is_of(watched.take([batch["x"]], {}), BATCHES[place])


def test_nothing_of_torch_is_replaced_afterwards():
    kind = type(iter(DataLoader(BATCHES, batch_size=None)))
    following = kind.__next__
    one, other = Watched(), Watched()
    for watched in (one, other):
        watched.watch(DataLoader(BATCHES, batch_size=None))
    assert kind.__next__ is not following
    other.stop()
    assert len(list(DataLoader(BATCHES, batch_size=None))) == 3
    assert is_of(one.take([BATCHES[2]["x"]], {}), BATCHES[2])
    one.stop()
    assert kind.__next__ is following


def test_more_forwards_than_batches_are_named(of_torch):
    watched, loader, _ = of_torch
    for batch in loader:
        watched.take([batch["x"]], {})
    with pytest.raises(AuditError, match=r"^the module was called with gradients more often than the watched"):
        watched.take([torch.ones(1)], {})


def test_a_loader_without_a_length_has_none():
    _, loader = watching(iter(BATCHES))
    with pytest.raises(TypeError):
        len(loader)
    assert list(loader) == BATCHES


def test_an_iterator_is_one_still():
    watched, batches = watching(iter(BATCHES))
    first = next(batches)
    assert first is BATCHES[0]
    assert is_of(watched.take([first["x"]], {}), first)
    assert list(batches) == BATCHES[1:]
    with pytest.raises(StopIteration):
        next(batches)


def test_a_loader_is_no_iterator():
    _, loader = watching(BATCHES)
    with pytest.raises(TypeError, match="'list' object is not an iterator"):
        next(loader)


def test_a_loader_can_be_copied():
    _, loader = watching(BATCHES)
    assert list(copy.copy(loader)) == BATCHES


def test_a_loader_draws_its_seed_when_it_always_does():
    """iter(loader) draws from the generator; the first batch comes later."""
    plain = DataLoader([1, 2, 3], shuffle=True)
    _, loader = watching(plain)
    states = []
    for one in (plain, loader):
        torch.manual_seed(3)
        iterator = iter(one)
        states.append((torch.get_rng_state(), [int(batch) for batch in iterator]))
    assert torch.equal(states[0][0], states[1][0])
    assert states[0][1] == states[1][1]


def test_nothing_is_kept_once_the_audit_is_over():
    class Batch(dict):
        pass

    watched, loader = watching(Batch(rows(number)) for number in range(4))
    batches = iter(loader)
    first, _ = weakref.ref(next(batches)), next(batches)
    gc.collect()
    assert first() is not None
    watched.stop()
    gc.collect()
    assert first() is None
    assert [int(batch["labels"]) for batch in batches] == [2, 3]
    with pytest.raises(AuditError, match=r"^the module was called with gradients more often"):
        watched.take([rows(3)["x"]], {})


def test_what_a_loop_takes_out_of_a_batch_is_still_there():
    """`labels = batch.pop("labels")` is how many loops begin."""
    watched, loader = watching([{"tokens": torch.tensor([3, 4]), "labels": torch.tensor([1, 0])}])
    [batch] = loader
    labels = batch.pop("labels")
    batch["tokens"] = batch["tokens"] + 1
    found = watched.take([torch.tensor([3, 4])], {})
    assert found["labels"] is labels or torch.equal(found["labels"], labels)
    assert torch.equal(found["tokens"], torch.tensor([3, 4]))


def test_what_cannot_be_packed_does_not_disturb_the_loop():
    watched, loader = watching([{"call": print, "tokens": torch.tensor([3, 4])}])
    [batch] = loader
    assert batch["call"] is print
    with pytest.raises(AuditError, match="cannot be taken to another rank"):
        watched.take([torch.tensor([3, 4])], {})
