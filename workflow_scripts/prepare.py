from pathlib import Path

from ddp_tokens.prepare import prepare
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    prepare(
        read_settings(snakemake.input.settings),
        Path(snakemake.output.rows),
        Path(snakemake.output.lock),
        Path(snakemake.output.plan),
    )
