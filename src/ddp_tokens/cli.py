"""The steps by hand: python -m ddp_tokens.cli COMMAND --config config/minimum.yaml

Commands that start ranks are modules of their own: torchrun ... -m ddp_tokens.gradients and -m ddp_tokens.train.
Each command reads and writes where the rules do, below results/NAME, unless --results says otherwise.
"""

import argparse
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tabulate import tabulate

from ddp_tokens.checks.verdict import Verdict, write_verdicts
from ddp_tokens.config import Experiment
from ddp_tokens.files import write_json, write_text
from ddp_tokens.judging import JUDGES
from ddp_tokens.layout import RUNS, Layout, all_checkpoints_in
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.sources import PACKAGE

PROGRAM = "ddp_tokens.cli"
UNEXPECTED = 1


def prepare(experiment: Experiment, at: Layout) -> int:
    """corpus, lock and plan"""
    from ddp_tokens.prepare import prepare

    prepare(experiment, at.rows, at.lock, at.plan)
    return _wrote(at.rows, at.lock, at.plan)


def reference(experiment: Experiment, at: Layout) -> int:
    """initial weights and reference gradients, in one process"""
    from ddp_tokens.checks.gradient_references import REFERENCES
    from ddp_tokens.reference import write_references

    write_references(experiment, at)
    return _wrote(at.initial, *(at.reference(name) for name in REFERENCES))


def check_loss(experiment: Experiment, at: Layout) -> int:
    """the arithmetic of the denominator"""
    return _judge("loss", experiment, at)


def check_parity(experiment: Experiment, at: Layout) -> int:
    """the distributed gradients against the reference; needs reference and ddp_tokens.gradients"""
    return _judge("gradient_parity", experiment, at)


def check_window(experiment: Experiment, at: Layout) -> int:
    """one reduction per window, after its last microbatch; needs ddp_tokens.gradients"""
    return _judge("window", experiment, at)


def check_zero_window(experiment: Experiment, at: Layout) -> int:
    """an empty window is refused by every rank; needs ddp_tokens.gradients"""
    return _judge("zero_window", experiment, at)


def check_resume(experiment: Experiment, at: Layout) -> int:
    """the resumed run against the continuous one; needs all three runs"""
    return _judge("resume", experiment, at)


def check_replicas(experiment: Experiment, at: Layout) -> int:
    """all ranks hold the same parameters; needs all three runs"""
    return _judge("replicas", experiment, at)


def check_checkpoints(experiment: Experiment, at: Layout) -> int:
    """every checkpoint below results/NAME/runs, also of unfinished runs: step, size, age, and whether it is whole"""
    from ddp_tokens.checks.checkpoints import check_checkpoints
    from ddp_tokens.errors import CheckpointError
    from ddp_tokens.listing import COLUMNS, listed

    directories = all_checkpoints_in(at.root / "runs")
    if not directories:
        raise CheckpointError(f"{at.root / 'runs'} holds no checkpoint: train first")
    verdicts = check_checkpoints(directories)
    print(tabulate(listed(directories, verdicts), headers=COLUMNS, maxcolwidths=[*[None] * 5, 60]))
    of_runs = [verdict for run in RUNS for verdict in verdicts if verdict.case.startswith(f"{run}/")]
    if of_runs:
        write_verdicts(at.check("checkpoints"), "checkpoints", of_runs)
        _wrote(at.check("checkpoints"))
    return 0 if all(verdict.as_expected for verdict in verdicts) else UNEXPECTED


def control_table(experiment: Experiment, at: Layout) -> int:
    """every control and right variant, from what `snakemake controls` left; --config config/controls.yaml"""
    from ddp_tokens.controls import table

    judged = table.judge_all(experiment, at)
    write_json(at.root / "controls.json", table.document(judged))
    write_text(at.root / "controls.csv", table.csv(judged))
    problems = table.problems(judged)
    print("\n".join([table.headline(judged), *problems]))
    _wrote(at.root / "controls.json", at.root / "controls.csv")
    return UNEXPECTED if problems else 0


def evaluate(experiment: Experiment, at: Layout) -> int:
    """scores of the continuous run's last checkpoint, and what its model writes where it can"""
    from ddp_tokens.evaluation import evaluate_checkpoint

    checkpoint = at.checkpoint("continuous", experiment.steps)
    scores = evaluate_checkpoint(experiment, at.rows, at.lock, checkpoint, at.initial)
    write_json(at.evaluation, scores)
    splits = {split: score for split, score in scores.items() if isinstance(score, dict)}
    rows = [{"split": split} | score | {"batches": len(score["batches"])} for split, score in splits.items()]
    print(tabulate(rows, headers="keys"))
    if "samples" in scores:
        beside = list(zip(scores["samples_at_start"], scores["samples"], strict=True))
        headers = ["before training, it writes", "after training"]
        print("\n" + tabulate(beside, headers=headers, maxcolwidths=[50, 50], disable_numparse=True))
    return _wrote(at.evaluation)


def check_evaluation(experiment: Experiment, at: Layout) -> int:
    """rows and units scored are those of the split, and the score is the mean over all units; needs evaluate"""
    return _judge("evaluation", experiment, at)


def scaling(experiment: Experiment, at: Layout) -> int:
    """table, figure and manifest of the scaling; needs ddp_tokens.measure"""
    from ddp_tokens.scaling_results import write_results

    replicas = write_results(experiment, at)
    _wrote(*(at.scaling / name for name in ("replicas.json", "scaling.csv", "scaling.png", "manifest.json")))
    return 0 if replicas.as_expected else UNEXPECTED


def predict(experiment: Experiment, at: Layout) -> int:
    """time of an update on up to 1,024 ranks, from what ddp_tokens.measure left: tables and figure"""
    from ddp_tokens.prediction_results import write_prediction

    write_prediction(experiment, at)  # which logs the tables
    return _wrote(*(at.prediction.with_suffix(suffix) for suffix in (".json", ".md", ".png", ".svg", ".pdf")))


def exercise(experiment: Experiment, at: Layout) -> int:
    """both means and both gradients, before and after the counts change"""
    from ddp_tokens.exercise import as_text, work_out

    result = work_out(experiment.exercise)
    write_json(at.exercise, result)
    print(as_text(result))
    return _wrote(at.exercise)


COMMANDS: dict[str, Callable[[Experiment, Layout], int]] = {
    "prepare": prepare,
    "reference": reference,
    "check-loss": check_loss,
    "check-parity": check_parity,
    "check-window": check_window,
    "check-zero-window": check_zero_window,
    "check-resume": check_resume,
    "check-replicas": check_replicas,
    "check-checkpoints": check_checkpoints,
    "control-table": control_table,
    "evaluate": evaluate,
    "check-evaluation": check_evaluation,
    "scaling": scaling,
    "predict": predict,
    "exercise": exercise,
}

# Not steps of an experiment: a module with main(program, arguments) -> exit code, imported when it is called.
TOOLS: dict[str, tuple[str, str]] = {
    "acquire": ("ddp_tokens.acquire", "what experiments read from outside the project, and that they need no download"),
    "check-environment": (
        "ddp_tokens.check_environment",
        "what this machine has, and whether the experiment can run here",
    ),
    "new": ("ddp_tokens.new_experiment", "an experiment, a workload and a test of your own, which work as written"),
    "config-docs": ("ddp_tokens.config_docs", "every field of an experiment, as Markdown"),
    "verify": (
        "ddp_tokens.archive.verify",
        "whether an archive is whole, and every verdict in it is reached again from its files",
    ),
    "rebuild": (
        "ddp_tokens.archive.rebuild",
        "builds an archived experiment again, from the archived source, and compares",
    ),
    "compare": ("ddp_tokens.archive.compare", "what differs between two archives"),
    "table": ("ddp_tokens.archive.tables", "the verdicts of an archive as LaTeX, Markdown or csv, for a paper"),
    "clean": ("ddp_tokens.clean", "deletes what was made: checkpoints, everything below results/, caches"),
}


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger(PACKAGE).setLevel(logging.INFO)  # not of every library
    texts = {name: function.__doc__ for name, function in COMMANDS.items()}
    texts |= {name: text for name, (_, text) in TOOLS.items()}
    commands = "\n".join(f"  {name:20}{text}" for name, text in texts.items())
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=f"{__doc__}\ncommands:\n{commands}\n",
        epilog="COMMAND --help shows its options and every field of the config",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(texts), metavar="COMMAND")
    command = parser.parse_args(arguments[:1]).command
    program, rest = f"{PROGRAM} {command}", arguments[1:]
    if command in TOOLS:
        module, _ = TOOLS[command]
        return int(importlib.import_module(module).main(program, rest))
    function = COMMANDS[command]
    experiment, at, _ = parse(program, rest, command.replace("-", "_"), description=function.__doc__)
    return function(experiment, at)


def _judge(check: str, experiment: Experiment, at: Layout) -> int:
    verdicts = JUDGES[check](experiment, at)
    write_verdicts(at.check(check), check, verdicts)
    rows = [[verdict.case, verdict.expected, verdict.outcome, verdict.first_difference or ""] for verdict in verdicts]
    print(
        tabulate(rows, headers=["case", "expected", "outcome", "first difference"], maxcolwidths=[None, None, None, 60])
    )
    _tell_diagnoses([verdict for verdict in verdicts if not verdict.as_expected])
    _wrote(at.check(check))
    return 0 if all(verdict.as_expected for verdict in verdicts) else UNEXPECTED


def _tell_diagnoses(unexpected: Sequence[Verdict]) -> None:
    """Which known mistakes explain what is not as expected, a line for each case that one explains."""
    from ddp_tokens.checks.meanings import meaning_of

    for verdict in unexpected:
        if verdict.diagnosis:
            print(f"{verdict.case}: {' or '.join(verdict.diagnosis)} ({meaning_of(verdict.diagnosis)})")
    if unexpected:
        print("What to do: docs/troubleshooting.md")


def _wrote(*paths: Path) -> int:
    print("\n".join(f"wrote {path}" for path in paths))
    return 0


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
