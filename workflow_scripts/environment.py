import logging
from pathlib import Path

from ddp_tokens.check_environment import conclusion, document, examine
from ddp_tokens.files import write_json
from ddp_tokens.layout import Layout
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    experiment = read_settings(snakemake.input.settings)
    at = Layout(Path(snakemake.output.document).parent)
    machine, verdicts = examine(experiment, at, with_two=experiment.ranks_per_node > 1)
    write_json(snakemake.output.document, document(experiment, machine, verdicts))
    logging.getLogger("ddp_tokens.environment").info("%s", conclusion(verdicts))
