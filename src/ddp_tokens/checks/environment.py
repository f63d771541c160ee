"""Can this experiment run on this machine? From what machine_facts, torch_facts and dual have found out.

The verdicts stand in the order in which failures are to be repaired: what stands in the way of all others comes first.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_tokens.checks import environment_needs as needs
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.config import Experiment
from ddp_tokens.hardware import in_words

PYTHON = (3, 11)
SUMS = (120.0, 48.0)  # of what two ranks give: (12, 12) and (108, 36)
Facts = Mapping[str, Any]


def check_environment(experiment: Experiment, machine: Facts, dual: Facts | None = None) -> list[Verdict]:
    """`machine`: of machine_facts, with `torch` and `gpus` of probing.ask and `weights_bytes`, the size of the initial
    weights, or None where they are not made. `dual`: of dual.start, where two processes were tried.
    """
    verdicts = [_system(machine), _packages(machine["packages"]), _torch(machine["torch"])]
    if experiment.device == "cuda":
        verdicts.append(_gpus(experiment, machine))
        verdicts += [_gpu(gpu, machine["torch"]) for gpu in machine["gpus"][: experiment.ranks_per_node]]
    verdicts.append(_backend(experiment, machine["torch"]))
    verdicts += [_results(machine), _locks(machine), _disk(experiment, machine), _memory(experiment, machine)]
    if experiment.workers or experiment.resolved_backend == "nccl":
        verdicts.append(_shared_memory(experiment, machine))
    if dual is not None:
        verdicts.append(_ranks(experiment, dual))
    return verdicts


def first_repair(verdicts: Sequence[Verdict]) -> str | None:
    """One sentence on what to repair first; None where nothing fails."""
    failed = [verdict for verdict in verdicts if verdict.outcome == FAIL]
    if not failed or failed[0].first_difference is None:
        return None
    others = f" ({len(failed) - 1} more fail)" if len(failed) > 1 else ""
    return f"{failed[0].case}: {failed[0].first_difference['found']}{others}"


def _system(machine: Facts) -> Verdict:
    found = None
    if tuple(map(int, re.findall(r"\d+", machine["python"])[:2])) < PYTHON:
        found = f"Python is {machine['python']}: make the environment with Python 3.11 or newer"
    elif not machine["process_handles"]:
        found = (
            f"the kernel, {machine['kernel']}, gives no handles of processes (pidfd_open): take Linux 5.3 or newer, "
            "or a container engine that does not forbid it"
        )
    observed = {name: machine[name] for name in ("python", "kernel", "process_handles")}
    criterion = "Python 3.11 or newer, and handles of processes, with which ranks end when what started them has ended"
    return _verdict("system", criterion, observed, found)


def _packages(packages: Mapping[str, Facts]) -> Verdict:
    missing = [name for name, package in packages.items() if package["installed"] is None]
    outside = [f"{name} {package['installed']}" for name, package in packages.items() if package["within"] is False]
    other = [
        f"{name} {package['installed']}"
        for name, package in packages.items()
        if package["installed"] is not None and package["installed"] != package["locked"]
    ]
    found, inconclusive = None, None
    if missing:
        found = f"{', '.join(missing)} not installed: pip install --requirement envs/requirements.lock"
    elif outside:
        ranges = ", ".join(
            f"{name}{package['needed']}" for name, package in packages.items() if package["within"] is False
        )
        found = f"{', '.join(outside)} does not fit what the project needs, {ranges}: install what fits"
    elif other:
        inconclusive = f"{', '.join(other)} where the lock says otherwise: the project was tested with the lock only"
    observed = {"packages": len(packages), "missing": missing, "outside": outside, "other_than_locked": other}
    criterion = f"the {len(packages)} packages that the chain imports, each in the version of envs/requirements.lock"
    return _verdict("packages", criterion, observed, found, inconclusive)


def _torch(torch: Facts) -> Verdict:
    error = torch.get("error")
    found = f"torch cannot be used ({error}): install torch again" if error else None
    observed = {"version": torch.get("version"), "cuda": torch.get("cuda"), "error": error}
    return _verdict("torch", "torch can be imported and tells about itself", observed, found)


def _backend(experiment: Experiment, torch: Facts) -> Verdict:
    backend = experiment.resolved_backend
    observed = {name: torch.get(name) for name in ("gloo", "nccl", "nccl_version")}
    found, inconclusive = None, None
    if "error" in torch:
        inconclusive = "torch cannot be asked"
    elif not torch[backend]:
        other = "set backend to gloo" if backend == "nccl" else "install a build with gloo"
        found = f"torch {torch['version']} is a build without {backend}: install a build that has it, or {other}"
        if backend == "gloo":
            found = f"torch {torch['version']} is a build without gloo: {other}"
    return _verdict("backend", f"torch is a build with {backend}", observed, found, inconclusive)


def _gpus(experiment: Experiment, machine: Facts) -> Verdict:
    torch, needed = machine["torch"], experiment.resolved_gpus_per_node
    per_rank = "one per rank" if experiment.resolved_backend == "nccl" else "shared by the ranks"
    criterion = f"device cuda needs {needed} GPU{'s' if needed > 1 else ''} on this host ({per_rank})"
    names = ("driver", "gpu_device_file", "cuda_visible_devices")
    observed = {"needed": needed, "seen": torch.get("gpus")} | {name: machine[name] for name in names}
    if "error" in torch:
        return _verdict("gpus", criterion, observed, None, "torch cannot be asked")
    found = None
    if torch["gpus"] == 0:
        found = why_no_gpu(machine)
    elif torch["gpus"] < needed:
        hidden = _hidden(machine) if machine["cuda_visible_devices"] is not None else ""
        found = f"{needed} GPUs are needed and torch sees {torch['gpus']}{hidden}: lower world_size, or add GPUs"
    return _verdict("gpus", criterion, observed, found)


def why_no_gpu(machine: Facts) -> str:
    """As far as can be told, the first reason that stands in the way of the others; and what to do."""
    torch, said = machine["torch"], machine["torch"]["said"]
    if torch["cuda"] is None and torch["hip"] is None:
        return (
            f"torch {torch['version']} is a build without CUDA, so it sees no GPU: install a build with CUDA, or set "
            "device to cpu"
        )
    if machine["driver"] is None and not machine["gpu_device_file"]:
        return (
            "torch sees no GPU, and there is no driver here (neither /proc/driver/nvidia nor /dev/nvidia0): install "
            "NVIDIA's driver, or start the container with its GPUs"
        )
    if machine["driver"] is not None and not machine["gpu_device_file"]:
        return (
            f"torch sees no GPU: the driver, {machine['driver']}, is loaded, but /dev/nvidia0 is missing: start the "
            "container, or the job, with its GPUs"
        )
    if machine["cuda_visible_devices"] is not None and not (said and "driver" in said):
        return f"torch sees no GPU{_hidden(machine)}: unset it, or name GPUs that are there"
    return f"torch sees no GPU; it says: {said or 'nothing'} (driver {machine['driver']}, CUDA {torch['cuda']})"


def _hidden(machine: Facts) -> str:
    return f" with CUDA_VISIBLE_DEVICES set to '{machine['cuda_visible_devices']}'"


def _gpu(gpu: Facts, torch: Facts) -> Verdict:
    name, built = f"GPU {gpu['index']}", torch["architectures"]
    found = None
    if gpu["error"] is not None:
        found = f"{name} cannot be used ({gpu['error']}): look at it with nvidia-smi"
    elif gpu["wrong_values"]:
        found = f"{name} computes wrongly, {gpu['wrong_values']} values of a product of whole numbers: do not use it"
    elif not is_built_for(gpu["capability"], built) and torch["hip"] is None:
        found = (
            f"{name}, {gpu['name']}, has compute capability {gpu['capability']}, for which torch {torch['version']} "
            f"has no code ({', '.join(built)}): install a build that has"
        )
    criterion = "torch has code for this GPU, and a product of whole numbers of 8 at most, exact in float32, is exact"
    return _verdict(f"gpu_{gpu['index']}", criterion, {**gpu, "architectures": built}, found)


def is_built_for(capability: str, architectures: Sequence[str]) -> bool:
    """sm_XY is code for X.Y and for later ones of the same X; with a letter, such as sm_90a, for that one only.
    compute_XY is translated when it is used, for any that is no older.
    """
    major, _, minor = capability.partition(".")
    own = int(major) * 10 + int(minor)
    for kind, digits, letter in re.findall(r"\b(sm|compute)_(\d+)([a-z]?)\b", " ".join(architectures)):
        number = int(digits)
        if own == number or (letter == "" and own > number and (kind == "compute" or own // 10 == number // 10)):
            return True
    return False


def _results(machine: Facts) -> Verdict:
    refused = machine["results_refused"]
    found = (
        f"{machine['results']} cannot be written to ({refused}): let this user write there, or choose another folder"
    )
    return _verdict(
        "results",
        "a file can be made where results go",
        {"folder": machine["results"], "refused": refused},
        found if refused else None,
    )


def _locks(machine: Facts) -> Verdict:
    works = machine["locks"] == "work"
    untried = "nothing can be written there" if machine["locks"] is None else None
    found = (
        f"locks of files (flock) do not work in {machine['results']} ({machine['locks']}): put the results on another "
        "file system, or mount it with locks"
    )
    criterion = "a file locked by one process (flock) is refused to another, which keeps two runs apart"
    observed = {"locks": machine["locks"], "folder": machine["results"]}
    return _verdict("locks", criterion, observed, None if works or untried else found, untried)


def _disk(experiment: Experiment, machine: Facts) -> Verdict:
    weights, whose = _weights(machine)
    needed, copies = needs.disk(experiment, weights), needs.copies_on_disk(experiment)
    criterion = (
        f"at least {in_words(needed)} free for the results: {copies} times the weights ({weights:,} bytes, {whose}) "
        f"for dumps, checkpoints and what ranks leave, and {in_words(needs.BESIDE_WEIGHTS)} for all else of `minimum`"
    )
    return _enough("disk", criterion, machine["disk_free_bytes"], needed, f"on the disk of {machine['results']}")


def _memory(experiment: Experiment, machine: Facts) -> Verdict:
    weights, whose = _weights(machine)
    needed = needs.memory(experiment, weights)
    criterion = (
        f"at least {in_words(needed)} of memory for one run: as measured on `minimum` for the processes of "
        f"{experiment.ranks_per_node} ranks on the CPU, with {experiment.workers} loader workers each and weights of "
        f"{weights:,} bytes ({whose})"
    )
    known = [machine[name] for name in ("memory_available_bytes", "memory_left_in_group_bytes")]
    free = min((size for size in known if size is not None), default=None)
    unsure = None if machine["groups_known"] else "whether a container limits memory cannot be told here"
    return _enough("memory", criterion, free, needed, "of memory", unsure)


def _weights(machine: Facts) -> tuple[int, str]:
    own = machine["weights_bytes"]
    return (needs.MINIMUM_WEIGHTS, "those of `minimum`, own ones not being made yet") if own is None else (own, "own")


def _shared_memory(experiment: Experiment, machine: Facts) -> Verdict:
    batches = needs.shared_memory(experiment)
    free, needed, criterion, unsure = machine["shared_memory_free_bytes"], batches or 0, [], None
    if experiment.workers:
        size = "which is not known before the rows are read" if batches is None else in_words(batches)
        criterion.append(f"in /dev/shm the batches of loader workers: ranks x workers x 2 ahead x rows x row, {size}")
        unsure = "how large a batch is, only the rows tell" if batches is None else None
    if experiment.resolved_backend == "nccl":
        criterion.append("in /dev/shm 1 GiB, which NCCL's guide asks for in containers; less may do")
        if free is not None and free < needs.NCCL_SHARED:
            unsure = f"{in_words(free)} are free, and NCCL may want more: start the container with --shm-size=1g"
    return _enough("shared_memory", "; ".join(criterion), free, needed, "in /dev/shm", unsure)


def _enough(case: str, criterion: str, free: int | None, needed: int, where: str, unsure: str | None = None) -> Verdict:
    """`unsure`: why nothing can be said where there seems to be enough."""
    found = None
    if free is None:
        unsure = f"how much is free {where} cannot be told"
    elif free < needed:
        found = f"{in_words(free)} are free {where}, and {in_words(needed)} are needed: free some, or give more"
    return _verdict(case, criterion, {"free_bytes": free, "needed_bytes": needed}, found, unsure)


def _ranks(experiment: Experiment, dual: Facts) -> Verdict:
    criterion = (
        f"two processes on {dual['device']} meet over {dual['backend']}, are told apart by number"
        f"{' and GPU' if dual['backend'] == 'nccl' else ''}, and both sum (12, 12) and (108, 36) to (120, 48)"
    )
    found = dual["error"] or what_is_wrong(dual["processes"], dual["backend"])
    if dual["error"] and dual["said"]:
        found = f"{found}: see 'The dual check fails' in docs/troubleshooting.md"
    if experiment.ranks_per_node == 1 and dual["error"] and not dual["said"]:
        unsure = f"{dual['error']}; the experiment has one rank on this host, and does not need it"
        return _verdict("ranks", criterion, dual, None, unsure)
    return _verdict("ranks", criterion, dual, found)


def what_is_wrong(processes: Sequence[Facts], backend: str) -> str | None:
    """With two processes that have ended well."""
    if [process["rank"] for process in processes] != [0, 1]:
        return f"{len(processes)} of two processes told about themselves: start again"
    for process in processes:
        if tuple(process["sums"]) != SUMS:
            return f"rank {process['rank']} has the sums {process['sums']}, not (120, 48): {backend} adds wrongly here"
    first, second = processes
    if (first["host"], first["pid"]) == (second["host"], second["pid"]):
        return f"both ranks are process {first['pid']}: the launcher started one process only"
    if backend == "nccl" and is_shared(processes):
        return f"both ranks took {first['device']}, which NCCL cannot share: set backend to gloo, or give two GPUs"
    return None


def is_shared(processes: Sequence[Facts]) -> bool:
    """Whether two ranks took one GPU, by its UUID where torch tells it."""
    taken = [process["uuid"] or process["device"] for process in processes if process["device"] != "cpu"]
    return len(set(taken)) < len(taken)


def _verdict(case: str, criterion: str, observed: Facts, found: str | None, unsure: str | None = None) -> Verdict:
    """`found`: what fails, and what to do; `unsure`: why nothing can be said, where nothing fails."""
    outcome = FAIL if found else INCONCLUSIVE if unsure else PASS
    text = found or unsure
    return Verdict(case, PASS, outcome, criterion, observed, {}, {"found": text} if text else None)
