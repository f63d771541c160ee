# What an all-reduce costs on this machine's CPU, and tokens per second on other numbers of processes. No other target needs
# it, and what it finds differs each time. It asks for more threads than there are cores, and so gets them all: nothing else
# runs beside it. What it trains is thrown away, so no check guards it.


rule scaling:
    input:
        settings="results/{experiment}/settings/scaling.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
    output:
        timings="results/{experiment}/scaling/timings.jsonl",
        runs="results/{experiment}/scaling/runs.jsonl",
        machine="results/{experiment}/scaling/machine.json",
        ranks=directory("results/{experiment}/scaling/ranks"),
        replicas="results/{experiment}/scaling/replicas.json",
        csv="results/{experiment}/scaling/scaling.csv",
        figure=report(
            "results/{experiment}/scaling/scaling.png",
            caption="../report/scaling.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={"item": "Units per second and processes", "kind": "figure"},
        ),
        figure_svg="results/{experiment}/scaling/scaling.svg",
        parts="results/{experiment}/scaling/step_parts.jsonl",
        parts_figure=report(
            "results/{experiment}/scaling/step_parts.png",
            caption="../report/step_parts.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={"item": "What an update's time goes to", "kind": "figure"},
        ),
        parts_figure_svg="results/{experiment}/scaling/step_parts.svg",
        time_to_accuracy="results/{experiment}/scaling/time_to_accuracy.jsonl",
        manifest="results/{experiment}/scaling/manifest.json",
    log:
        "results/{experiment}/logs/scaling.log",
    benchmark:
        "results/{experiment}/benchmarks/scaling.tsv"
    conda:
        "../envs/environment.yaml"
    threads: 4096
    resources:
        **experiments.resources_to_measure(),
    params:
        launch=lambda wildcards, input: experiments.launch_to_measure(
            wildcards.experiment
        ),
    message:
        "{wildcards.experiment}: times of the all-reduce, and training on other numbers of processes"
    shell:
        "{params.launch} -m ddp_tokens.measure --settings {input.settings} > {log} 2>&1"
