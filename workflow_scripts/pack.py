import logging
from pathlib import Path

from ddp_tokens.archive.make import Project, make_archive
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    archive = Path(snakemake.output.archive)
    experiment = read_settings(snakemake.input.settings)
    controls = read_settings(snakemake.input.controls_settings)
    project = Project(Path(), results=archive.parent.parent)
    document = make_archive(archive, project, experiment, controls, snakemake.params.limit_mib)
    logging.getLogger("ddp_tokens.archive").info("comparison digest %s", document.comparison_digest)
