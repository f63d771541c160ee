"""Which rank is to blame, from what each says of itself. Real ranks are in tests/distributed/test_failing_ranks.py."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_tokens import rank_failure, reach
from ddp_tokens.errors import CorpusError, RankFailedError
from ddp_tokens.machine import this_machine
from ddp_tokens.progress import Place, WrittenProgress
from ddp_tokens.rank_failure import (
    Failure,
    Watch,
    described,
    ended,
    explaining,
    find_failure,
    lost,
    waited_for,
    watched,
)
from ddp_tokens.reach import address_of, listen_towards
from ddp_tokens.world import World

HERE = this_machine()
CLOSED = RuntimeError("[/gloo/transport/tcp/pair.cc] Connection closed by peer")
OWN_ERROR = RuntimeError("element 0 of tensors does not require grad")


def place(rank, **changes):
    """A rank that lives: it has no birth that could be another's."""
    return Place(rank, "launch", HERE, os.getpid(), "", since=100.0, step=3, microbatch=1, **changes)


OWN = place(0, collective="all-reduce of the gradients", inside=True, entered=5)
WAITING = place(2, collective="all-reduce of the gradients", inside=True, entered=5)
BEHIND = place(1, collective="all-reduce of the count", entered=4)
KILLED = replace(BEHIND, born="0")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(rank_failure, "SETTLED_AFTER_S", 0.0)


@pytest.fixture(autouse=True)
def _sigterm_as_before():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def found(*places, error=CLOSED, own=OWN):
    failure = find_failure(own, error, lambda: {one.rank: one for one in places}, 3)
    return failure and (failure.rank, failure.what)


def test_the_rank_that_raised_comes_before_those_that_fell_with_it():
    raised = replace(BEHIND, raised="ValueError: no")
    assert found(raised, WAITING) == (1, "raised ValueError: no")
    assert found(raised, replace(WAITING, born="0")) == (1, "raised ValueError: no")
    assert found(raised, replace(WAITING, raised="RankFailedError: rank 1", blames=1)) == (1, "raised ValueError: no")


def test_the_rank_that_is_gone_without_a_word_was_killed():
    assert found(KILLED, WAITING) == (1, "was killed")


def test_a_rank_that_its_launcher_stopped_is_not_the_reason_where_there_is_another():
    stopped = replace(WAITING, raised="SignalException: signal 15")
    assert found(KILLED, stopped) == (1, "was killed")
    assert found(BEHIND, stopped) == (2, "was stopped (SignalException: signal 15)")


def test_the_rank_that_has_entered_fewer_collectives_does_not_go_on():
    assert found(BEHIND, WAITING) == (1, "does not go on")
    assert found(WAITING, replace(WAITING, rank=1)) is None


def test_a_rank_that_is_in_another_collective_is_named():
    elsewhere = replace(WAITING, rank=1, collective="all-gather of the lengths")
    assert found(elsewhere, WAITING) == (1, "is in another collective")
    assert found(WAITING, replace(elsewhere, entered=6)) is None, "it has only gone on"
    assert found(WAITING, replace(elsewhere, inside=False)) is None


def test_a_rank_that_never_came_is_named():
    assert found(WAITING) == (1, "is not there")
    assert waited_for(OWN, {}, 1) is None


def test_the_blame_of_another_is_taken_over():
    gave_up = replace(WAITING, raised="RankFailedError: rank 1 does not go on", blames=1)
    assert found(BEHIND, gave_up) == (1, "does not go on")
    slow = replace(OWN, rank=1)
    assert find_failure(slow, CLOSED, lambda: {2: gave_up}, 3) == Failure(2, "gave up waiting for rank 1", gave_up)


def test_a_rank_whose_own_backward_is_wrong_blames_nobody():
    """Others may not have come as far; that is no failure of theirs."""
    assert found(BEHIND, WAITING, error=OWN_ERROR) is None
    assert found(KILLED, WAITING, error=OWN_ERROR) == (1, "was killed")


ELSEWHERE = "host1/boot"
HERE_NAME = HERE.partition("/")[0]


@pytest.fixture
def listening():
    with listen_towards("127.0.0.1") as door:
        yield door


@pytest.fixture
def silent():
    """An address from which no answer comes: its queue is full."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        with socket.create_connection(deaf.getsockname(), 1):
            yield address_of(deaf)


def test_a_rank_of_another_host_that_does_not_answer_cannot_be_reached(silent, monkeypatch):
    """It blames this one, and rightly so: from there, this host does not answer."""
    monkeypatch.setattr(reach, "ANSWERS_WITHIN_S", 0.1)
    blames = replace(WAITING, machine=ELSEWHERE, address=silent, raised="RankFailedError: rank 0", blames=0)
    assert found(blames, replace(WAITING, rank=1)) == (2, "cannot be reached; it was")
    assert found(replace(blames, raised=None, blames=None)) == (2, "cannot be reached; it was")


def test_one_rank_of_a_host_stands_for_all(silent, monkeypatch):
    asked = []
    monkeypatch.setattr(rank_failure, "reach", lambda address: asked.append(address) or "unreachable")
    places = {rank: replace(WAITING, rank=rank, machine=ELSEWHERE, address=silent) for rank in (2, 3, 4)}
    assert lost(OWN, places, "ended") is None
    assert asked == [silent]


def test_a_rank_of_another_host_whose_process_is_gone_was_killed(listening):
    there = replace(WAITING, machine=ELSEWHERE, address=address_of(listening))
    assert found(there, replace(WAITING, rank=1)) is None
    listening.close()
    assert found(there, replace(WAITING, rank=1)) == (2, "was killed")
    assert found(replace(there, raised="SignalException: signal 15"), replace(WAITING, rank=1)) == (
        2,
        "was stopped (SignalException: signal 15)",
    )


def test_where_ranks_are_on_several_hosts_the_sentence_names_them():
    elsewhere = Failure(2, "cannot be reached; it was", replace(WAITING, machine=ELSEWHERE))
    assert described(elsewhere, OWN, now=107.0) == (
        "rank 2 on host host1 cannot be reached; it was in update 3, microbatch 1 (the last collective it entered is "
        "the all-reduce of the gradients, where it still was; last sign of life 7 s ago), while rank 0 on "
        f"host {HERE_NAME} was in the all-reduce of the gradients"
    )


def test_a_rank_listens_only_where_ranks_are_on_several_hosts(watch):
    with watched(watch) as progress:
        assert progress.place.address is None
    with watched(replace(watch, world=replace(watch.world, spans_hosts=True))) as progress:
        address = progress.place.address
        assert reach.reach(address) == "there"
    assert reach.reach(address) == "ended"


def test_nobody_has_failed_where_all_wait():
    assert ended(OWN, {1: BEHIND, 2: WAITING}) is None


def test_the_sentence_names_rank_update_microbatch_and_collective():
    said = described(Failure(1, "does not go on", BEHIND), OWN, now=107.0)
    assert said == (
        "rank 1 does not go on in update 3, microbatch 1 (the last collective it entered is the all-reduce of the "
        "count, which came back; last sign of life 7 s ago), while rank 0 was in the all-reduce of the gradients"
    )


def test_the_sentence_ends_with_the_checkpoint_to_resume_where_there_can_be_one(watch):
    failure = Failure(1, "does not go on", BEHIND)
    found = replace(watch, checkpoint=lambda: Path("runs/interrupt/step-0050"))
    assert found.sentence(failure, OWN).endswith("gradients; the newest whole checkpoint is runs/interrupt/step-0050")
    assert watch.sentence(failure, OWN).endswith("gradients; there is no whole checkpoint to resume from")
    assert replace(watch, checkpoint=None).sentence(failure, OWN).endswith("all-reduce of the gradients")


def test_the_sentence_of_a_rank_that_never_came_or_never_began():
    assert described(Failure(1, "is not there", None), OWN, now=107.0) == (
        "rank 1 is not there (it never started, or ended before it could say where it is), while rank 0 was in the "
        "all-reduce of the gradients"
    )
    new = replace(BEHIND, step=None, microbatch=None, collective=None, entered=0)
    said = described(Failure(1, "was killed", new), replace(OWN, inside=False), now=100.0)
    assert said.startswith(
        "rank 1 was killed before its first update (it entered no collective; last sign of life 0 s ago), which ends "
        "rank 0"
    )


@pytest.fixture
def watch(tmp_path):
    return Watch(tmp_path, World(rank=0, size=2), "launch", "127.0.0.1", "program", lambda: None)


@pytest.fixture
def both(watch):
    """The progress of rank 0 and of rank 1."""
    ranks = [WrittenProgress(watch.folder, rank, "launch") for rank in (0, 1)]
    yield ranks
    for progress in ranks:
        progress.close(remove=True)


def test_a_collective_that_fails_because_of_another_names_it(watch, both):
    both[1].begins_update(2)
    both[1].failed("ValueError: no")
    message = r"^rank 1 raised ValueError: no in update 2 \("
    with (
        pytest.raises(RankFailedError, match=message) as raised,
        explaining(watch, both[0]),
        both[0].entered("barrier"),
    ):
        raise CLOSED
    assert (raised.value.rank, both[0].place.blames) == (1, 1)
    assert raised.value.__cause__ is CLOSED


@pytest.mark.parametrize("error", [ArithmeticError("wrong"), CorpusError("row 3"), OWN_ERROR])
def test_what_a_rank_raises_by_itself_stays_what_it_is(watch, both, error):
    with pytest.raises(type(error)) as raised, explaining(watch, both[0]), both[0].entered("all-reduce"):
        raise error
    assert raised.value is error
    assert both[0].place.raised == f"{type(error).__name__}: {error}"
    assert both[0].place.blames is None
    notes = getattr(error, "__notes__", [])
    assert bool(notes) != isinstance(error, CorpusError)
    assert not notes or notes[0].startswith("this was rank 0 before its first update (the last collective it entered")


def test_an_error_is_explained_once(watch, both):
    error = ArithmeticError("wrong once")
    with pytest.raises(ArithmeticError), explaining(watch, both[0]), explaining(watch, both[0]):
        raise error
    assert len(error.__notes__) == 2


def test_a_rank_that_is_stopped_for_anothers_sake_says_whose(watch, both):
    class SignalException(Exception):
        pass

    with pytest.raises(SignalException), explaining(watch, both[1]):
        raise SignalException("signal 15")
    assert both[1].place.blames is None
    ended_process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    both[1]._now(raised=None, pid=int(ended_process.stdout))
    with pytest.raises(RankFailedError, match=r"^rank 1 was killed .* which ends rank 0"), explaining(watch, both[0]):
        raise SignalException("signal 15")
