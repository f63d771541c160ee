from ddp_tokens.controls.table import gate
from ddp_tokens.files import write_text
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    write_text(snakemake.output.gate, gate(snakemake.input.verdicts))
