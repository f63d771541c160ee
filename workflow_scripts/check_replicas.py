from pathlib import Path

from ddp_tokens.checks.replicas import check_replicas
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.layout import RUNS
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    runs = {run: Path(snakemake.input[run]) for run in RUNS}
    write_verdicts(snakemake.output.verdicts, "replicas", check_replicas(runs))
