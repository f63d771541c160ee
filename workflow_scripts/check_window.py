from pathlib import Path

from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.checks.window import check_window
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    write_verdicts(snakemake.output.verdicts, "window", check_window(Path(snakemake.input.traces)))
