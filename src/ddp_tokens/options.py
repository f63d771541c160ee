"""Command lines: `--config` or `--settings`, and one generated flag for every field of the experiment."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_tokens.config import Experiment
from ddp_tokens.config_reading import load_experiment, suggestion
from ddp_tokens.errors import ConfigError, UserError, WorkloadError
from ddp_tokens.layout import Layout
from ddp_tokens.own_work import raised_by_own_work
from ddp_tokens.steps import read_settings, view

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

USER_ERROR = 2


def parse(
    program: str,
    arguments: Sequence[str],
    step: str | Callable[[argparse.Namespace], str],
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    description: str | None = None,
) -> tuple[Experiment, Layout, argparse.Namespace]:
    """The experiment as the step sees it, where its files are, and the command's own arguments.

    `step` may depend on the parsed arguments, as training's does on --continuous and --resume.
    Raises ConfigError for what is wrong with a field, and for an unknown flag.
    """
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False, add_help=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, help="an experiment's YAML file")
    source.add_argument("--settings", type=Path, help="results/EXP/settings/STEP.json, as the rules pass it")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    add_arguments(parser)
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    if wants_help:
        parser.print_help()
        print("\nEvery field of the experiment is a flag too:\n")
    own, rest = (argparse.Namespace(), ["--help"]) if wants_help else parser.parse_known_args(arguments)
    overrides = parse_field_flags(program, rest) if rest else {}
    if own.settings:
        if overrides:
            parser.error(f"--settings holds every field already; {rest[0]} goes with --config")
        experiment = read_settings(own.settings)
    else:
        experiment = view(load_experiment(own.config, overrides), step if isinstance(step, str) else step(own))
    return experiment, Layout(own.results / experiment.name), own


def parse_field_flags(program: str, arguments: Sequence[str]) -> dict[str, object]:
    """The fields that flags such as --world-size 4 or --optimizer.lr 0.1 set, nested like the YAML file."""
    from pydantic_settings import BaseSettings, SettingsError

    class Flags(Experiment, BaseSettings):  # type: ignore[misc]
        __doc__ = Experiment.__doc__

    try:
        return _parsed_flags(Flags, program, arguments)
    except SettingsError as error:
        problem = str(error).removeprefix("error parsing CLI: ")
        unknown = problem.removeprefix("unrecognized arguments: ")
        if unknown != problem:
            name = unknown.split()[0].partition("=")[0].lstrip("-").replace("-", "_")
            problem = f"unknown flag {unknown}{suggestion(name)}"
            if not unknown.startswith("-"):
                problem = f"'{unknown.split()[0]}' belongs to no flag: one like --use-amp or --no-use-amp has no value"
        raise ConfigError(f"{problem}; --help lists every flag") from None


def _parsed_flags(flags: "type[BaseSettings]", program: str, arguments: Sequence[str]) -> dict[str, object]:
    from pydantic_settings import CliSettingsSource

    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
        flags,
        cli_parse_args=[_with_hyphens(argument) for argument in arguments],
        cli_prog_name=program,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
    )
    return source()


def run_as_program(program: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Call `main`; a UserError, a file that cannot be read or written, or what a user's own file raises, becomes one
    sentence and exit code 2.
    """
    try:
        return main(arguments)
    except (Exception, SystemExit) as error:
        told = for_users(error)
        if told is None:
            raise
        rank = os.environ.get("RANK", "0")
        who = program if rank == "0" else f"{program}, rank {rank}"
        sys.stderr.write(f"{theirs(told)}{who}: {sentence(told)}\n")  # in one piece: ranks share the terminal
        sys.stderr.flush()
        return USER_ERROR


def for_users(error: BaseException) -> UserError | OSError | None:
    """What is to be told of it in one sentence; None where it is a mistake of this project."""
    if isinstance(error, UserError):
        return error
    return raised_by_own_work(error) or (error if isinstance(error, OSError) and error.filename is not None else None)


def theirs(error: UserError | OSError) -> str:
    """The traceback of a user's own file, where it is one that has raised."""
    return error.theirs if isinstance(error, WorkloadError) else ""


def sentence(error: UserError | OSError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    what_to_do = [": free some space and start again"] if error.errno in (errno.ENOSPC, errno.EDQUOT) else []
    notes = [f"; {note}" for note in getattr(error, "__notes__", [])]
    return "".join([f"{error.filename}: {error.strerror}", *what_to_do, *notes])


def _with_hyphens(argument: str) -> str:
    """--world_size is --world-size: the YAML file's spelling works too."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("_", "-") + equals + value
