"""Would the unit tests notice a changed operator, number, argument or text? Mutation testing; not a part of CI.

    pip install --editable '.[mutation]'
    python tests/mutation.py                        # all of MODULES
    python tests/mutation.py plan checks.verdict    # these

Each module is mutated in a copy of the project, and only the test file that mirrors it judges its mutants. The reasons
of those that survive are in tests/mutation.md; the exit code is 1 when the list there is not what is found.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
EXPLAINED = PROJECT / "tests" / "mutation.md"
MODULES = [
    "normalization",
    "formulas",
    "window",
    "plan",
    "start_files",
    "generators",
    "checkpoint",
    "checkpoint_files",
    "checks.loss",
    "checks.verdict",
    "checks.tensor_files",
    "checks.gradient_norms",
    "checks.gradient_references",
    "checks.gradient_conditions",
    "checks.gradient_formulas",
    "checks.gradient_terms",
    "checks.gradient_parity",
    "checks.published_criterion",
    "checks.window",
    "checks.zero_window",
    "checks.evaluation",
    "checks.replicas",
    "checks.checkpoints",
    "checks.generators",
    "checks.resume",
    "checks.resume_ranks",
    "checks.resume_diagnosis",
    "checks.environment",
    "checks.environment_needs",
]
COPIED = ("src", "tests", "config", "pyproject.toml")
NEEDED = 0.9
KILLED, TIMED_OUT = (1, 3), (24, -24, 36, 152, 255)  # what mutmut records: exit codes of pytest, ends by time limit
# The fork server imports torch and computes nothing, so no worker inherits threads or a process group.
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = ["{source}"]
pytest_add_cli_args_test_selection = ["{tests}"]
also_copy = ["config"]
process_isolation = "forkserver"
use_git_change_detection = false
"""
# What an optimizer imports: once in the fork server, not for every mutant. Tests that train none would get slower.
TRAINS = re.compile(r"tests\.unit\.training|\(runs\b")
IMPORTED_ONCE = "\nimport torch._dynamo\n"


@dataclass(frozen=True)
class Result:
    module: str
    mutants: int
    killed: int
    timeouts: int
    seconds: float
    survivors: tuple[str, ...]


def source_of(module):
    return f"src/ddp_tokens/{module.replace('.', '/')}.py"


def judge_of(module):
    folder, _, name = module.rpartition(".")
    return "/".join(filter(None, ("tests/unit", folder, f"test_{name}.py")))


def measure(module, workers):
    """Mutate one module in a copy of the project and run its tests on every mutant."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (PROJECT / part).is_dir() else shutil.copy
            copy(PROJECT / part, folder / part)
        source = folder / source_of(module)
        source.write_text(undecorated(with_named_lambdas(source.read_text())))
        if TRAINS.search((folder / judge_of(module)).read_text()):
            with open(folder / "tests" / "conftest.py", "a") as settings:
                settings.write(IMPORTED_ONCE)
        with open(folder / "pyproject.toml", "a") as project:
            project.write(SETTINGS.format(source=source_of(module), tests=judge_of(module)))
        started = time.monotonic()
        run_mutmut(folder, workers)
        mutated = folder / "mutants" / source_of(module)
        codes = json.loads(mutated.with_name(f"{mutated.name}.meta").read_text())["exit_code_by_key"]
        seconds = time.monotonic() - started
        return result_of(module, codes, differences(mutated.read_text()), seconds)


def run_mutmut(folder, workers):
    """One thread per process: a fork copies no other thread, and a pool that waits for one never ends."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(workers)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mutmut ended with exit code {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


class NamedLambdas(ast.NodeTransformer):
    """Puts the name of a function in place of each lambda; `functions` holds their source."""

    def __init__(self, prefix):
        self.prefix, self.functions = prefix, []

    def visit_Lambda(self, node):
        name = f"{self.prefix}_{len(self.functions)}"
        self.functions += [f"def {name}({ast.unparse(node.args)}):\n    return {ast.unparse(node.body)}\n"]
        return ast.Name(name)


def with_named_lambdas(source):
    """A lambda outside functions becomes a function before its statement, which mutmut would pass over otherwise."""
    lines = source.splitlines()
    for index, statement in reversed(list(enumerate(ast.parse(source).body))):
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            named = NamedLambdas(f"lambda_{index}")
            changed = ast.unparse(named.visit(statement))
            if named.functions:
                lines[statement.lineno - 1 : statement.end_lineno] = [*named.functions, changed]
    return "\n".join(lines) + "\n"


def undecorated(source):
    """`@d` above `def f` becomes `f = d(f)` below it: mutmut passes over decorated functions, properties among them."""
    lines = source.splitlines()
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.decorator_list]
    for node in sorted(functions, key=lambda node: node.lineno, reverse=True):
        value = node.name
        for decorator in reversed(node.decorator_list):
            value = f"{ast.unparse(decorator)}({value})"
        lines.insert(node.end_lineno, f"{' ' * node.col_offset}{node.name} = {value}")
        del lines[node.decorator_list[0].lineno - 1 : node.lineno - 1]
    return "\n".join(lines) + "\n"


def result_of(module, codes, difference_of, seconds):
    outcomes = Counter(codes.values())
    survivors = []
    for key, code in codes.items():
        mutant = key.removeprefix(f"ddp_tokens.{module}.")
        if code not in (*KILLED, *TIMED_OUT):
            function = re.sub("^x(_|ǁ)", "", mutant.partition("__mutmut_")[0]).replace("ǁ", ".")
            survivors.append(f"{module}.{function}: {difference_of[mutant]}")
    killed, timeouts = (sum(outcomes[code] for code in kind) for kind in (KILLED, TIMED_OUT))
    return Result(module, len(codes), killed, timeouts, seconds, tuple(survivors))


def differences(mutated):
    """Mutant -> `lines before -> lines after`, from the file in which each mutant is a function of its own."""
    lines = [line.strip() for line in mutated.splitlines()]
    functions = {
        node.name: [line.replace(node.name, "") for line in lines[node.lineno - 1 : node.end_lineno]]
        for node in ast.walk(ast.parse(mutated))
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name
    }
    found = {}
    for name, after in functions.items():
        before = functions[name.partition("__mutmut_")[0] + "__mutmut_orig"]
        changes = [c for c in SequenceMatcher(None, before, after, autojunk=False).get_opcodes() if c[0] != "equal"]
        old = " ".join(line for _, start, end, _, _ in changes for line in before[start:end])
        new = " ".join(line for _, _, _, start, end in changes for line in after[start:end])
        found[name] = f"{old}  ->  {new}"
    return found


def explained():
    """Heading -> the mutants in the code blocks below it, from tests/mutation.md."""
    heading, inside, found = "", False, {"Equivalent": [], "Surviving": []}
    for line in EXPLAINED.read_text().splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside and heading in found:
            found[heading].append(line)
        elif match := re.match("## (.*)", line):
            heading = match[1]
    return found


def row(name, results, equivalent):
    mutants, killed, timeouts = (sum(getattr(r, key) for r in results) for key in ("mutants", "killed", "timeouts"))
    same = sum((Counter(s for r in results for s in r.survivors) & Counter(equivalent)).values())
    share = (killed + timeouts) / max(1, mutants - same)
    left, seconds = mutants - killed - timeouts - same, sum(r.seconds for r in results)
    return (
        f"| {name} | {mutants} | {killed} | {timeouts} | {same} | {left} | {100 * share:.1f} % | {seconds:.0f} |",
        share,
    )


def report(results, known):
    """Print the table and every survivor; return what is wrong with tests/mutation.md."""
    print("| module | mutants | killed | timeouts | equivalent | surviving | killed, without equivalent | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        print(row(result.module, [result], known["Equivalent"])[0])
    total, share = row("all", results, known["Equivalent"])
    print(total)
    of_these = re.compile("|".join(re.escape(result.module) + r"\.([A-Z]\w*\.)?\w+: " for result in results))
    expected = Counter(mutant for mutants in known.values() for mutant in mutants if of_these.match(mutant))
    found = Counter(mutant for result in results for mutant in result.survivors)
    for title, mutants in {
        "Explained in tests/mutation.md": found & expected,
        "Not explained": found - expected,
        "Explained, but killed or gone": expected - found,
    }.items():
        print(f"\n{title}: {mutants.total()}", *mutants.elements(), sep="\n")
    return found != expected or share < NEEDED


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; all when none is given")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.modules) - set(MODULES)):
        parser.error(f"{', '.join(unknown)} not in MODULES of {Path(__file__).name}")
    results = [measure(module, arguments.workers) for module in MODULES if module in (arguments.modules or MODULES)]
    sys.exit(report(results, explained()))


if __name__ == "__main__":
    main()
