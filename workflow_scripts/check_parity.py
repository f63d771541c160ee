from pathlib import Path

from ddp_tokens.checks.gradient_conditions import conditions_of
from ddp_tokens.checks.gradient_parity import check_gradient_parity, count_windows
from ddp_tokens.checks.gradient_references import REFERENCES
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.layout import DTYPES
from ddp_tokens.normalization import FORMULAS
from ddp_tokens.script import logged
from ddp_tokens.steps import read_settings

with logged(snakemake.log[0]):
    files = snakemake.input
    settings = read_settings(files.settings)
    verdicts = check_gradient_parity(
        settings.tolerances,
        references={name: Path(files[name]) for name in REFERENCES},
        gradients={(name, dtype): Path(files[f"{name}_{dtype}"]) for name in FORMULAS for dtype in DTYPES},
        counted=count_windows(Path(files.rows), Path(files.lock), Path(files.plan)),
        conditions=conditions_of(settings.model, settings.use_amp, Path(files.initial), Path(files.lock)),
    )
    write_verdicts(snakemake.output.verdicts, "gradient_parity", verdicts)
