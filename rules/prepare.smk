# The corpus, locked, and the plan: who computes which rows when.


rule prepare:
    input:
        settings="results/{experiment}/settings/prepare.json",
        source=lambda wildcards: experiments.source_of_rows(wildcards.experiment),
    output:
        rows="results/{experiment}/corpus/rows.jsonl",
        lock="results/{experiment}/corpus/lock.json",
        plan="results/{experiment}/plan.json",
    log:
        "results/{experiment}/logs/prepare.log",
    benchmark:
        "results/{experiment}/benchmarks/prepare.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: corpus and plan"
    script:
        "../workflow_scripts/prepare.py"
