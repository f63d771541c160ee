"""Proves a distributed gradient and an exact resume. The includes stand in the order of the flow."""

import os
import sys

from ddp_tokens.archive.building import archived, limit_mib, measured, source_file
from ddp_tokens.archive.collect import require_archivable
from ddp_tokens.errors import UserError
from ddp_tokens.trainers.building import audited, installed_file, script_file
from ddp_tokens.trainers.cases import BY_NAME
from ddp_tokens.workflow import (
    AUDITED,
    CONTROL_WORLD_SIZES,
    Experiments,
    command_line,
    put_this_python_first,
    targets_of,
)
from ddp_tokens.watching import SNAKEMAKE, sign_as
from snakemake.cli import get_argument_parser
from snakemake.exceptions import WorkflowError


configfile: "config/config.yaml"


report: "report/workflow.rst"


put_this_python_first(os.environ)
sign_as(SNAKEMAKE, os.environ)  # jobs end with this process

# Snakemake tells a Snakefile its targets only when it has been parsed: they are read as Snakemake reads them.
call = get_argument_parser().parse_args(command_line(sys.argv))
targets = targets_of(
    asked=call.targets,
    moved=[*call.forcerun, *call.until, *call.prioritize],
    jobs=[job.wildcards_dict for job in call.target_jobs],
)

try:
    experiments = Experiments(config, targets)
    archive_limit_mib = limit_mib(config)
except UserError as error:
    raise WorkflowError(str(error)) from None


wildcard_constraints:
    experiment=r"(?!(controls|audit)/)[A-Za-z0-9][A-Za-z0-9_.-]*",
    step="[a-z_]+",


onstart:
    experiments.require_alone()
    experiments.require_ready(is_submitted=not workflow.local_exec, targets=targets)
    for name in archived(targets, experiments.names):
        require_archivable(experiments.get(name))


onerror:
    experiments.forget_unfinished(
        rules.summary.input, [rules.summary.output.json, rules.gate.output.gate]
    )
    experiments.forget_unfinished(
        rules.control_table.input,
        [rules.control_table.output.verdicts, rules.control_gate.output.gate],
    )
    experiments.forget_unfinished(
        rules.audit_table.input.runs,
        [rules.audit_table.output.json, rules.audit_gate.output.gate],
    )


rule report_items:
    input:
        expand("results/{experiment}/summary.json", experiment=experiments.names),
        expand("results/{experiment}/figures/tokens.png", experiment=experiments.names),
        "results/controls/controls.csv",
        audited() if call.report else [],


rule all:
    default_target: True
    input:
        expand(
            "results/{experiment}/{kept}",
            experiment=experiments.names,
            kept=["gate.txt", "runs/interrupt", "runs/continuous", "runs/resume"],
        ),
        "results/controls/gate.txt",
        "results/exercise/exercise.json",


include: "rules/settings.smk"
include: "rules/environment.smk"
include: "rules/prepare.smk"
include: "rules/gradients.smk"
include: "rules/runs.smk"
include: "rules/checks.smk"
include: "rules/evaluate.smk"
include: "rules/scaling.smk"
include: "rules/report.smk"
include: "rules/controls.smk"
include: "rules/audit.smk"
include: "rules/archive.smk"


# What computes with tensors is not here: it goes to a cluster, where a profile names one.
localrules:
    all,
    report_items,
    settings,
    prepare,
    check_loss,
    check_parity,
    check_window,
    check_zero_window,
    check_resume,
    check_replicas,
    check_checkpoints,
    check_evaluation,
    exercise,
    figure,
    predict,
    summary,
    gate,
    control_table,
    control_gate,
    controls,
    audit_table,
    audit_gate,
    audit,
    pack,
    archive,
