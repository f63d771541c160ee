# One file to put beside a paper: results/archive/EXPERIMENT.zip. It is made whatever the verdicts are; that they are as
# expected is what the gates say.


rule pack:
    input:
        settings="results/{experiment}/settings/pack.json",
        controls_settings="results/controls/settings/pack.json",
        source=lambda wildcards: source_file(),
        made=[
            *rules.prepare.output,
            *rules.reference.output,
            *rules.gradients.output,
            *rules.interrupt.output,
            *rules.continuous.output,
            *rules.resume.output,
        ],
        checks=rules.summary.input.checks,
        evaluation=rules.evaluate.output.evaluation,
        summary=[rules.summary.output.csv, rules.summary.output.json],
        figures=rules.figure.output,
        environment=rules.environment.output.document,
        controls=[
            *rules.control_cases.output,
            *rules.control_table.input.ranks,
            *rules.control_table.output,
        ],
        measured=lambda wildcards: measured(wildcards.experiment),
    output:
        archive="results/archive/{experiment}.zip",
    log:
        "results/{experiment}/logs/pack.log",
    benchmark:
        "results/{experiment}/benchmarks/pack.tsv"
    conda:
        "../envs/environment.yaml"
    params:
        limit_mib=archive_limit_mib,
    message:
        "{wildcards.experiment}: one file for a paper"
    script:
        "../workflow_scripts/pack.py"


rule archive:
    input:
        archives=expand(
            "results/archive/{experiment}.zip", experiment=experiments.names
        ),
        gates=expand("results/{experiment}/gate.txt", experiment=experiments.names),
        control_gate=rules.control_gate.output.gate,
