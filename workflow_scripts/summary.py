from dataclasses import asdict
from pathlib import Path

from ddp_tokens import report
from ddp_tokens.files import read_json, write_json, write_text
from ddp_tokens.layout import Layout
from ddp_tokens.profile_page import profile_page
from ddp_tokens.published import compare_with_published
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings
from ddp_tokens.summary import read_checks, summarize, table

with logged(snakemake.log[0]):
    experiment = read_settings(snakemake.input.settings)
    checks = read_checks(snakemake.input.checks)
    evaluation = read_json(snakemake.input.evaluation)
    published = [asdict(row) for row in compare_with_published(experiment, checks, evaluation)]
    summary = summarize(experiment, checks, evaluation, published)
    write_json(snakemake.output.json, summary)
    write_text(snakemake.output.csv, table(checks))
    write_text(snakemake.output.verdicts, report.verdicts_page(summary))
    write_text(snakemake.output.scores, report.scores_page(summary, experiment.corpus))
    write_text(snakemake.output.config, report.config_page(experiment))
    write_text(snakemake.output.versions, report.versions_page(experiment))
    write_text(snakemake.output.profile, profile_page(experiment, Layout(Path(snakemake.output.json).parent)))
