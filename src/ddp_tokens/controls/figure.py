from collections.abc import Sequence
from pathlib import Path

from ddp_tokens.controls.table import Judged
from ddp_tokens.files import write_text


def save_controls(judged: Sequence[Judged], outputs: Sequence[Path]) -> None:
    for path in outputs:
        write_text(path, "")
