from pathlib import Path

from ddp_tokens.layout import Layout
from ddp_tokens.prediction_results import write_prediction
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    experiment = read_settings(snakemake.input.settings)
    write_prediction(experiment, Layout(Path(snakemake.input.plan).parent))
