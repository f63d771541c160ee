# One small file per step: the settings that it may read, and the digests of its source files and of the lock file.
# A job reruns when this file's content changes, whatever else is rerun at the same time.


rule settings:
    input:
        settings=lambda wildcards: experiments.settings_file(
            wildcards.experiment, wildcards.step
        ),
    output:
        settings="results/{experiment}/settings/{step}.json",
    log:
        "results/{experiment}/logs/settings_{step}.log",
    wildcard_constraints:
        experiment=r"[A-Za-z0-9][A-Za-z0-9_.-]*",
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: settings of {wildcards.step}"
    shell:
        "cp {input.settings} {output.settings} 2> {log}"
