# One small file per step: the settings that it may read, and the digests of its source files and of the lock file.
# A job reruns when this file's content changes, whatever else is rerun at the same time.


rule settings:
    output:
        settings="results/{experiment}/settings/{step}.json",
    log:
        "results/{experiment}/logs/settings_{step}.log",
    conda:
        "../envs/environment.yaml"
    params:
        document=lambda wildcards: experiments.settings(
            wildcards.experiment, wildcards.step
        ),
    message:
        "{wildcards.experiment}: settings of {wildcards.step}"
    shell:
        "printf '%s' {params.document:q} > {output.settings} 2> {log}"
