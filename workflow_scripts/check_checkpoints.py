from pathlib import Path

from ddp_tokens.checks.checkpoints import check_checkpoints
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.layout import RUNS, checkpoints_in
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    directories = [directory for run in RUNS for directory in checkpoints_in(Path(snakemake.input[run]))]
    write_verdicts(snakemake.output.verdicts, "checkpoints", check_checkpoints(directories))
