from ddp_tokens.exercise import work_out
from ddp_tokens.files import write_json
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    write_json(snakemake.output.result, work_out(read_settings(snakemake.input.settings).exercise))
