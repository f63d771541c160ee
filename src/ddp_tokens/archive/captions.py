"""The archive's figures, each with a caption that stands alone. A caption is written once: report/*.rst, as in the
report of Snakemake; what it was computed on is added here.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from docutils.core import publish_parts
from docutils.writers.html5_polyglot import Writer
from jinja2 import Environment

from ddp_tokens.archive.contents import Contents, content_of, json_of
from ddp_tokens.archive.layout import CONTROLS, ENVIRONMENT, RESULTS, SCALING, SOURCE
from ddp_tokens.archive.told import joined, plural
from ddp_tokens.config import Experiment

# Nothing of a reader's own docutils.conf, and no file beside the text: the same text gives the same HTML.
RST = {
    "_disable_config": True,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "halt_level": 3,
    "report_level": 3,
}
DEVICES = {"cpu": "the CPU", "cuda": "GPUs"}
KINDS = ("png", "svg", "pdf")
OF_RUN, OF_CONTROLS, MEASURED = "run", "controls", "measured"


@dataclass(frozen=True)
class Figure:
    """`path`: in the archive, without suffix; EXPERIMENT stands for the name. `caption`: report/CAPTION.rst. `of`: what
    it was computed from, which says on how many ranks.
    """

    path: str
    caption: str
    title: str
    of: str = OF_RUN


FIGURES = (
    Figure(f"{RESULTS}/EXPERIMENT/figures/tokens", "tokens", "Supervised units per rank and window"),
    Figure(f"{RESULTS}/EXPERIMENT/figures/gradients", "gradients", "Gradient errors of both formulas"),
    Figure(f"{RESULTS}/EXPERIMENT/figures/resume", "resume", "Loss across the interruption"),
    Figure(f"{RESULTS}/{CONTROLS}/controls", "controls_figure", "Errors of all controls", OF_CONTROLS),
)
OF_SCALING = (
    Figure(f"{SCALING}/scaling", "scaling", "Throughput on other numbers of processes", MEASURED),
    Figure(f"{SCALING}/step_parts", "step_parts", "What the time of an update goes to", MEASURED),
    Figure(f"{SCALING}/prediction", "prediction", "Predicted time of an update", MEASURED),
)


def figures(which: tuple[Figure, ...], contents: Contents, experiment: Experiment) -> list[dict[str, Any]]:
    """Those that are there: title, picture (a data URI), links (kind -> path) and caption, as HTML."""
    found = []
    for figure in which:
        path = figure.path.replace("EXPERIMENT", experiment.name)
        if f"{path}.svg" not in contents:
            continue
        found.append(
            {
                "name": path.rpartition("/")[2],
                "title": figure.title,
                "picture": _data_uri(content_of(contents, f"{path}.svg")),
                "links": {kind.upper(): f"{path}.{kind}" for kind in KINDS if f"{path}.{kind}" in contents},
                "caption": caption(contents, experiment, figure.caption),
                "machine": _where(figure.of, contents, experiment),
            }
        )
    return found


def caption(contents: Contents, experiment: Experiment, name: str) -> str:
    """HTML of report/NAME.rst, which is filled in as Snakemake fills it in."""
    text = content_of(contents, f"{SOURCE}/report/{name}.rst").decode()
    snakemake = SimpleNamespace(
        wildcards=SimpleNamespace(experiment=experiment.name),
        params=SimpleNamespace(caption=experiment.model_dump(mode="json")),
    )
    filled = Environment().from_string(text).render(snakemake=snakemake)
    return str(publish_parts(filled, writer=Writer(), settings_overrides=RST)["body"])


def machine_text(machine: Mapping[str, Any]) -> str:
    """What environment.json tells of a machine, in one phrase."""
    gpus = joined(dict.fromkeys(str(gpu.get("name", "a GPU")) for gpu in machine["gpus"]))
    parts = [machine["cpu"], plural(machine["cores"], "core"), *([gpus] if gpus else [])]
    return f"{', '.join(parts)}, with Python {machine['python']} and torch {torch_version(machine)}"


def torch_version(machine: Mapping[str, Any]) -> str:
    return str(machine["torch"].get("version", "of an unknown version"))


def _where(of: str, contents: Contents, experiment: Experiment) -> str:
    if of == MEASURED:
        machine = json_of(contents, f"{SCALING}/machine.json")
        threads = plural(machine["threads_per_rank"], "thread")
        return (
            f"Measured on {machine['cpu']}, {plural(machine['cores'], 'core')}, with Python {machine['python']} and "
            f"torch {machine['torch']}, over {machine['backend']}, {threads} per process."
        )
    ranks = "one to four ranks on the CPU"
    if of == OF_RUN:
        ranks = f"{plural(experiment.world_size, 'rank')} on {DEVICES[experiment.device]}"
    return f"Computed by {ranks}; machine: {machine_text(json_of(contents, ENVIRONMENT)['machine'])}."


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
