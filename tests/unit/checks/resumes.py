"""Three runs as conftest.py makes them: damaged on purpose, sealed again, and judged."""

import json

import numpy
from safetensors.numpy import load_file, save_file

from ddp_tokens.checkpoint_files import make_manifest
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.files import write_json

STEPS = {"interrupt": 2, "continuous": 4, "resume": 4}


def checkpoint(runs, run):
    return runs / run / f"step-{STEPS[run]:04d}"


def verdicts_of(runs):
    found = check_resume(checkpoint(runs, "interrupt"), checkpoint(runs, "continuous"), checkpoint(runs, "resume"))
    return {verdict.case: verdict for verdict in found}


def failures(runs):
    return {name: verdict for name, verdict in verdicts_of(runs).items() if verdict.outcome == "fail"}


def only_failure(runs, case):
    """The verdict on `case`, which alone must fail."""
    verdicts = failures(runs)
    assert list(verdicts) == [case]
    return verdicts[case]


def seal(directory, world_size=1):
    """Make the manifest fit what the directory now holds."""
    write_json(directory / "manifest.json", make_manifest(directory, int(directory.name[-4:]), world_size))


def edit_tensors(directory, file, edit):
    tensors = load_file(directory / file)
    edit(tensors)
    save_file(tensors, directory / file)
    seal(directory)


def edit_json(directory, file, edit):
    document = json.loads((directory / file).read_text())
    edit(document)
    write_json(directory / file, document)
    seal(directory)


def flip_one_bit(tensors, name):
    array = tensors[name].copy()
    array.reshape(-1).view(numpy.uint8)[0] ^= 1
    tensors[name] = array


def nudge(record):
    record["loss_sum"] = float(numpy.nextafter(record["loss_sum"], numpy.inf))
