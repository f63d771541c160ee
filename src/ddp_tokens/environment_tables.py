"""What check-environment shows on the terminal: at most 100 columns wide."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.hardware import gibibytes, in_words

Facts = Mapping[str, Any]
UNKNOWN = "not known"
LONGEST_VALUE, LONGEST_FOUND = 74, 62


def tables(machine: Facts, verdicts: Sequence[Verdict]) -> str:
    shown = [_of_facts(machine)]
    if machine["gpus"]:
        shown.append(_of_gpus(machine["gpus"]))
    if machine["dual"] is not None and machine["dual"]["processes"]:
        shown.append(_of_processes(machine["dual"]))
    return "\n\n".join([*shown, _of_verdicts(verdicts)])


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str], widths: Sequence[int | None]) -> str:
    return str(tabulate(rows, headers=headers, maxcolwidths=widths, disable_numparse=True))


def facts_shown(machine: Facts) -> dict[str, str]:
    torch = machine["torch"]
    return {
        "host": machine["host"],
        "system": f"Python {machine['python']}, {machine['platform']}",
        "packages": _packages(machine["packages"]),
        "torch": torch["error"] if "error" in torch else _torch(torch),
        "CPU": f"{machine['cpu']}; {_cores(machine)}",
        "memory": _memory(machine),
        "/dev/shm": _free(machine["shared_memory_free_bytes"]),
        "results": f"{machine['results']}, {_free(machine['disk_free_bytes'])}, {_writing(machine)}",
        "driver": _driver(machine),
    }


def _of_facts(machine: Facts) -> str:
    return _table(list(facts_shown(machine).items()), ["item", "value"], [None, LONGEST_VALUE])


def _packages(packages: Mapping[str, Facts]) -> str:
    other = [
        f"{name} {package['installed'] or 'missing'} ({package['locked']})"
        for name, package in packages.items()
        if package["installed"] != package["locked"]
    ]
    if not other:
        return f"all {len(packages)} as in envs/requirements.lock"
    return f"{len(packages) - len(other)} of {len(packages)} as in envs/requirements.lock; {', '.join(other)}"


def _torch(torch: Facts) -> str:
    built = f"CUDA {torch['cuda']}, cuDNN {torch['cudnn']}, for {', '.join(torch['architectures'])}"
    if torch["cuda"] is None:
        built = "built without CUDA" if torch["hip"] is None else f"built for HIP {torch['hip']}"
    nccl = f"NCCL {torch['nccl_version']}" if torch["nccl"] else "no NCCL"
    return f"{torch['version']}, {built}; {'gloo' if torch['gloo'] else 'no gloo'}, {nccl}"


def _cores(machine: Facts) -> str:
    number, limit = machine["cores"], machine["cores_of_group"]
    told = f"{number} core{'s' if number > 1 else ''} for this process"
    return told if limit is None else f"{told}, limited to {limit:g} by its cgroup"


def _memory(machine: Facts) -> str:
    told = f"{gibibytes(machine['memory_bytes'])}, {_size(machine['memory_available_bytes'])} available"
    if not machine["groups_known"]:
        return f"{told}; whether a cgroup limits it is {UNKNOWN}"
    if machine["memory_of_group_bytes"] is None:
        return told
    limit, left = gibibytes(machine["memory_of_group_bytes"]), gibibytes(machine["memory_left_in_group_bytes"])
    return f"{told}; the cgroup's limit is {limit}, of which {left} are left"


def _writing(machine: Facts) -> str:
    return (
        f"cannot be written to: {machine['results_refused']}"
        if machine["results_refused"]
        else f"locks: {machine['locks']}"
    )


def _driver(machine: Facts) -> str:
    told = f"NVIDIA {machine['driver']}" if machine["driver"] else "no NVIDIA driver"
    visible = machine["cuda_visible_devices"]
    return told if visible is None else f"{told}; CUDA_VISIBLE_DEVICES is '{visible}'"


def _free(number: int | None) -> str:
    return f"free space {UNKNOWN}" if number is None else f"{in_words(number)} free"


def _size(number: int | None) -> str:
    return UNKNOWN if number is None else gibibytes(number)


def _of_gpus(gpus: Sequence[Facts]) -> str:
    rows = [
        [gpu["index"], gpu.get("name", "?"), _gpu_memory(gpu), gpu.get("capability", "?"), _product(gpu)]
        for gpu in gpus
    ]
    headers = ["GPU", "name", "memory (free)", "capability", "computes"]
    return _table(rows, headers, [None, 26, None, None, 30])


def _gpu_memory(gpu: Facts) -> str:
    if "memory_bytes" not in gpu:
        return "?"
    return f"{gibibytes(gpu['memory_bytes'])} ({_size(gpu.get('memory_free_bytes'))})"


def _product(gpu: Facts) -> str:
    if gpu["error"] is not None:
        return str(gpu["error"])
    return f"{gpu['wrong_values']} values wrong" if gpu["wrong_values"] else "exactly"


def _of_processes(dual: Facts) -> str:
    rows = [
        [
            process["rank"],
            process["pid"],
            process["host"],
            process["device"],
            _name(process),
            ranges(process["cores"]),
            process["threads"],
            ", ".join(f"{number:g}" for number in process["sums"]),
        ]
        for process in dual["processes"]
    ]
    headers = ["rank", "process", "host", "device", "name, UUID", "cores", "threads", f"sums ({dual['backend']})"]
    widths = [None, None, 14, None, 24, 9, None, None]
    return _table(rows, headers, widths)


def _name(process: Facts) -> str:
    """With the beginning of a GPU's UUID, which is enough to tell two apart; the file has the whole."""
    if process["uuid"] is None:
        return str(process["device_name"])
    return f"{process['device_name']} {process['uuid'].removeprefix('GPU-')[:13]}"


def ranges(numbers: Sequence[int]) -> str:
    """ "0-2,5" of [0, 1, 2, 5]."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] + 1 == number:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _of_verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = [[verdict.case, verdict.outcome, _found(verdict)] for verdict in verdicts]
    return _table(rows, ["case", "outcome", "found"], [None, None, LONGEST_FOUND])


def _found(verdict: Verdict) -> str:
    if verdict.first_difference is not None:
        return str(verdict.first_difference["found"])
    if "needed_bytes" in verdict.observed:
        needed, free = (verdict.observed[name] for name in ("needed_bytes", "free_bytes"))
        return f"{in_words(free)} free" + (f", at least {in_words(needed)} needed" if needed else "")
    return ""
