# The three runs. Nothing trains on an unproven gradient: training reads both verdicts and refuses when one is not as
# expected. They only guard: a check that is edited and run again does not train again.


def guard(run, check):
    """The verdicts of a check, as an `ancient` input. Snakemake does not ask for a job's own reasons to run below a job
    that must run, and does not go through an `ancient` input, so where the run is out of date it is a usual one.
    """

    def verdicts(wildcards):
        path = f"results/{wildcards.experiment}/checks/{check}.json"
        stale = experiments.is_out_of_date(wildcards.experiment, run)
        return path if stale else ancient(path)

    return verdicts


rule interrupt:
    input:
        settings="results/{experiment}/settings/interrupt.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
        check_loss=guard("interrupt", "loss"),
        check_parity=guard("interrupt", "gradient_parity"),
    output:
        run=directory("results/{experiment}/runs/interrupt"),
    log:
        "results/{experiment}/logs/interrupt.log",
    benchmark:
        "results/{experiment}/benchmarks/interrupt.tsv"
    conda:
        "../envs/environment.yaml"
    threads: lambda wildcards: experiments.threads(wildcards.experiment)
    resources:
        gpu=lambda wildcards: experiments.gpus(wildcards.experiment),
    params:
        launch=lambda wildcards, input: experiments.launch(wildcards.experiment),
    message:
        "{wildcards.experiment}: train and stop at the interruption"
    shell:
        "{params.launch} -m ddp_tokens.train --settings {input.settings} > {log} 2>&1"


rule continuous:
    input:
        settings="results/{experiment}/settings/continuous.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
        check_loss=guard("continuous", "loss"),
        check_parity=guard("continuous", "gradient_parity"),
    output:
        run=directory("results/{experiment}/runs/continuous"),
    log:
        "results/{experiment}/logs/continuous.log",
    benchmark:
        "results/{experiment}/benchmarks/continuous.tsv"
    conda:
        "../envs/environment.yaml"
    threads: lambda wildcards: experiments.threads(wildcards.experiment)
    resources:
        gpu=lambda wildcards: experiments.gpus(wildcards.experiment),
    params:
        launch=lambda wildcards, input: experiments.launch(wildcards.experiment),
    message:
        "{wildcards.experiment}: train without interruption"
    shell:
        "{params.launch} -m ddp_tokens.train --settings {input.settings} --continuous > {log} 2>&1"


rule resume:
    input:
        settings="results/{experiment}/settings/resume.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
        interrupted=rules.interrupt.output.run,
        check_loss=guard("resume", "loss"),
        check_parity=guard("resume", "gradient_parity"),
    output:
        run=directory("results/{experiment}/runs/resume"),
    log:
        "results/{experiment}/logs/resume.log",
    benchmark:
        "results/{experiment}/benchmarks/resume.tsv"
    conda:
        "../envs/environment.yaml"
    threads: lambda wildcards: experiments.threads(wildcards.experiment)
    resources:
        gpu=lambda wildcards: experiments.gpus(wildcards.experiment),
    params:
        launch=lambda wildcards, input: experiments.launch(wildcards.experiment),
        checkpoint=lambda wildcards, input: experiments.interrupted_checkpoint(
            wildcards.experiment, input.interrupted
        ),
    message:
        "{wildcards.experiment}: train on from the interruption"
    shell:
        "{params.launch} -m ddp_tokens.train --settings {input.settings} --resume {params.checkpoint} > {log} 2>&1"
