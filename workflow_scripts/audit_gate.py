from ddp_tokens.files import write_text
from ddp_tokens.script import logged
from ddp_tokens.trainers.table import gate

with logged(snakemake.log[0]):
    write_text(snakemake.output.gate, gate(snakemake.input.table))
