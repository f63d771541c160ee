# What an all-reduce costs on this machine's CPU, and tokens per second on other numbers of processes; and what that predicts.
# No other target needs these, and what is found differs each time. The measurement asks for more threads than there are
# cores, and so gets them all: nothing else runs beside it. What it trains is thrown away, so no check guards it.


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
        figure_pdf="results/{experiment}/scaling/scaling.pdf",
        parts="results/{experiment}/scaling/step_parts.jsonl",
        parts_figure=report(
            "results/{experiment}/scaling/step_parts.png",
            caption="../report/step_parts.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={"item": "What an update's time goes to", "kind": "figure"},
        ),
        parts_figure_svg="results/{experiment}/scaling/step_parts.svg",
        parts_figure_pdf="results/{experiment}/scaling/step_parts.pdf",
        time_to_accuracy="results/{experiment}/scaling/time_to_accuracy.jsonl",
        all_reduces="results/{experiment}/scaling/all_reduce.jsonl",
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


# What other numbers of ranks should take, up to 1,024, from what was measured on a few.
rule predict:
    input:
        settings="results/{experiment}/settings/predict.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        timings=rules.scaling.output.timings,
        runs=rules.scaling.output.runs,
        machine=rules.scaling.output.machine,
        parts=rules.scaling.output.parts,
        all_reduces=rules.scaling.output.all_reduces,
    output:
        prediction="results/{experiment}/scaling/prediction.json",
        tables="results/{experiment}/scaling/prediction.md",
        figure=report(
            "results/{experiment}/scaling/prediction.png",
            caption="../report/prediction.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={"item": "Predicted time of an update", "kind": "figure"},
        ),
        figure_svg="results/{experiment}/scaling/prediction.svg",
        figure_pdf="results/{experiment}/scaling/prediction.pdf",
    log:
        "results/{experiment}/logs/predict.log",
    benchmark:
        "results/{experiment}/benchmarks/predict.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: predicted time of an update, for up to 1,024 ranks"
    script:
        "../workflow_scripts/predict.py"
