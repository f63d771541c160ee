from pathlib import Path

from ddp_tokens.layout import Layout
from ddp_tokens.reference import write_references
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    write_references(read_settings(snakemake.input.settings), Layout(Path(snakemake.output.initial).parent))
