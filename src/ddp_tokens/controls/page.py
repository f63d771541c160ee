from collections.abc import Sequence

from ddp_tokens.controls.table import Judged, headline


def controls_page(judged: Sequence[Judged]) -> str:
    return headline(judged)
