"""What `make` runs: the whole workflow, its report, and the verdicts and controls on the terminal."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from tabulate import tabulate

from ddp_tokens.checks.verdict import INCONCLUSIVE
from ddp_tokens.files import read_json
from ddp_tokens.layout import Layout
from ddp_tokens.options import run_as_program

RESULTS = Path("results")
CONTROLS, AUDIT = RESULTS / "controls", RESULTS / "audit"
REPORT = RESULTS / "report.zip"
INTERRUPTED = 130
NOT_BUILT = "\n{root}\n\nNot built, for the reason above; what was judged before that lies in {root}/checks."


def main(arguments: Sequence[str]) -> int:
    """Arguments go to Snakemake. The report shows all that is built, whether or not a gate is content."""
    code = _snakemake("--cores", "all", "--keep-going", *arguments)
    names = yaml.safe_load(Path("config/config.yaml").read_text())["experiments"]
    targets = {
        RESULTS / name: [f"{RESULTS / name}/summary.json", f"{RESULTS / name}/figures/tokens.png"] for name in names
    }
    targets[CONTROLS] = [f"{CONTROLS}/controls.csv"]
    audited = [f"{AUDIT}/trainers.json"]  # needs packages that nothing else needs: shown, but not built
    if Path(audited[0]).is_file() and _is_built(audited, arguments):
        targets[AUDIT] = audited
    built = [root for root in targets if not code or _is_built(targets[root], arguments)]
    if not built:
        print("\nThe build failed, for the reason above. Verdicts of an earlier build are not shown.")
        return code
    if _outdated(built):
        shown = [target for root in built for target in targets[root]]
        code = _snakemake(*shown, "--report", str(REPORT), *arguments) or code
    for root in targets:
        print(_text_of(root) if root in built else NOT_BUILT.format(root=root))
    print(f"\nReport: {REPORT} (unpack it and open report/report.html)")
    return code


def _is_built(targets: Sequence[str], arguments: Sequence[str]) -> bool:
    command = ["snakemake", *targets, "--dry-run", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0 and "Nothing to be done" in done.stdout


def _text_of(root: Path) -> str:
    if root == AUDIT:
        return told_in_one(root / "trainers.json", "Trainers")
    return told_in_one(root / "controls.json", "Controls") if root == CONTROLS else verdict_table(Layout(root))


def verdict_table(at: Layout) -> str:
    columns = ("check", "case", "expected", "outcome")
    verdicts = read_json(at.summary)["verdicts"]
    rows = [[verdict[column] for column in columns] for verdict in verdicts]
    unexpected = sum(not verdict["as_expected"] for verdict in verdicts)
    count = f"{unexpected} of {len(rows)} are NOT" if unexpected else f"all {len(rows)} are"
    undecided = sum(verdict["outcome"] == INCONCLUSIVE for verdict in verdicts)
    told = f"; {undecided} inconclusive, where these rows cannot tell" if undecided else ""
    return f"\n{at.root}\n\n{tabulate(rows, headers=columns)}\n\nVerdicts: {count} as expected{told}"


def told_in_one(path: Path, what: str) -> str:
    """The headline of a table of verdicts, and a line for each that is not as expected."""
    found = read_json(path)
    problems = "".join(f"\n  NOT as expected: {problem}" for problem in found["problems"])
    return f"\n{path.parent}\n\n{what}: {found['headline']}{problems}"


def _outdated(roots: Sequence[Path]) -> bool:
    """Snakemake does not know of its report as a file: compare times with what the report shows."""
    shown = [
        path
        for root in roots
        for pattern in ("figures/*", "report/*", "controls.*", "trainers.*")
        for path in root.glob(pattern)
    ]
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
