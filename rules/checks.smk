# Compare what the runs left. A check that fails still writes its verdict; only the gate, at the end, fails.


rule check_resume:
    input:
        settings="results/{experiment}/settings/check_resume.json",
        interrupted=rules.interrupt.output.run,
        continuous=rules.continuous.output.run,
        resumed=rules.resume.output.run,
    output:
        verdicts="results/{experiment}/checks/resume.json",
    log:
        "results/{experiment}/logs/check_resume.log",
    benchmark:
        "results/{experiment}/benchmarks/check_resume.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: the resumed run against the continuous one, bit for bit"
    script:
        "../workflow_scripts/check_resume.py"


rule check_replicas:
    input:
        settings="results/{experiment}/settings/check_replicas.json",
        interrupt=rules.interrupt.output.run,
        continuous=rules.continuous.output.run,
        resume=rules.resume.output.run,
    output:
        verdicts="results/{experiment}/checks/replicas.json",
    log:
        "results/{experiment}/logs/check_replicas.log",
    benchmark:
        "results/{experiment}/benchmarks/check_replicas.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: all ranks hold the same parameters"
    script:
        "../workflow_scripts/check_replicas.py"


rule check_checkpoints:
    input:
        settings="results/{experiment}/settings/check_checkpoints.json",
        interrupt=rules.interrupt.output.run,
        continuous=rules.continuous.output.run,
        resume=rules.resume.output.run,
    output:
        verdicts="results/{experiment}/checks/checkpoints.json",
    log:
        "results/{experiment}/logs/check_checkpoints.log",
    benchmark:
        "results/{experiment}/benchmarks/check_checkpoints.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: every checkpoint is whole"
    script:
        "../workflow_scripts/check_checkpoints.py"
