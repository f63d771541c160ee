"""A batch depends on the plan, the rows, the seed and its place in the run, never on who makes it or when."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from ddp_tokens import loading
from ddp_tokens.config import Images
from ddp_tokens.corpora.images import make, recipe
from ddp_tokens.corpora.pixels import open_images
from ddp_tokens.corpora.rows import Row
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.errors import CorpusError, LoadingError
from ddp_tokens.loading import Batches, Loading, windows_of_rank
from ddp_tokens.plan import make_epochs
from ddp_tokens.sampler import sampler
from ddp_tokens.workloads import images
from ddp_tokens.world import World
from tests.helpers import PROJECT

CORPUS = Images(train=9, validation=0, test=1, classes=2, size=16)
PIXELS = open_images(recipe(CORPUS, 3))
TRAINING = [Row.from_record(row.record(), PIXELS) for row in make(CORPUS, 3) if row.split == "train"]
ROWS = {row.id: row for row in TRAINING}
# 9 rows on 2 ranks, 2 x 2 per window: 5 and 4, so rank 1 has nothing left in the second window of an epoch.
DEAL = sampler(9, 2, 0, False)
PLAN = list(make_epochs(TrainingRows(TRAINING), DEAL, steps=4, accumulation=2, batch=2, drop_last=False))


def windows(first=1, until=4, rank=0, **settings):
    return list(windows_of_rank(Batches(images, PLAN, ROWS, World(rank, rank, 2), Loading(**settings)), first, until))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(pixels(one), pixels(other), strict=True))


def pixels(of_windows):
    return [batch.images for window in of_windows for batch in window]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_batches_are_the_plans(rank):
    made = windows(rank=rank)
    assert [[len(batch.labels) for batch in window] for window in made] == [
        [2, 2],
        [1],
        [2, 2],
        [1],
    ]
    for window, planned in zip(made, PLAN, strict=True):
        for batch, row_ids in zip(window, planned[rank], strict=True):
            assert batch.units == len(row_ids)
            if row_ids:
                assert torch.equal(batch.images, torch.stack([torch.from_numpy(ROWS[i].image()) for i in row_ids]))
                assert batch.labels.tolist() == [ROWS[i].labels[0] for i in row_ids]
            else:
                assert batch.labels.tolist() == [-100]
    assert [window[0].units for window in made] == ([2, 1, 2, 1] if rank == 0 else [2, 0, 2, 0])


@pytest.mark.parametrize("augmentation", ["none", "shift", "shift_and_flip"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_make_the_same_batches(workers, augmentation):
    alone = windows(augmentation=augmentation)
    assert same(windows(augmentation=augmentation, workers=workers), alone)
    assert same(windows(first=3, augmentation=augmentation, workers=workers), alone[2:]), (
        "from the middle of the run too"
    )


def test_augmentation_changes_batches_and_differs_between_epochs_ranks_and_seeds():
    plain, augmented = windows(), windows(augmentation="shift_and_flip")
    assert not any(torch.equal(a, b) for a, b in zip(pixels(plain), pixels(augmented), strict=True))
    assert same(windows(augmentation="shift_and_flip"), augmented)
    assert not same(windows(augmentation="shift_and_flip", seed=1), augmented)
    assert not same(windows(augmentation="shift"), augmented)


def test_the_same_rows_are_changed_otherwise_in_the_next_epoch_and_on_another_rank():
    ids = PLAN[0][0]
    again = [[ids, ids], [ids, ids]]

    def of(rank):
        loading = Loading(augmentation="shift_and_flip")
        return list(windows_of_rank(Batches(images, again, ROWS, World(rank, rank, 2), loading), 1, 2))

    (first, second), (other, _) = of(0), of(1)
    assert not same([first], [second])
    assert not same([first], [other])
    assert not same([[first[0]]], [[first[1]]])


@pytest.mark.parametrize("workers", [0, 2])
def test_no_draw_comes_from_torchs_own_generator(workers):
    """Dropout draws from it: a draw more or less would change the run."""
    before = torch.get_rng_state()
    made = windows_of_rank(Batches(images, PLAN, ROWS, World(0, 0, 2), Loading(workers, "shift")), 1, 4)
    for _ in range(4):
        next(made)
        assert torch.equal(torch.get_rng_state(), before)
    assert next(made, None) is None
    assert torch.equal(torch.get_rng_state(), before)


def refuse(index):
    raise CorpusError(f"image {index} cannot be read: restore the file")


BROKEN = ROWS | {"broken": Row("broken", "train", (), (0,), index=8, images=refuse)}
ENDS_BROKEN = [PLAN[0], PLAN[1], [[["broken"]], [["broken"]]], PLAN[3]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_is_one_sentence(workers):
    """And the windows before it are there, although workers make batches ahead."""
    made = windows_of_rank(Batches(images, ENDS_BROKEN, BROKEN, World(0, 0, 2), Loading(workers)), 1, 4)
    assert [len(next(made)), len(next(made))] == [2, 1]
    with pytest.raises(CorpusError) as refusal:
        next(made)
    assert str(refusal.value) == "image 8 cannot be read: restore the file"
    assert refusal.value.__cause__ is None


def sleep_for_ever(index):
    time.sleep(3600)


class CannotBeSent:
    """As torch's tensors where /dev/shm is full: it fails in a thread of the worker, which prints that and goes on."""

    def collate(self, rows):
        return lambda: rows


@pytest.mark.parametrize(
    ("workload", "image", "sentence"),
    [
        (
            images,
            sleep_for_ever,
            "rank 0 got no batch of update 3 from its workers in 2 s: where 'No space left on device' ",
        ),
        (
            CannotBeSent(),
            None,
            "rank 0 got no batch of update 1 from its workers in 2 s: where 'No space left on device' ",
        ),
    ],
)
def test_workers_that_give_no_batch_are_not_waited_for_for_ever(workload, image, sentence):
    before = children()
    rows = BROKEN | {"broken": Row("broken", "train", (), (0,), index=8, images=image)}
    made = windows_of_rank(Batches(workload, ENDS_BROKEN, rows, World(0, 0, 2), Loading(1, timeout_s=2)), 1, 4)
    with pytest.raises(LoadingError) as refusal:
        list(made)
    assert str(refusal.value).startswith(sentence)
    del made, refusal
    assert children() == before


def children():
    return {child.pid for child in multiprocessing.active_children()}


@pytest.mark.parametrize("ending", ["all", "closed", "error"])
def test_workers_end_with_the_windows(ending):
    before = children()
    plan = ENDS_BROKEN if ending == "error" else PLAN
    made = windows_of_rank(Batches(images, plan, BROKEN, World(0, 0, 2), Loading(2)), 1, 4)
    next(made)
    assert len(children() - before) == 2
    if ending == "all":
        assert len(list(made)) == 3
    elif ending == "closed":
        made.close()
    else:
        with pytest.raises(CorpusError):
            list(made)
    del made
    assert children() == before


DYING = """
from tests.unit.test_loading import *
def die(index):
    os.kill(os.getpid(), signal.SIGKILL)
rows = BROKEN | {"broken": Row("broken", "train", (), (0,), index=8, images=die)}
list(windows_of_rank(Batches(images, ENDS_BROKEN, rows, World(0, 0, 2), Loading(1, timeout_s=20)), 1, 4))
"""


def test_a_worker_that_is_killed_ends_the_process():
    """With a sentence only where the rank was waiting for a batch: torch raises wherever the main thread is."""
    environment = os.environ | {"PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    done = subprocess.run([sys.executable, "-c", DYING], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_a_lost_worker_is_named_with_what_to_look_at(error):
    """Both are what torch raises in a rank that waits for a batch of a worker that was killed."""

    def made():
        raise error
        yield

    batches = Batches(images, PLAN, ROWS, World(1, 1, 2), Loading(1))
    with pytest.raises(LoadingError) as refusal:
        loading._next(made(), batches, 3)
    assert str(refusal.value) == (
        f"rank 1 lost a worker before it had all batches of update 3 ({str(error).strip()}): where the kernel's log "
        "(`dmesg`) says that memory was short, lower workers or batch"
    )


FAILING = """
from tests.unit.test_loading import *
made = windows_of_rank(Batches(images, PLAN, ROWS, World(0, 0, 2), Loading(2)), 1, 4)
next(made)
print(len(children()), flush=True)
raise ZeroDivisionError("of the run")
"""


def test_an_unforeseen_error_ends_the_process_and_its_workers():
    """The traceback holds what holds the workers; Python's exit asks them by SIGTERM to end, and waits. They write to
    the output of the process, which has an end only when all of them are gone.
    """
    environment = os.environ | {"PYTHONPATH": f"{PROJECT / 'src'}:{PROJECT}"}
    done = subprocess.run([sys.executable, "-c", FAILING], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "2\n")
    assert done.stderr.endswith("ZeroDivisionError: of the run\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_whole_process_group_ends_no_worker(number):
    """The rank itself ends its window and saves; until then it needs its batches. Here a stranger sends the signal: of
    the rank's own, workers obey SIGTERM.
    """
    before = children()
    made = windows_of_rank(Batches(images, PLAN * 50, ROWS, World(0, 0, 2), Loading(2)), 1, 200)
    next(made)
    workers = sorted(children() - before)
    stranger = "import os, sys; [os.kill(int(process), int(sys.argv[1])) for process in sys.argv[2:]]"
    subprocess.run([sys.executable, "-c", stranger, str(number.value), *map(str, workers)], check=True)
    assert len(list(made)) == 199
    assert children() == before
