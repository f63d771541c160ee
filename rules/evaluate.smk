# What the continuous run scores, whether that is the mean over all units, and the exercise for the reader.


rule evaluate:
    input:
        settings="results/{experiment}/settings/evaluate.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        initial=rules.reference.output.initial,
        run=rules.continuous.output.run,
    output:
        evaluation="results/{experiment}/evaluation.json",
    log:
        "results/{experiment}/logs/evaluate.log",
    benchmark:
        "results/{experiment}/benchmarks/evaluate.tsv"
    conda:
        "../envs/environment.yaml"
    resources:
        **experiments.resources_of_one_process(),
    message:
        "{wildcards.experiment}: scores of the continuous run, and what its model writes"
    script:
        "../workflow_scripts/evaluate.py"


rule check_evaluation:
    input:
        settings="results/{experiment}/settings/check_evaluation.json",
        evaluation=rules.evaluate.output.evaluation,
        lock=rules.prepare.output.lock,
    output:
        verdicts="results/{experiment}/checks/evaluation.json",
    log:
        "results/{experiment}/logs/check_evaluation.log",
    benchmark:
        "results/{experiment}/benchmarks/check_evaluation.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: as many rows as the split holds, and the score is the mean over all units"
    script:
        "../workflow_scripts/check_evaluation.py"


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
