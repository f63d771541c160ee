"""The rows of docs/data.md are read, and give what the page says."""

import json
import re

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora.own_fields import BESIDES, NEEDED
from ddp_tokens.corpora.own_rows import read
from tests.helpers import PROJECT, write_lines

PAGE = (PROJECT / "docs" / "data.md").read_text()
X = -100
LABELS = {
    "a": (3, 5, 2, X),
    "b": (X, X, 2, 4, X),
    "c": (X, 5, X, 4, X, 1, X),
    "d": (0, 1, 1),
    "e-1": (0, 1, 1),
    "e-2": (1, 0),
}


def test_each_row_is_what_the_page_says(tmp_path):
    lines = [
        json.loads(line) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
    ]
    found = {}
    for labels in ("given", "next_token"):
        rows = [line for line in lines if ("labels" in line) == (labels == "given")]
        path = write_lines(tmp_path / f"{labels}.jsonl", *rows)
        found |= {row.id: row for row in read(OwnRows(path=str(path), labels=labels))}
    assert {row_id: row.labels for row_id, row in found.items()} == LABELS
    for row_id in ("a", "b", "c"):
        assert f"labels {', '.join(map(str, LABELS[row_id]))}" in re.sub(r"Labels with `next_token`:", "labels", PAGE)
    assert found["c"].starts == (0, 3, 5)
    assert found["d"].weights == (1.0, 0.25, 0.0)
    assert {found["e-1"].document, found["e-2"].document} == {"e"}


def test_the_page_names_every_field():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)[: len(NEEDED) + len(BESIDES)] == [*NEEDED, *BESIDES]
