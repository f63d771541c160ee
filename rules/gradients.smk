# What the gradient should be (one process), what DDP makes of it (all ranks), and whether they agree.


rule reference:
    input:
        settings="results/{experiment}/settings/reference.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
    output:
        initial="results/{experiment}/initial.safetensors",
        native="results/{experiment}/reference/native.safetensors",
        float64="results/{experiment}/reference/float64.safetensors",
        parts="results/{experiment}/reference/parts.safetensors",
    log:
        "results/{experiment}/logs/reference.log",
    benchmark:
        "results/{experiment}/benchmarks/reference.tsv"
    conda:
        "../envs/environment.yaml"
    resources:
        **experiments.resources_of_one_process(),
    message:
        "{wildcards.experiment}: initial weights and reference gradients, one process"
    script:
        "../workflow_scripts/reference.py"


rule check_loss:
    input:
        settings="results/{experiment}/settings/check_loss.json",
    output:
        verdicts="results/{experiment}/checks/loss.json",
    log:
        "results/{experiment}/logs/check_loss.log",
    benchmark:
        "results/{experiment}/benchmarks/check_loss.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: the arithmetic of the denominator"
    script:
        "../workflow_scripts/check_loss.py"


rule gradients:
    input:
        settings="results/{experiment}/settings/gradients.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
    output:
        token_mean_native="results/{experiment}/gradients/token_mean.native.safetensors",
        token_mean_float64="results/{experiment}/gradients/token_mean.float64.safetensors",
        mean_of_means_native="results/{experiment}/gradients/mean_of_means.native.safetensors",
        mean_of_means_float64="results/{experiment}/gradients/mean_of_means.float64.safetensors",
        window=directory("results/{experiment}/window"),
        zero_window=directory("results/{experiment}/zero_window"),
    log:
        "results/{experiment}/logs/gradients.log",
    benchmark:
        "results/{experiment}/benchmarks/gradients.tsv"
    conda:
        "../envs/environment.yaml"
    threads: lambda wildcards: experiments.threads(wildcards.experiment)
    resources:
        **experiments.resources_of_ranks(),
    params:
        launch=lambda wildcards, input: experiments.launch(wildcards.experiment),
    message:
        "{wildcards.experiment}: gradients of all ranks, for each formula and dtype"
    shell:
        "{params.launch} -m ddp_tokens.gradients --settings {input.settings} > {log} 2>&1"


rule check_parity:
    input:
        settings="results/{experiment}/settings/check_parity.json",
        rows=rules.prepare.output.rows,
        lock=rules.prepare.output.lock,
        plan=rules.prepare.output.plan,
        initial=rules.reference.output.initial,
        native=rules.reference.output.native,
        float64=rules.reference.output.float64,
        parts=rules.reference.output.parts,
        token_mean_native=rules.gradients.output.token_mean_native,
        token_mean_float64=rules.gradients.output.token_mean_float64,
        mean_of_means_native=rules.gradients.output.mean_of_means_native,
        mean_of_means_float64=rules.gradients.output.mean_of_means_float64,
    output:
        verdicts="results/{experiment}/checks/gradient_parity.json",
    log:
        "results/{experiment}/logs/check_parity.log",
    benchmark:
        "results/{experiment}/benchmarks/check_parity.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: the distributed gradient against the reference"
    script:
        "../workflow_scripts/check_parity.py"


rule check_window:
    input:
        settings="results/{experiment}/settings/check_window.json",
        traces=rules.gradients.output.window,
    output:
        verdicts="results/{experiment}/checks/window.json",
    log:
        "results/{experiment}/logs/check_window.log",
    benchmark:
        "results/{experiment}/benchmarks/check_window.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: one reduction per window, after its last microbatch"
    script:
        "../workflow_scripts/check_window.py"


rule check_zero_window:
    input:
        settings="results/{experiment}/settings/check_zero_window.json",
        messages=rules.gradients.output.zero_window,
    output:
        verdicts="results/{experiment}/checks/zero_window.json",
    log:
        "results/{experiment}/logs/check_zero_window.log",
    benchmark:
        "results/{experiment}/benchmarks/check_zero_window.tsv"
    conda:
        "../envs/environment.yaml"
    message:
        "{wildcards.experiment}: an empty window is refused by every rank"
    script:
        "../workflow_scripts/check_zero_window.py"
