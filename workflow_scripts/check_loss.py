from ddp_tokens.checks.loss import check_loss
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    write_verdicts(snakemake.output.verdicts, "loss", check_loss())
