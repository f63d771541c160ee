from pathlib import Path

from ddp_tokens.evaluation import evaluate_checkpoint
from ddp_tokens.files import write_json
from ddp_tokens.layout import checkpoint_name
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    experiment = read_settings(snakemake.input.settings)
    checkpoint = Path(snakemake.input.run) / checkpoint_name(experiment.steps)
    files = snakemake.input
    scores = evaluate_checkpoint(experiment, Path(files.rows), Path(files.lock), checkpoint, Path(files.initial))
    write_json(snakemake.output.evaluation, scores)
