"""What `make` runs: the whole workflow, its report, and the verdicts and controls on the terminal."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from tabulate import tabulate

from ddp_tokens.files import read_json
from ddp_tokens.layout import Layout
from ddp_tokens.options import run_as_program

RESULTS = Path("results")
CONTROLS = RESULTS / "controls"
REPORT = RESULTS / "report.zip"
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Arguments go to Snakemake. The report is made whether or not the gate is content."""
    code = _snakemake("--cores", "all", "--keep-going", *arguments)
    if code and not _all_but_the_gate_is_done():
        print("\nThe build failed, for the reason above. Verdicts of an earlier build are not shown.")
        return code
    layouts = [Layout(RESULTS / name) for name in yaml.safe_load(Path("config/config.yaml").read_text())["experiments"]]
    if _outdated(layouts):
        code = _snakemake("report_items", "--report", str(REPORT), *arguments) or code
    for at in layouts:
        print(verdict_table(at))
    print(controls_text(CONTROLS))
    print(f"\nReport: {REPORT} (unpack it and open report/report.html)")
    return code


def _all_but_the_gate_is_done() -> bool:
    command = ["snakemake", "report_items", "--dry-run"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0 and "Nothing to be done" in done.stdout


def verdict_table(at: Layout) -> str:
    columns = ("check", "case", "expected", "outcome")
    verdicts = read_json(at.summary)["verdicts"]
    rows = [[verdict[column] for column in columns] for verdict in verdicts]
    unexpected = sum(not verdict["as_expected"] for verdict in verdicts)
    count = f"{unexpected} of {len(rows)} are NOT" if unexpected else f"all {len(rows)} are"
    return f"\n{at.root}\n\n{tabulate(rows, headers=columns)}\n\nVerdicts: {count} as expected"


def controls_text(at: Path) -> str:
    """The headline of controls.json, and a line for each variant that is not judged as expected."""
    found = read_json(at / "controls.json")
    problems = "".join(f"\n  NOT as expected: {problem}" for problem in found["problems"])
    return f"\n{at}\n\nControls: {found['headline']}{problems}"


def _outdated(layouts: Sequence[Layout]) -> bool:
    """Snakemake does not know of its report as a file: compare times with what the report shows."""
    shown = [path for at in layouts for folder in (at.figures, at.report) for path in folder.glob("*")]
    shown += CONTROLS.glob("controls.*")
    return not REPORT.is_file() or any(path.stat().st_mtime > REPORT.stat().st_mtime for path in shown)


def _snakemake(*arguments: str) -> int:
    """Ctrl-C reaches Snakemake too, which stops its jobs: wait for it."""
    with subprocess.Popen(["snakemake", *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(run_as_program("ddp_tokens.build", main, sys.argv[1:]))
