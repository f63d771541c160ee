from pathlib import Path

from ddp_tokens.checks.evaluation import check_evaluation
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.script import logged

with logged(snakemake.log[0]):
    verdicts = check_evaluation(Path(snakemake.input.evaluation), Path(snakemake.input.lock))
    write_verdicts(snakemake.output.verdicts, "evaluation", verdicts)
