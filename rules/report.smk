# What a person looks at. `snakemake --report results/report.zip` collects what is marked report(...).
# The gate comes last and alone fails when an outcome is not the expected one.


rule figure:
    input:
        settings="results/{experiment}/settings/figure.json",
        reference=rules.reference.output.native,
        token_mean=rules.gradients.output.token_mean_native,
        mean_of_means=rules.gradients.output.mean_of_means_native,
        interrupt=rules.interrupt.output.run,
        continuous=rules.continuous.output.run,
        resume=rules.resume.output.run,
    output:
        tokens=report(
            "results/{experiment}/figures/tokens.png",
            caption="../report/tokens.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={"item": "Units per rank and window", "kind": "figure"},
        ),
        gradients=report(
            "results/{experiment}/figures/gradients.png",
            caption="../report/gradients.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={"item": "Gradient error of both formulas", "kind": "figure"},
        ),
        resume=report(
            "results/{experiment}/figures/resume.png",
            caption="../report/resume.rst",
            category="{experiment}",
            subcategory="3 Figures",
            labels={
                "item": "Loss across the interruption",
                "kind": "figure",
            },
        ),
        tokens_svg="results/{experiment}/figures/tokens.svg",
        tokens_pdf="results/{experiment}/figures/tokens.pdf",
        gradients_svg="results/{experiment}/figures/gradients.svg",
        gradients_pdf="results/{experiment}/figures/gradients.pdf",
        resume_svg="results/{experiment}/figures/resume.svg",
        resume_pdf="results/{experiment}/figures/resume.pdf",
    log:
        "results/{experiment}/logs/figure.log",
    benchmark:
        "results/{experiment}/benchmarks/figure.tsv"
    conda:
        "../envs/environment.yaml"
    params:
        caption=lambda wildcards, input: experiments.get(
            wildcards.experiment
        ).model_dump(
            mode="json",
            include={"steps", "interrupt_at", "world_size", "sharding", "tolerances"},
        ),
    message:
        "{wildcards.experiment}: figures"
    script:
        "../workflow_scripts/figure.py"


rule summary:
    input:
        settings="results/{experiment}/settings/summary.json",
        checks=[
            rules.check_loss.output.verdicts,
            rules.check_parity.output.verdicts,
            rules.check_window.output.verdicts,
            rules.check_zero_window.output.verdicts,
            rules.check_resume.output.verdicts,
            rules.check_replicas.output.verdicts,
            rules.check_checkpoints.output.verdicts,
            rules.check_evaluation.output.verdicts,
        ],
        evaluation=rules.evaluate.output.evaluation,
        made=[
            *rules.prepare.output,
            *rules.reference.output,
            *rules.gradients.output,
            *rules.interrupt.output,
            *rules.continuous.output,
            *rules.resume.output,
        ],
        templates=expand(
            "src/ddp_tokens/templates/{page}.html",
            page=[
                "page",
                "marks",
                "verdicts",
                "scores",
                "config",
                "versions",
                "profile",
            ],
        ),
    output:
        csv="results/{experiment}/summary.csv",
        json="results/{experiment}/summary.json",
        verdicts=report(
            "results/{experiment}/report/verdicts.html",
            caption="../report/verdicts.rst",
            category="{experiment}",
            subcategory="1 Verdicts",
            labels={"item": "Verdict table", "kind": "table"},
        ),
        scores=report(
            "results/{experiment}/report/scores.html",
            caption="../report/scores.rst",
            category="{experiment}",
            subcategory="2 Scores",
            labels={"item": "Scores", "kind": "table"},
        ),
        config=report(
            "results/{experiment}/report/config.html",
            caption="../report/config.rst",
            category="{experiment}",
            subcategory="4 How it was made",
            labels={"item": "Resolved config", "kind": "table"},
        ),
        versions=report(
            "results/{experiment}/report/versions.html",
            caption="../report/versions.rst",
            category="{experiment}",
            subcategory="4 How it was made",
            labels={"item": "Versions", "kind": "table"},
        ),
        profile=report(
            "results/{experiment}/report/profile.html",
            caption="../report/profile.rst",
            category="{experiment}",
            subcategory="4 How it was made",
            labels={"item": "Profile", "kind": "table"},
        ),
    log:
        "results/{experiment}/logs/summary.log",
    benchmark:
        "results/{experiment}/benchmarks/summary.tsv"
    conda:
        "../envs/environment.yaml"
    params:
        caption=lambda wildcards, input: experiments.get(
            wildcards.experiment
        ).model_dump(
            mode="json",
            include={"steps", "tolerances", "workload", "corpus", "model", "use_amp"},
        ),
    message:
        "{wildcards.experiment}: all verdicts in one table"
    script:
        "../workflow_scripts/summary.py"


rule gate:
    input:
        settings="results/{experiment}/settings/gate.json",
        summary=rules.summary.output.json,
        figures=rules.figure.output,
    output:
        gate="results/{experiment}/gate.txt",
    log:
        "results/{experiment}/logs/gate.log",
    benchmark:
        "results/{experiment}/benchmarks/gate.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: is every outcome the expected one?"
    script:
        "../workflow_scripts/gate.py"
