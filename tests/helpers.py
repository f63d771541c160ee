"""Small inputs that many tests start from. No torch."""

import json
from pathlib import Path

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.rows import UNSUPERVISED, Row

PROJECT = Path(__file__).resolve().parents[1]
TINY_CORPUS = {"train": 32, "validation": 4, "test": 8, "min_length": 2, "short_max_length": 4, "max_length": 8}
TINY_MODEL = {"width": 8, "layers": 1, "heads": 2, "feed_forward": 8, "dropout": 0.1}


def tiny_experiment(**changes):
    values = {
        "name": "tiny",
        "corpus": TINY_CORPUS,
        "model": TINY_MODEL,
        "steps": 4,
        "interrupt_at": 2,
        "batch": 2,
        "accumulation": 2,
    }
    return Experiment.model_validate(values | changes)


def make_row(row_id, length, split="train", units=None):
    """A row of `length` tokens, of which the first `units` (all, when not given) are supervised."""
    units = length if units is None else units
    return Row(row_id, split, (1,) * length, (0,) * units + (UNSUPERVISED,) * (length - units))


def record(row_id="a", split="train", tokens=(0, 1), labels=(0, 1)):
    return {"id": row_id, "split": split, "tokens": list(tokens), "labels": list(labels)}


def write_lines(path, *lines):
    """One JSON line per record; a string stands as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def next_token_row(row_id, *tokens, split="train"):
    """A row as a language model needs it: the label at a position is the next token, and the last position has none."""
    return Row(row_id, split, tokens, (*tokens[1:], UNSUPERVISED))
