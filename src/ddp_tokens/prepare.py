"""Make or read the corpus, lock it, and write down who computes which rows when."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_tokens.config import Experiment, OwnRows, VerbGrammar
from ddp_tokens.corpora import rows, vocabulary
from ddp_tokens.corpora.lock import Tally, write_corpus
from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.corpora.verb_grammar import require_enough
from ddp_tokens.errors import PlanError
from ddp_tokens.files import read_json, write_json
from ddp_tokens.plan import BY_INDEX, counts_per_rank, make_plan, plan_document, pools, require_large_pools
from ddp_tokens.steps import PLAN_FIELDS, dump

log = logging.getLogger(__name__)


def require_preparable(experiment: Experiment) -> None:
    """Raise what `prepare` would raise, and write nothing: called before a rebuild touches any file."""
    if isinstance(experiment.corpus, OwnRows):
        tally = Tally()
        for row in rows(experiment.corpus, experiment.seed):
            tally.add(row)
        tally.require_supervised(experiment.corpus)
        training = tally.counts["train"]["rows"]
    else:
        if isinstance(experiment.corpus, VerbGrammar):
            require_enough(experiment.corpus)
        training = experiment.corpus.train
    require_large_pools(training, experiment.world_size, experiment.accumulation, experiment.batch)


def prepare(experiment: Experiment, rows_path: Path, lock_path: Path, plan_path: Path) -> None:
    """Sharded by index, the log says what each rank holds.

    Raises CorpusError at the first row that is refused, PlanError when a pool is too small for a window.
    """
    corpus, seed = experiment.corpus, experiment.seed
    training = write_corpus(rows(corpus, seed), corpus, rows_path, lock_path, vocabulary(corpus, seed))
    plan = make_plan(
        training,
        seed=seed,
        steps=experiment.steps,
        world_size=experiment.world_size,
        accumulation=experiment.accumulation,
        batch=experiment.batch,
        sharding=experiment.sharding,
    )
    by_id = {row.id: row for row in training}
    for number, window in enumerate(plan, start=1):
        if not any(counts_per_rank(window, by_id)):
            first = window[0][0][0]
            raise PlanError(
                f"window {number} of the plan, from row '{first}' on, holds no supervised token on any rank, so it has "
                "no mean: label more rows, or raise batch or accumulation"
            )
    settings = {name: value for name, value in dump(experiment).items() if name in PLAN_FIELDS}
    write_json(plan_path, plan_document(plan, settings, read_json(lock_path)["corpus_sha256"]))
    if experiment.sharding == BY_INDEX:
        for line in _shards(training, experiment.world_size):
            log.info(line)


def _shards(training: Sequence[Row], world_size: int) -> Iterator[str]:
    """A line per rank: how much it draws from, and the first of it, by which a reader sees that ranks differ."""
    by_id = {row.id: row for row in training}
    for rank, pool in enumerate(pools(training, world_size, BY_INDEX)):
        shard = [by_id[row_id] for row_id in pool]
        first = shard[0].text or shard[0].id
        yield f"rank {rank}: {len(shard)} rows, {supervised_in(shard):,} supervised units, first '{first}'"
