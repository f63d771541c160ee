from pathlib import Path

from ddp_tokens.controls.prepare import prepare_controls
from ddp_tokens.layout import Layout
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    prepare_controls(read_settings(snakemake.input.settings), Layout(Path(snakemake.output.cases).parent))
