import logging
from pathlib import Path

from ddp_tokens.check_environment import conclusion, examine
from ddp_tokens.layout import Layout
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    experiment = read_settings(snakemake.input.settings)
    at = Layout(Path(snakemake.output.document).parent)
    _, verdicts = examine(experiment, at, with_two=experiment.world_size > 1)
    logging.getLogger("ddp_tokens.environment").info("%s", conclusion(verdicts))
