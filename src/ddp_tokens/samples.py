"""What a model writes, as text that a person can read. Shown, and judged by no check."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ddp_tokens.corpora.rows import Row
from ddp_tokens.corpora.text import FINAL, as_text
from ddp_tokens.workloads import Writer

NUMBER = 50


def write_samples(
    writer: Writer, model: torch.nn.Module, rows: Iterable[Row], lock: Mapping[str, Any], seed: int
) -> list[str]:
    """A text for each of the first NUMBER test rows, from that row's first token on.

    Sequences end with a word of FINAL, where the lock has words, or with the model's last position.
    """
    words: Sequence[str] | None = lock.get("vocabulary")
    stop = {token for token, word in enumerate(words or ()) if word in FINAL}
    generator = torch.Generator().manual_seed(seed)
    longest = lock["shape"]["positions"]
    first_tokens = [row.tokens[0] for row in rows if row.split == "test"][:NUMBER]
    return [_text(writer.sample(model, token, generator, longest, stop), words) for token in first_tokens]


def _text(tokens: Sequence[int], words: Sequence[str] | None) -> str:
    return " ".join(map(str, tokens)) if words is None else as_text([words[token] for token in tokens])
