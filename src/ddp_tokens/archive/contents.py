"""What goes into an archive: name in it -> its bytes, or the file that holds them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Contents = Mapping[str, bytes | Path]


def content_of(contents: Contents, name: str) -> bytes:
    source = contents[name]
    return source if isinstance(source, bytes) else source.read_bytes()


def json_of(contents: Contents, name: str) -> Any:
    return json.loads(content_of(contents, name))
