from pathlib import Path

from ddp_tokens import scaling, scaling_figure, scaling_manifest, scaling_rows
from ddp_tokens.checks.replicas import check_measured_replicas
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.files import to_json, write_text
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    files, outputs = snakemake.input, snakemake.output
    experiment = read_settings(files.settings)
    machine = scaling_rows.read_machine(files.machine)
    reduced = scaling.allreduces(scaling_rows.read_timings(files.timings), machine.steps)
    points = scaling.points(scaling_rows.read_runs(files.runs), reduced, machine)
    ranks = [Path(files.ranks) / f"state-rank-{rank}.safetensors" for rank in range(experiment.world_size)]
    replicas = check_measured_replicas(ranks)
    write_verdicts(outputs.replicas, "measured_replicas", [replicas])
    write_text(outputs.csv, scaling.table(points))
    scaling_figure.save_scaling(points, machine.cores, [Path(outputs.figure), Path(outputs.figure_svg)])
    manifest = scaling_manifest.manifest(experiment, machine, points, reduced, replicas)
    write_text(outputs.manifest, to_json(manifest, sort_keys=False))  # a reader meets the lab's fields first
