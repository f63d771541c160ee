"""The corpus as a file, and the lock that says what it held when it was prepared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddp_tokens.config import Corpus, GeneratedCorpus, OwnImages, OwnRows
from ddp_tokens.corpora import own_images, own_sources
from ddp_tokens.corpora.locked_rows import changed, locked_rows
from ddp_tokens.corpora.objective import Objective, objective_in, require_one_split
from ddp_tokens.corpora.rows import SPLITS, UNSUPERVISED, Criterion, Row, longest_sequence, supervised_positions
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.errors import PREPARE_AGAIN, CorpusError
from ddp_tokens.files import json_line, read_json, replacing, sha256, write_json
from ddp_tokens.objective_settings import DOCUMENT

TOKEN_MEAN = Objective()


@dataclass(frozen=True)
class Shape:
    """What a model must cover: ids 0..vocabulary-1, labels 0..classes-1, sequences of up to `positions` tokens, also in
    packed rows."""

    vocabulary: int
    classes: int
    positions: int


@dataclass(frozen=True)
class ImageShape:
    """What a model of images must cover: labels 0..classes-1, pixels (channels, height, width)."""

    classes: int
    channels: int
    height: int
    width: int


@dataclass
class Tally:
    """What a corpus holds, counted row by row."""

    objective: Objective = TOKEN_MEAN
    counts: dict[str, dict[str, int]] = field(
        default_factory=lambda: {split: {"rows": 0, "tokens": 0, "supervised": 0} for split in SPLITS}
    )
    measured: Shape = Shape(0, 0, 0)
    weighted: bool = False
    split_of_documents: dict[str, str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Raises CorpusError at a row that the objective cannot count."""
        self._require_countable(row)
        row = replace(row, criterion=self.objective.criterion)
        self.weighted |= row.weights is not None
        of_split = self.counts[row.split]
        of_split["rows"] += 1
        of_split["tokens"] += len(row.tokens)
        of_split["supervised"] += supervised_positions(row)
        self.measured = Shape(
            max(self.measured.vocabulary, 1 + max(row.tokens, default=-1)),
            max(self.measured.classes, 1 + max(row.labels)),
            max(self.measured.positions, longest_sequence(row)),
        )

    def _require_countable(self, row: Row) -> None:
        weights = self.objective.criterion.class_weights
        if weights is not None and max(row.labels) >= len(weights):
            raise CorpusError(
                f"row '{row.id}' has label {max(row.labels)}, and class_weights has {len(weights)} weights, for the "
                f"labels 0 to {len(weights) - 1}: give one weight per class"
            )
        if self.objective.unit == DOCUMENT:
            require_one_split(row, self.split_of_documents, "unit document")

    @property
    def _is_weighted(self) -> bool:
        return self.weighted or self.objective.criterion.class_weights is not None

    def require_supervised(self, corpus: Corpus) -> None:
        """Raises CorpusError when there is nothing to train on, or nothing to score."""
        source = corpus.path if isinstance(corpus, OwnRows | OwnImages) else "the generated corpus"
        for split, count in self.counts.items():
            if not count["supervised"] and (count["rows"] or split != "validation"):
                raise CorpusError(
                    f"{source} has no supervised token (label other than {UNSUPERVISED}"
                    f"{', of a weight above 0' * self._is_weighted}) in split '{split}'"
                )


def write_corpus(
    rows: Iterable[Row],
    corpus: Corpus,
    rows_path: Path | str,
    lock_path: Path | str,
    vocabulary: Sequence[str] | None = None,
    images: Mapping[str, Any] | None = None,
    objective: Objective = TOKEN_MEAN,
) -> TrainingRows:
    """Write rows and lock; return what a plan needs of the training rows. One pass, row by row; nothing is written when
    a row is refused.

    `objective`: its documents need not be known yet.

    `vocabulary`: the words behind the tokens, by token, where there are any. `images`: where rows are images, how they
    are made or read, and their `shape`; see `pixels.open_images`.
    """
    tally = Tally(objective)
    training = TrainingRows()
    with replacing(rows_path) as stream:
        for row in rows:
            stream.write(json_line(row.record()).encode())
            tally.add(row)
            if row.split == "train":
                training.add(replace(row, criterion=objective.criterion))
        tally.require_supervised(corpus)
    shape = images["shape"] if images else vars(_shape(corpus, tally.measured))
    _require_weight_per_class(objective.criterion, shape["classes"])
    lock: dict[str, Any] = {
        "corpus_sha256": sha256(rows_path),
        "counts": tally.counts,
        "shape": shape,
    } | objective.record()
    if tally.weighted:
        lock["weights"] = "of rows"
    if images:
        lock["images"] = dict(images)
    if vocabulary is not None:
        lock["vocabulary"] = list(vocabulary)
    if isinstance(corpus, OwnRows):
        lock["source_sha256"] = own_sources.digest_of(own_sources.files_of(Path(corpus.path)))
    write_json(lock_path, lock)
    return training


def read_corpus(
    rows_path: Path | str, lock_path: Path | str, unit: str | None = None
) -> tuple[Mapping[str, Row], dict[str, Any]]:
    """Rows by id, in file order, as the objective counts them, and the lock. Raises CorpusError when the rows are not
    those that were locked. `unit`: what is to count once in place of the locked unit. Of a large corpus, rows are read
    when they are asked for.
    """
    lock = read_lock(rows_path, lock_path)
    images = _images_in(lock)
    rows = locked_rows(rows_path, lambda record: Row.from_record(record, images))
    if "objective" in lock or unit:
        objective = objective_in(lock, rows.values(), unit)
        rows = changed(rows, objective.counted)
    return rows, lock


def _images_in(lock: Mapping[str, Any]) -> Callable[[int], Any] | None:
    """NumPy and image files only where rows are images: parsing the Snakefile reads this module."""
    if "images" not in lock:
        return None
    from ddp_tokens.corpora.pixels import open_images

    return open_images(lock["images"])


def read_lock(rows_path: Path | str, lock_path: Path | str) -> dict[str, Any]:
    """Raises CorpusError when a file is missing or the rows are not those that were locked."""
    for path in (rows_path, lock_path):
        if not Path(path).is_file():
            raise CorpusError(f"{path} does not exist: run prepare first")
    lock: dict[str, Any] = read_json(lock_path)
    if sha256(rows_path) != lock["corpus_sha256"]:
        raise CorpusError(
            f"{rows_path} has changed since prepare (its SHA-256 is not the one in {lock_path}): {PREPARE_AGAIN}"
        )
    return lock


def require_same_source(corpus: Corpus, lock: dict[str, Any], lock_path: Path | str) -> None:
    """Raises CorpusError when the user's own files are no longer those that were prepared; rows that are gone are not
    missed, since they were copied."""
    if isinstance(corpus, OwnImages):
        own_images.require_same(lock["images"])
    if not isinstance(corpus, OwnRows) or not Path(corpus.path).exists():
        return
    if own_sources.digest_of(own_sources.files_of(Path(corpus.path))) != lock.get("source_sha256"):
        raise CorpusError(
            f"{corpus.path} has changed since prepare (its SHA-256 is not the one in {lock_path}): {PREPARE_AGAIN}"
        )


def shape_in(lock: Mapping[str, Any]) -> Shape | ImageShape:
    return ImageShape(**lock["shape"]) if "images" in lock else Shape(**lock["shape"])


def _require_weight_per_class(criterion: Criterion, classes: int) -> None:
    weights = criterion.class_weights
    if weights is not None and len(weights) != classes:
        raise CorpusError(
            f"class_weights has {len(weights)} weights, and the corpus {classes} classes of labels: give one per class"
        )


def _shape(corpus: Corpus, measured: Shape) -> Shape:
    """The generated corpus states its shape, so that the model's size does not depend on the luck of the draw."""
    if isinstance(corpus, GeneratedCorpus):
        return Shape(corpus.vocabulary, corpus.classes, corpus.max_length)
    if isinstance(corpus, OwnRows):
        return Shape(measured.vocabulary, corpus.classes or measured.classes, measured.positions)
    return Shape(measured.vocabulary, measured.vocabulary, measured.positions)
