from pathlib import Path

from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.checks.window import check_window
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    world_size = read_settings(snakemake.input.settings).world_size
    write_verdicts(snakemake.output.verdicts, "window", check_window(Path(snakemake.input.traces), world_size))
