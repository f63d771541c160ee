# The checks, checked: wrong windows, runs and evaluations that each must be refused and named, and right ones that must
# not. On the CPU, with the settings of config/controls.yaml and no others; one launch for each number of ranks.


rule control_cases:
    input:
        settings="results/controls/settings/control_cases.json",
    output:
        trained=directory("results/controls/trained"),
        cases=directory("results/controls/cases"),
    log:
        "results/controls/logs/control_cases.log",
    benchmark:
        "results/controls/benchmarks/control_cases.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "controls: rows, plans and reference gradients of every case, one process"
    script:
        "../workflow_scripts/control_cases.py"


rule control_ranks:
    input:
        settings="results/controls/settings/control_ranks.json",
        trained=rules.control_cases.output.trained,
        cases=rules.control_cases.output.cases,
    output:
        left=directory("results/controls/ranks/{world_size}"),
    log:
        "results/controls/logs/control_ranks_{world_size}.log",
    benchmark:
        "results/controls/benchmarks/control_ranks_{world_size}.tsv"
    conda:
        "../envs/environment.yaml"
    threads: lambda wildcards: max(1, int(wildcards.world_size) // 2)
    message:
        "controls: every variant for {wildcards.world_size} ranks"
    shell:
        "python -m ddp_tokens.launch --nproc-per-node={wildcards.world_size}"
        " -m ddp_tokens.controls.ranks --settings {input.settings} > {log} 2>&1"


rule control_table:
    input:
        settings="results/controls/settings/control_table.json",
        trained=rules.control_cases.output.trained,
        cases=rules.control_cases.output.cases,
        ranks=expand(
            "results/controls/ranks/{world_size}", world_size=CONTROL_WORLD_SIZES
        ),
        templates=expand(
            "src/ddp_tokens/templates/{page}.html", page=["page", "marks", "controls"]
        ),
    output:
        verdicts="results/controls/controls.json",
        csv="results/controls/controls.csv",
        page=report(
            "results/controls/controls.html",
            caption="../report/controls.rst",
            category="controls",
            labels={"item": "Every control and right variant", "kind": "table"},
        ),
        figure=report(
            "results/controls/controls.png",
            caption="../report/controls_figure.rst",
            category="controls",
            labels={"item": "Errors against their tolerances", "kind": "figure"},
        ),
        figure_svg="results/controls/controls.svg",
        figure_pdf="results/controls/controls.pdf",
    log:
        "results/controls/logs/control_table.log",
    benchmark:
        "results/controls/benchmarks/control_table.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "controls: each judged by the check that is meant for it"
    script:
        "../workflow_scripts/control_table.py"


rule control_gate:
    input:
        settings="results/controls/settings/control_gate.json",
        verdicts=rules.control_table.output.verdicts,
    output:
        gate="results/controls/gate.txt",
    log:
        "results/controls/logs/control_gate.log",
    benchmark:
        "results/controls/benchmarks/control_gate.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "controls: is each refused and named, and nothing right refused?"
    script:
        "../workflow_scripts/control_gate.py"


rule controls:
    input:
        rules.control_gate.output.gate,
