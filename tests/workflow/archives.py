"""An archive of a project that was built, put together by hand."""

from pathlib import Path

import yaml

from ddp_tokens.config_reading import load_experiment
from tests.unit.archive.made import FILES, finished

LEFT_OUT = ("settings", "logs", "benchmarks", "report", "scaling")


def files_of(project: Path, experiment: str = "tiny") -> dict[str, bytes]:
    """What lies below results/ in the archive, and a few other files; not yet what says that it is one.

    Figures are not made as PDF here: a few bytes stand for them.
    """
    folder = project / "results" / experiment
    files = {}
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in below.parts)
        if path.is_file() and not hidden and below.parts[0] not in (*LEFT_OUT, "environment.json", "gate.txt"):
            files[str(path.relative_to(project))] = path.read_bytes()
    settings = load_experiment(project / "config" / f"{experiment}.yaml").model_dump(mode="json")
    if settings["epochs"] is not None:
        del settings["steps"]  # which follows from it
    files[f"results/{experiment}/config.yaml"] = yaml.safe_dump(settings).encode()
    of_others = {name: data for name, data in FILES.items() if not name.startswith("results/") or name.endswith(".pdf")}
    return files | of_others


def archive_of(project: Path, experiment: str = "tiny") -> dict[str, bytes]:
    return finished(files_of(project, experiment), experiment)
