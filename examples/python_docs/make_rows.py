"""Rows for a language model from Python's own documentation, which every Python carries as pydoc_data.topics.

A topic is a document, and each of its paragraphs a row: the topic's name and the paragraph's first words are a prompt,
whose labels do not count, and the model learns to go on from there. Run it in the project's folder:

python examples/python_docs/make_rows.py
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from pydoc_data.topics import topics

OUTPUT = Path("data/python_docs.jsonl")
FIRST_WORDS = 4  # of a paragraph that belong to its prompt
SHORTEST = 12  # paragraphs of fewer words are left out: headings, and lines of a single name
LONGEST = 64  # tokens of a row; what is beyond is cut away
SEEN_AT_LEAST = 5  # words that are rarer than that become RARE
RARE = "<rare>"


def words_of(text: str) -> list[str]:
    """Without the lines that underline a heading."""
    return re.findall(r"\w+|[^\w\s]", re.sub(r"^\W+$", "", text, flags=re.MULTILINE))


def split_of(topic: str) -> str:
    """Of a whole document, by its name: so that it stays where it is when another Python has other topics."""
    drawn = sha256(topic.encode()).digest()[0] % 8
    return {0: "validation", 1: "test"}.get(drawn, "train")


def paragraphs() -> Iterator[tuple[str, int, list[str]]]:
    """Topic, number, words."""
    for topic in sorted(topics):
        long_ones = [words for text in re.split(r"\n\s*\n", topics[topic]) if len(words := words_of(text)) >= SHORTEST]
        yield from ((topic, number, words) for number, words in enumerate(long_ones))


def rows() -> Iterator[dict[str, object]]:
    seen = Counter(word for _, _, words in paragraphs() for word in words)
    for topic, number, words in paragraphs():
        name = [*words_of(topic), ":"]
        tokens = [word if seen[word] >= SEEN_AT_LEAST else RARE for word in (*name, *words)]
        yield {
            "id": f"{topic}-{number:03d}",
            "split": split_of(topic),
            "tokens": tokens[:LONGEST],
            "document": topic,
            "prompt": len(name) + FIRST_WORDS,
        }


if __name__ == "__main__":
    made = list(rows())
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text("".join(f"{json.dumps(row)}\n" for row in made))
    print(f"wrote {OUTPUT}: {len(made)} rows of {len({row['document'] for row in made})} documents")
