# What the machine has, and whether the experiment can run on it. Nothing depends on this: it is made where it is asked for.


rule environment:
    input:
        settings="results/{experiment}/settings/environment.json",
    output:
        document="results/{experiment}/environment.json",
    log:
        "results/{experiment}/logs/environment.log",
    benchmark:
        "results/{experiment}/benchmarks/environment.tsv"
    conda:
        "../envs/environment.yaml"
    threads: lambda wildcards: experiments.threads(wildcards.experiment)
    resources:
        **experiments.resources_of_environment(),
    message:
        "{wildcards.experiment}: what this machine has, and whether the experiment can run on it"
    script:
        "../workflow_scripts/environment.py"
