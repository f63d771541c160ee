from pathlib import Path

from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.checks.zero_window import check_zero_window
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    write_verdicts(snakemake.output.verdicts, "zero_window", check_zero_window(Path(snakemake.input.messages)))
