"""Three ratios: a full rebuild of `minimum` against the 200 updates in it, the controls against that rebuild, and a dry
run with nothing to do against an empty workflow.

python -m benchmarks.rebuild [--repeat 3]

Both sides of each ratio are timed in turn, in a temporary copy of the project.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
COPIED = ("Snakefile", "rules", "workflow_scripts", "src", "config", "report", "envs", "profiles", "benchmarks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        project.mkdir()
        for name in COPIED:
            source = PROJECT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, project / name)
        rebuilds, updates, controls = [], [], []
        for _ in range(repeat):
            shutil.rmtree(project / "results", ignore_errors=True)
            rebuilds.append(seconds(project, "snakemake", "--cores", "2", "results/minimum/gate.txt"))
            updates.append(updates_alone(project))
            controls.append(seconds(project, "snakemake", "--cores", "2", "controls"))
        show("rebuild of minimum", rebuilds, "200 updates alone", updates)
        show("controls", controls, "rebuild of minimum", rebuilds)
        run(project, "snakemake", "--cores", "2")
        rules = number_of_rules(project)
        empty = empty_workflow(Path(folder) / "empty", rules)
        ours, echo = [], []
        for _ in range(2 * repeat + 1):
            ours.append(seconds(project, "snakemake", "-n"))
            echo.append(seconds(empty, "snakemake", "-n"))
        show("dry run, nothing to do", ours, f"{rules} rules that only echo", echo)


def seconds(folder: Path, *command: str) -> float:
    start = time.perf_counter()
    run(folder, *command)
    return time.perf_counter() - start


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def updates_alone(project: Path) -> float:
    """Seconds of 200 updates without any launch, as rank 0 measures them."""
    command = ("ddp_tokens.launch", "--nproc-per-node=2", "-m", "benchmarks.updates", "--config", "config/minimum.yaml")
    return float(run(project, *command).split()[-1])


def number_of_rules(project: Path) -> int:
    return len(run(project, "snakemake", "--list-rules").split())


def empty_workflow(folder: Path, rules: int) -> Path:
    """As many rules, in a chain, each with one input and one output, already built."""
    folder.mkdir()
    chain = "\n".join(
        f'rule r{index}:\n    input: "{index - 1}"\n    output: "{index}"\n    shell: "echo > {{output}}"'
        for index in range(1, rules)
    )
    (folder / "Snakefile").write_text(f'rule all:\n    input: "{rules - 1}"\n{chain}\n')
    (folder / "0").touch()
    run(folder, "snakemake", "--cores", "2")
    return folder


def show(name: str, ours: list[float], other_name: str, other: list[float]) -> None:
    ratio = statistics.median(ours) / statistics.median(other)
    print(f"{name}: {statistics.median(ours):.2f} s ({min(ours):.2f} to {max(ours):.2f})")
    print(f"{other_name}: {statistics.median(other):.2f} s ({min(other):.2f} to {max(other):.2f})")
    print(f"ratio of the medians: {ratio:.2f}\n", flush=True)


if __name__ == "__main__":
    main()
