# What the continuous run scores, and the exercise for the reader.


rule evaluate:
    input:
        settings="results/{experiment}/settings/evaluate.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        run=rules.continuous.output.run,
    output:
        evaluation="results/{experiment}/evaluation.json",
    log:
        "results/{experiment}/logs/evaluate.log",
    benchmark:
        "results/{experiment}/benchmarks/evaluate.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: loss and accuracy per token of the continuous run"
    script:
        "../workflow_scripts/evaluate.py"


rule exercise:
    input:
        settings="results/{experiment}/settings/exercise.json",
    output:
        result="results/{experiment}/exercise.json",
    log:
        "results/{experiment}/logs/exercise.log",
    benchmark:
        "results/{experiment}/benchmarks/exercise.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: both means and both gradients, before and after the counts change"
    script:
        "../workflow_scripts/exercise.py"
