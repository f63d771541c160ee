# What known trainers do with the windows of `minimum`. They need packages that are installed by `make trainers`, so no
# other target asks for these. A run whose package is missing says so, and is made again once it is installed. Runs are
# timed: each asks for more threads than there are cores, and so gets them all, and nothing else runs beside it.


rule audit_run:
    input:
        settings="results/audit/settings/audit_run.json",
        installed=lambda wildcards: installed_file(BY_NAME[wildcards.case]),
        script=lambda wildcards: script_file(BY_NAME[wildcards.case]),
        rows=expand(rules.prepare.output.rows, experiment=AUDITED),
        lock=expand(rules.prepare.output.lock, experiment=AUDITED),
        plan=expand(rules.prepare.output.plan, experiment=AUDITED),
        initial=expand(rules.reference.output.initial, experiment=AUDITED),
    output:
        run="results/audit/runs/{case}.json",
    log:
        "results/audit/logs/{case}.log",
    benchmark:
        "results/audit/benchmarks/{case}.tsv"
    wildcard_constraints:
        case="|".join(BY_NAME),
    conda:
        "../envs/environment.yaml"
    threads: 4096
    resources:
        cpus_per_task=2,
        slurm_extra="--exclusive",
    message:
        "audit: {wildcards.case} on two ranks"
    shell:
        "python -m ddp_tokens.trainers.run {wildcards.case} --output {output.run} > {log} 2>&1"


rule audit_table:
    input:
        settings="results/audit/settings/audit_table.json",
        runs=expand("results/audit/runs/{case}.json", case=BY_NAME),
        templates=expand(
            "src/ddp_tokens/templates/{page}.html", page=["page", "marks", "trainers"]
        ),
    output:
        json="results/audit/trainers.json",
        csv="results/audit/trainers.csv",
        page=report(
            "results/audit/trainers.html",
            caption="../report/trainers.rst",
            category="trainers",
            labels={"item": "What known trainers do", "kind": "table"},
        ),
        figure=report(
            "results/audit/trainers.png",
            caption="../report/trainers_figure.rst",
            category="trainers",
            labels={"item": "Errors against tolerances", "kind": "figure"},
        ),
        figure_svg="results/audit/trainers.svg",
        figure_pdf="results/audit/trainers.pdf",
    log:
        "results/audit/logs/audit_table.log",
    benchmark:
        "results/audit/benchmarks/audit_table.tsv"
    conda:
        "../envs/environment.yaml"
    params:
        caption=lambda wildcards, input: experiments.get(AUDITED).model_dump(
            mode="json", include={"world_size", "accumulation", "batch"}
        ),
    message:
        "audit: every trainer's outcome, error, diagnosis and speed"
    script:
        "../workflow_scripts/audit_table.py"


rule audit_gate:
    input:
        settings="results/audit/settings/audit_gate.json",
        table=rules.audit_table.output.json,
    output:
        gate="results/audit/gate.txt",
    log:
        "results/audit/logs/audit_gate.log",
    benchmark:
        "results/audit/benchmarks/audit_gate.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "audit: is each trainer what it is expected to be, and is each wrong one made right?"
    script:
        "../workflow_scripts/audit_gate.py"


rule audit:
    input:
        rules.audit_gate.output.gate,
