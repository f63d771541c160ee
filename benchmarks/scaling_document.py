"""Put the tables and the figure of results/grammar/scaling/ into docs/scaling.md.

snakemake --cores 2 results/grammar/scaling/prediction.json && python -m benchmarks.scaling_document
"""

import shutil
from pathlib import Path

MADE = Path("results/grammar/scaling/prediction.md")
DOCUMENT, FIGURE = Path("docs/scaling.md"), Path("docs/scaling-prediction.png")
BEGIN, END = "<!-- begin prediction.md -->\n", "<!-- end prediction.md -->\n"


def with_tables(document: str, tables: str) -> str:
    before, _, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(
            f"{DOCUMENT} has no place for the tables: it needs the lines {BEGIN.strip()} and {END.strip()}"
        )
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(), MADE.read_text()))
    shutil.copy(MADE.with_suffix(".png"), FIGURE)
    print(f"wrote {DOCUMENT} and {FIGURE}")
