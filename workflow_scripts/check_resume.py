from pathlib import Path

from ddp_tokens.checks.resume import check_resume
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.layout import checkpoint_name
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    experiment = read_settings(snakemake.input.settings)
    verdicts = check_resume(
        interrupted=Path(snakemake.input.interrupted) / checkpoint_name(experiment.interrupt_at),
        continuous=Path(snakemake.input.continuous) / checkpoint_name(experiment.steps),
        resumed=Path(snakemake.input.resumed) / checkpoint_name(experiment.steps),
    )
    write_verdicts(snakemake.output.verdicts, "resume", verdicts)
