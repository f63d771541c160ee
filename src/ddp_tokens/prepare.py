"""Make or read the corpus, lock it, and write down who computes which rows when."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ddp_tokens.config import Experiment, OwnImages, OwnRows, VerbGrammar
from ddp_tokens.corpora import recipe_of_images, rows, vocabulary
from ddp_tokens.corpora.lock import Tally, write_corpus
from ddp_tokens.corpora.objective import objective_of
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.corpora.verb_grammar import require_enough
from ddp_tokens.document_plan import make_document_plan, whole_documents
from ddp_tokens.errors import PlanError
from ddp_tokens.files import read_json
from ddp_tokens.objective_settings import DOCUMENT
from ddp_tokens.plan import (
    BY_DOCUMENT,
    BY_EPOCH,
    BY_INDEX,
    BY_LENGTH,
    Checked,
    Window,
    make_epochs,
    make_plan,
    pools,
    require_large_pools,
    write_plan,
)
from ddp_tokens.sampler import sampler
from ddp_tokens.steps import PLAN_FIELDS, dump

log = logging.getLogger(__name__)


def require_preparable(experiment: Experiment) -> None:
    """Raise what `prepare` would raise, and write nothing: called before a rebuild touches any file."""
    if isinstance(experiment.corpus, OwnRows | OwnImages):
        tally = Tally(objective_of(experiment))
        for row in rows(experiment.corpus, experiment.seed):
            tally.add(row)
        tally.require_supervised(experiment.corpus)
        training = tally.counts["train"]["rows"]
    else:
        if isinstance(experiment.corpus, VerbGrammar):
            require_enough(experiment.corpus)
        training = experiment.corpus.train
    if experiment.sharding in (BY_LENGTH, BY_INDEX):
        require_large_pools(training, experiment.world_size, experiment.accumulation, experiment.batch)
    if experiment.sharding == BY_EPOCH:
        require_preparable_epochs(experiment, training)


def prepare(experiment: Experiment, rows_path: Path, lock_path: Path, plan_path: Path) -> None:
    """Sharded by index or by epoch, the log says what each rank holds.

    Rows and windows are written as they are made: memory holds the columns of TrainingRows, whatever rows hold.
    Raises CorpusError at the first row that is refused, PlanError when a pool is too small for a window or a window
    holds no supervised token.
    """
    corpus, seed = experiment.corpus, experiment.seed
    words, images = vocabulary(corpus, seed), recipe_of_images(corpus, seed)
    objective = objective_of(experiment)
    training = write_corpus(rows(corpus, seed), corpus, rows_path, lock_path, words, images, objective)
    settings = {name: value for name, value in dump(experiment).items() if name in PLAN_FIELDS}
    write_plan(plan_path, plan_of(experiment, training), settings, read_json(lock_path)["corpus_sha256"])
    if experiment.sharding == BY_INDEX:
        for line in _shards(training, experiment.world_size):
            log.info(line)
    if experiment.sharding == BY_EPOCH:
        for line in _shares(experiment, len(training)):
            log.info(line)


def plan_of(experiment: Experiment, training: TrainingRows) -> Iterator[Window]:
    """Raises PlanError when there are too few rows for a window, and at a window without a supervised token."""
    checked: Checked = partial(whole_documents, rows=training) if experiment.unit == DOCUMENT else iter
    if experiment.sharding == BY_EPOCH:
        require_preparable_epochs(experiment, len(training))
        deal = sampler(len(training), experiment.world_size, experiment.seed, experiment.drop_last)
        return make_epochs(
            training,
            deal,
            steps=experiment.steps,
            accumulation=experiment.accumulation,
            batch=experiment.batch,
            drop_last=experiment.drop_last,
            checked=checked,
        )
    sizes = {name: getattr(experiment, name) for name in ("seed", "steps", "world_size", "accumulation", "batch")}
    if experiment.sharding == BY_DOCUMENT:
        return make_document_plan(training, **sizes)
    return make_plan(training, **sizes, sharding=experiment.sharding, checked=checked)


def require_preparable_epochs(experiment: Experiment, training_rows: int) -> None:
    try:
        experiment.windows_per_epoch(training_rows)
    except ValueError as error:
        raise PlanError(str(error)) from None


def _shards(training: TrainingRows, world_size: int) -> Iterator[str]:
    """A line per rank: how much it draws from, and the first of it, by which a reader sees that ranks differ."""
    for rank, shard in enumerate(pools(training, world_size, BY_INDEX)):
        first = training.texts.get(shard[0]) or training.id(shard[0])
        units = sum(training.supervised[index] for index in shard)
        yield f"rank {rank}: {len(shard)} rows, {units:,} supervised units, first '{first}'"


def _shares(experiment: Experiment, rows: int) -> Iterator[str]:
    """A line per rank: its rows in an epoch, and where the last window is short, how many of them that holds."""
    windows, full = experiment.windows_per_epoch(rows), experiment.accumulation * experiment.batch
    for rank in range(experiment.world_size):
        own = min(len(range(rank, rows, experiment.world_size)), windows * full)
        last = max(0, own - (windows - 1) * full)
        short = f", the last with {last}" if last < full else ""
        yield f"rank {rank}: {own:,} rows per epoch in {windows:,} windows of {full}{short}"
