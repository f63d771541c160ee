from pathlib import Path

from ddp_tokens.figures import save_gradients, save_resume, save_tokens
from ddp_tokens.layout import RUNS
from ddp_tokens.normalization import FORMULAS
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings


def outputs(name):
    return [Path(snakemake.output[kind]) for kind in (name, f"{name}_svg", f"{name}_pdf")]


with logged(snakemake.log[0]):
    files = snakemake.input
    experiment = read_settings(files.settings)
    save_tokens(Path(files.continuous), outputs("tokens"))
    gradients = {formula: Path(files[formula]) for formula in FORMULAS}
    save_gradients(experiment.tolerances.published, Path(files.reference), gradients, outputs("gradients"))
    save_resume(experiment.interrupt_at, {run: Path(files[run]) for run in RUNS}, outputs("resume"))
