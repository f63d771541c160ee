from pathlib import Path

from ddp_tokens.layout import Layout
from ddp_tokens.scaling_results import write_results
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    write_results(read_settings(snakemake.input.settings), Layout(Path(snakemake.output.manifest).parents[1]))
