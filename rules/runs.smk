# The three runs. Nothing trains on an unproven gradient: training reads both verdicts and refuses when one is not as
# expected. They only guard: a check that is edited and run again does not train again.


rule interrupt:
    input:
        settings="results/{experiment}/settings/interrupt.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
        check_loss=experiments.guard("interrupt", "loss", ancient),
        check_parity=experiments.guard("interrupt", "gradient_parity", ancient),
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
        **experiments.resources_of_ranks(),
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
        check_loss=experiments.guard("continuous", "loss", ancient),
        check_parity=experiments.guard("continuous", "gradient_parity", ancient),
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
        **experiments.resources_of_ranks(),
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
        check_loss=experiments.guard("resume", "loss", ancient),
        check_parity=experiments.guard("resume", "gradient_parity", ancient),
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
        **experiments.resources_of_ranks(),
    params:
        launch=lambda wildcards, input: experiments.launch(wildcards.experiment),
        checkpoint=lambda wildcards, input: experiments.interrupted_checkpoint(
            wildcards.experiment, input.interrupted
        ),
    message:
        "{wildcards.experiment}: train on from the interruption"
    shell:
        "{params.launch} -m ddp_tokens.train --settings {input.settings} --resume {params.checkpoint} > {log} 2>&1"
