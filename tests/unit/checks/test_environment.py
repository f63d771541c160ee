"""Verdicts on machines that are described, GPUs among them; a test changes what it is about."""

import json
from dataclasses import asdict

import pytest

from ddp_tokens.checks.environment import (
    check_environment,
    first_repair,
    is_built_for,
    is_shared,
    what_is_wrong,
    why_no_gpu,
)
from ddp_tokens.checks.environment_needs import MIB, MINIMUM_WEIGHTS, disk, memory
from tests.helpers import tiny_experiment

GIB = 2**30
PACKAGE = {"installed": "2.13.0", "locked": "2.13.0", "needed": ">=2.7", "within": True}
TORCH = {
    "version": "2.13.0",
    "cuda": "13.0",
    "hip": None,
    "cudnn": 91900,
    "architectures": ["sm_80", "sm_90"],
    "gloo": True,
    "nccl": True,
    "nccl_version": "2.28.9",
    "gpus": 2,
    "said": None,
}
CPU_BUILD = {"cuda": None, "nccl": False, "nccl_version": None, "architectures": [], "gpus": 0}
GPU = {
    "index": 0,
    "name": "A GPU",
    "uuid": "GPU-0",
    "memory_bytes": 40 * GIB,
    "memory_free_bytes": 39 * GIB,
    "capability": "9.0",
    "wrong_values": 0,
    "error": None,
}
MACHINE = {
    "python": "3.11.7",
    "kernel": "6.1.0",
    "process_handles": True,
    "packages": {"torch": PACKAGE, "tqdm": PACKAGE | {"installed": "4.70.1", "locked": "4.70.1", "needed": ">=4.66"}},
    "torch": TORCH,
    "gpus": [GPU, GPU | {"index": 1, "uuid": "GPU-1"}],
    "driver": "580.95",
    "gpu_device_file": True,
    "cuda_visible_devices": None,
    "results_refused": None,
    "locks": "work",
    "results": "results/tiny",
    "disk_free_bytes": 100 * GIB,
    "memory_available_bytes": 20 * GIB,
    "memory_left_in_group_bytes": None,
    "groups_known": True,
    "shared_memory_free_bytes": 8 * GIB,
    "weights_bytes": None,
}
PROCESS = {"rank": 0, "pid": 11, "host": "a", "device": "cpu", "uuid": None, "sums": [120.0, 48.0]}
BOTH = [PROCESS, PROCESS | {"rank": 1, "pid": 12}]
ON_CPU = {"device": "cpu", "backend": "gloo", "processes": BOTH, "error": None, "said": []}
ON_GPUS = tiny_experiment(device="cuda")


def judged(machine=(), experiment=None, dual=None):
    return check_environment(experiment or tiny_experiment(), MACHINE | dict(machine), dual)


def verdict(case, machine=(), experiment=None, dual=None):
    [found] = [each for each in judged(machine, experiment, dual) if each.case == case]
    return found


def outcome(*arguments):
    return verdict(*arguments).outcome


def found(*arguments):
    return verdict(*arguments).first_difference["found"]


def with_torch(**changes):
    return {"torch": TORCH | changes}


def test_on_a_good_machine_all_pass_in_the_order_of_repair():
    verdicts = judged(dual=ON_CPU)
    assert [each.case for each in verdicts] == [
        "system",
        "packages",
        "torch",
        "backend",
        "results",
        "locks",
        "disk",
        "memory",
        "ranks",
    ]
    assert {each.outcome for each in verdicts} == {each.expected for each in verdicts} == {"pass"}
    assert all(each.first_difference is None for each in verdicts)
    assert all(each.criterion for each in verdicts)
    assert first_repair(verdicts) is None
    assert json.loads(json.dumps([asdict(each) for each in verdicts]))


def test_gpus_are_judged_where_the_experiment_is_on_cuda_only():
    cases = [each.case for each in judged(experiment=ON_GPUS)]
    assert cases[3:7] == ["gpus", "gpu_0", "gpu_1", "backend"]
    assert cases[-1] == "shared_memory", "NCCL wants it"
    assert [each for each in judged() if each.case.startswith("gpu")] == []


def test_gpus_that_no_rank_takes_are_not_judged():
    broken = [GPU, GPU | {"index": 1, "error": "RuntimeError: gone"}]
    one = tiny_experiment(device="cuda", world_size=1)
    assert [each.case for each in judged({"gpus": broken}, one) if each.case.startswith("gpu_")] == ["gpu_0"]


def test_the_first_repair_is_that_of_the_first_failure():
    machine = {"locks": "No locks available", "process_handles": False, "disk_free_bytes": 0}
    sentence = first_repair(judged(machine))
    assert sentence.startswith("system: the kernel, 6.1.0, gives no handles of processes (pidfd_open): take Linux 5.3")
    assert sentence.endswith(" (2 more fail)")
    assert first_repair(judged({"locks": "No locks available"})).endswith("or mount it with locks")
    assert first_repair(judged({"locks": "none", "disk_free_bytes": 0})).endswith("with locks (1 more fail)")


ASKED = [
    ("system", "Python 3.11 or newer, and handles of processes, with which ranks end when what started them has ended"),
    ("packages", "the 2 packages that the chain imports, each in the version of envs/requirements.lock"),
    ("torch", "torch can be imported and tells about itself"),
    ("gpus", "device cuda needs 2 GPUs on this host (one per rank)"),
    ("gpu_0", "torch has code for this GPU, and a product of whole numbers of 8 at most, exact in float32, is exact"),
    ("gpu_1", "torch has code for this GPU, and a product of whole numbers of 8 at most, exact in float32, is exact"),
    ("backend", "torch is a build with nccl"),
    ("results", "a file can be made where results go"),
    ("locks", "a file locked by one process (flock) is refused to another, which keeps two runs apart"),
]
ASKED_OF_SHARED_MEMORY = (
    "in /dev/shm the batches of loader workers: ranks x workers x 2 ahead x rows x row, 8 KiB; in /dev/shm 1 GiB, "
    "which NCCL's guide asks for in containers; less may do"
)


def test_each_verdict_says_by_which_criterion():
    verdicts = judged(experiment=tiny_experiment(device="cuda", workers=3, batch=5))
    assert [(each.case, each.criterion) for each in verdicts[: len(ASKED)]] == ASKED
    assert verdicts[-1].criterion == ASKED_OF_SHARED_MEMORY
    assert all(each.evidence == {} for each in verdicts), "no file is compared"


def test_what_cannot_be_told_fails_nothing():
    verdicts = judged({"disk_free_bytes": None})
    assert [each.outcome for each in verdicts if each.case == "disk"] == ["inconclusive"]
    assert first_repair(verdicts) is None


@pytest.mark.parametrize(
    ("python", "result"), [("3.11.0", "pass"), ("3.12.1rc1", "pass"), ("4.0.0", "pass"), ("3.9.18", "fail")]
)
def test_python(python, result):
    assert outcome("system", {"python": python}) == result


def test_forbidden_handles_of_processes_are_told_with_what_to_do():
    assert found("system", {"process_handles": False}) == (
        "the kernel, 6.1.0, gives no handles of processes (pidfd_open): take Linux 5.3 or newer, or a container engine "
        "that does not forbid it"
    )


def test_an_old_python_is_named():
    assert found("system", {"python": "3.10.9", "process_handles": False}) == (
        "Python is 3.10.9: make the environment with Python 3.11 or newer"
    )
    observed = verdict("system").observed
    assert observed == {"python": "3.11.7", "kernel": "6.1.0", "process_handles": True}


@pytest.mark.parametrize(
    ("torch", "tqdm", "result", "text"),
    [
        ({"installed": None, "within": None}, {}, "fail", "torch not installed: pip install --requirement envs/"),
        ({"installed": None, "within": None}, {"installed": None, "within": None}, "fail", "torch, tqdm not installed"),
        (
            {"installed": "2.5", "within": False},
            {},
            "fail",
            "torch 2.5 does not fit what the project needs, torch>=2.7: install what fits",
        ),
        ({"installed": "2.9"}, {}, "inconclusive", "torch 2.9 where the lock says otherwise: the project was tested"),
        ({"installed": "2.9", "within": None}, {}, "inconclusive", "torch 2.9 where the lock says otherwise"),
    ],
)
def test_packages(torch, tqdm, result, text):
    packages = {"torch": PACKAGE | torch, "tqdm": PACKAGE | tqdm}
    assert outcome("packages", {"packages": packages}) == result
    assert found("packages", {"packages": packages}).startswith(text)


def test_several_packages_are_listed_with_commas():
    old = {"installed": "2.5", "within": False}
    packages = {"torch": PACKAGE | old, "tqdm": PACKAGE | old | {"needed": ">=4.66"}}
    assert found("packages", {"packages": packages}) == (
        "torch 2.5, tqdm 2.5 does not fit what the project needs, torch>=2.7, tqdm>=4.66: install what fits"
    )
    packages = {name: PACKAGE | {"installed": "2.9"} for name in ("torch", "tqdm")}
    assert found("packages", {"packages": packages}) == (
        "torch 2.9, tqdm 2.9 where the lock says otherwise: the project was tested with the lock only"
    )


def test_packages_are_counted_and_listed():
    packages = {
        "numpy": PACKAGE,
        "pandas": PACKAGE | {"installed": None, "within": None},
        "torch": PACKAGE | {"installed": "2.5", "within": False},
    }
    assert verdict("packages", {"packages": packages}).observed == {
        "packages": 3,
        "missing": ["pandas"],
        "outside": ["torch 2.5"],
        "other_than_locked": ["torch 2.5"],
    }


NO_TORCH = {"torch": {"error": "ImportError: libcudart.so.13"}, "gpus": []}


def test_a_torch_that_cannot_be_imported_fails_and_leaves_open_what_it_would_have_told():
    assert found("torch", NO_TORCH) == "torch cannot be used (ImportError: libcudart.so.13): install torch again"
    verdicts = judged(NO_TORCH, ON_GPUS)
    assert [each.outcome for each in verdicts if each.case in ("backend", "gpus")] == ["inconclusive"] * 2
    assert found("gpus", NO_TORCH, ON_GPUS) == found("backend", NO_TORCH) == "torch cannot be asked"
    assert [each.case for each in verdicts if each.outcome == "fail"] == ["torch"]
    assert verdict("gpus", NO_TORCH, ON_GPUS).criterion == "device cuda needs 2 GPUs on this host (one per rank)"
    assert verdict("gpus", NO_TORCH, ON_GPUS).observed["seen"] is None


def test_a_torch_that_works_is_told():
    assert verdict("torch").observed == {"version": "2.13.0", "cuda": "13.0", "error": None}


def test_a_build_without_the_backend():
    assert found("backend", with_torch(nccl=False), ON_GPUS) == (
        "torch 2.13.0 is a build without nccl: install a build that has it, or set backend to gloo"
    )
    assert found("backend", with_torch(gloo=False)) == "torch 2.13.0 is a build without gloo: install a build with gloo"
    assert outcome("backend", with_torch(nccl=False)) == "pass", "gloo is all that ranks on the CPU need"
    assert verdict("backend").observed == {"gloo": True, "nccl": True, "nccl_version": "2.28.9"}


def test_enough_gpus():
    assert outcome("gpus", {}, ON_GPUS) == "pass"
    assert verdict("gpus", {}, ON_GPUS).observed == {
        "needed": 2,
        "seen": 2,
        "driver": "580.95",
        "gpu_device_file": True,
        "cuda_visible_devices": None,
    }
    assert verdict("gpus", {}, ON_GPUS).criterion == "device cuda needs 2 GPUs on this host (one per rank)"


def test_too_few_gpus():
    one = with_torch(gpus=1) | {"gpus": [GPU]}
    assert found("gpus", one, ON_GPUS) == "2 GPUs are needed and torch sees 1: lower world_size, or add GPUs"
    assert found("gpus", one | {"cuda_visible_devices": "0"}, ON_GPUS).startswith(
        "2 GPUs are needed and torch sees 1 with CUDA_VISIBLE_DEVICES set to '0'"
    )
    shared = tiny_experiment(device="cuda", backend="gloo")
    assert outcome("gpus", one, shared) == "pass", "gloo ranks may share one"
    assert verdict("gpus", one, shared).criterion == "device cuda needs 1 GPU on this host (shared by the ranks)"
    assert outcome("gpus", one, tiny_experiment(device="cuda", nodes=2)) == "pass", "one rank, one GPU on each host"


NO_DRIVER = {"driver": None, "gpu_device_file": False}
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize(
    ("torch", "machine", "text"),
    [
        (
            CPU_BUILD,
            NO_DRIVER | {"cuda_visible_devices": ""},
            "torch 2.13.0 is a build without CUDA, so it sees no GPU: install a build with CUDA, or set device to cpu",
        ),
        (
            {},
            NO_DRIVER,
            "torch sees no GPU, and there is no driver here (neither /proc/driver/nvidia nor /dev/nvidia0): install "
            "NVIDIA's driver, or start the container with its GPUs",
        ),
        (
            {},
            {"gpu_device_file": False},
            "torch sees no GPU: the driver, 580.95, is loaded, but /dev/nvidia0 is missing: start the container, or "
            "the job, with its GPUs",
        ),
        ({}, {"cuda_visible_devices": ""}, "torch sees no GPU with CUDA_VISIBLE_DEVICES set to '': unset it, or name"),
        (
            {},
            {"cuda_visible_devices": "7"},
            "torch sees no GPU with CUDA_VISIBLE_DEVICES set to '7': unset it, or name",
        ),
        (
            {"said": "No CUDA GPUs are available"},
            {"cuda_visible_devices": "7"},
            "torch sees no GPU with CUDA_VISIBLE_DEVICES set to '7'",
        ),
        (
            {"said": TOO_OLD},
            {"cuda_visible_devices": "7"},
            f"torch sees no GPU; it says: {TOO_OLD} (driver 580.95, CUDA 13.0)",
        ),
        ({"said": TOO_OLD}, {}, f"torch sees no GPU; it says: {TOO_OLD} (driver 580.95, CUDA 13.0)"),
        ({}, {}, "torch sees no GPU; it says: nothing (driver 580.95, CUDA 13.0)"),
        ({"cuda": None, "hip": "6.4"}, {}, "torch sees no GPU; it says: nothing (driver 580.95, CUDA None)"),
        ({}, {"driver": None}, "torch sees no GPU; it says: nothing (driver None, CUDA 13.0)"),
    ],
)
def test_why_torch_sees_no_gpu(torch, machine, text):
    whole = MACHINE | machine | {"torch": TORCH | {"gpus": 0} | torch, "gpus": []}
    assert why_no_gpu(whole).startswith(text)
    verdicts = check_environment(ON_GPUS, whole)
    [of_gpus] = [each for each in verdicts if each.case == "gpus"]
    assert of_gpus.outcome == "fail"
    assert of_gpus.first_difference == {"found": why_no_gpu(whole)}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"error": "RuntimeError: CUDA error: out of memory"},
            "GPU 0 cannot be used (RuntimeError: CUDA error: out of memory): look at it with nvidia-smi",
        ),
        (
            {"wrong_values": 3},
            "GPU 0 computes wrongly, 3 values of a product of whole numbers: do not use it",
        ),
        (
            {"capability": "7.0"},
            "GPU 0, A GPU, has compute capability 7.0, for which torch 2.13.0 has no code (sm_80, sm_90): install a "
            "build that has",
        ),
    ],
)
def test_a_gpu_that_cannot_be_used(changes, text):
    machine = {"gpus": [GPU | changes]}
    assert outcome("gpu_0", machine, ON_GPUS) == "fail"
    assert found("gpu_0", machine, ON_GPUS) == text


def test_a_gpu_of_which_only_the_error_is_known():
    machine = {"gpus": [GPU, {"index": 1, "error": "no answer within 300 s"}]}
    assert outcome("gpu_0", machine, ON_GPUS) == "pass"
    assert found("gpu_1", machine, ON_GPUS).startswith("GPU 1 cannot be used (no answer within 300 s)")
    assert verdict("gpu_0", machine, ON_GPUS).observed == GPU | {"architectures": ["sm_80", "sm_90"]}


def test_architectures_of_hip_have_other_names():
    hip = with_torch(cuda=None, hip="6.4", architectures=["gfx942"])
    assert outcome("gpu_0", hip, ON_GPUS) == "pass"


@pytest.mark.parametrize(
    ("capability", "architectures", "built"),
    [
        ("9.0", ["sm_90"], True),
        ("9.0", ["sm_80"], False),
        ("8.6", ["sm_80"], True),
        ("8.0", ["sm_86"], False),
        ("9.0", ["sm_90a"], True),
        ("9.1", ["sm_90a"], False),
        ("9.0", ["compute_80"], True),
        ("7.5", ["compute_80"], False),
        ("12.0", ["sm_100", "sm_120"], True),
        ("12.1", ["sm_120"], True),
        ("10.3", ["sm_120", "sm_90"], False),
        ("8.9", ["sm_86"], True),
        ("9.0", [], False),
    ],
)
def test_code_for_a_capability(capability, architectures, built):
    assert is_built_for(capability, architectures) is built


def test_an_experiment_with_one_rank_here_does_not_need_two_gpus():
    """Two hosts with a GPU each: the trial of two processes cannot be made, and says nothing about the experiment."""
    dual = {"device": "cuda", "backend": "nccl", "processes": [], "said": [], "error": "they need two GPUs"}
    experiment = tiny_experiment(device="cuda", nodes=2)
    assert experiment.ranks_per_node == 1
    judged_alone = verdict("ranks", experiment=experiment, dual=dual)
    assert judged_alone.outcome == "inconclusive"
    assert judged_alone.first_difference == {
        "found": "they need two GPUs; the experiment has one rank on this host, and does not need it"
    }
    assert verdict("ranks", experiment=tiny_experiment(device="cuda"), dual=dual).outcome == "fail"


def test_where_processes_said_something_the_page_on_what_to_do_is_named():
    dual = {"device": "cpu", "backend": "gloo", "processes": [], "error": "rank 1 raised RuntimeError: eth7"}
    assert verdict("ranks", dual=dual | {"said": ["a line"]}).first_difference == {
        "found": "rank 1 raised RuntimeError: eth7: see 'The dual check fails' in docs/troubleshooting.md"
    }
    assert verdict("ranks", dual=dual | {"said": []}).first_difference == {"found": "rank 1 raised RuntimeError: eth7"}


def test_results_that_cannot_be_written():
    machine = {"results_refused": "Read-only file system", "locks": None}
    assert found("results", machine) == (
        "results/tiny cannot be written to (Read-only file system): let this user write there, or choose another folder"
    )
    assert verdict("results", machine).observed == {"folder": "results/tiny", "refused": "Read-only file system"}
    assert (verdict("locks", machine).outcome, found("locks", machine)) == (
        "inconclusive",
        "nothing can be written there",
    )


def test_locks_that_do_not_work():
    assert found("locks", {"locks": "No locks available"}) == (
        "locks of files (flock) do not work in results/tiny (No locks available): put the results on another file "
        "system, or mount it with locks"
    )
    assert verdict("locks").observed == {"locks": "work", "folder": "results/tiny"}


def test_disk_and_memory_are_compared_with_what_is_needed_to_the_byte():
    experiment = tiny_experiment()
    for case, name, needed in (
        ("disk", "disk_free_bytes", disk(experiment, MINIMUM_WEIGHTS)),
        ("memory", "memory_available_bytes", memory(experiment, MINIMUM_WEIGHTS)),
    ):
        assert outcome(case, {name: needed}) == "pass"
        assert outcome(case, {name: needed - 1}) == "fail"
        assert outcome(case, {name: None}) == "inconclusive"
        assert verdict(case, {name: needed}).observed == {"free_bytes": needed, "needed_bytes": needed}
    assert found("disk", {"disk_free_bytes": 0}).startswith(
        "0 KiB are free on the disk of results/tiny, and 66 MiB are"
    )


def test_own_weights_count_where_they_are_made():
    experiment, large = tiny_experiment(), 10**9
    assert verdict("disk", {"weights_bytes": large}).observed["needed_bytes"] == disk(experiment, large)
    assert verdict("memory", {"weights_bytes": large}).observed["needed_bytes"] == memory(experiment, large)
    assert "(1,000,000,000 bytes, own)" in verdict("disk", {"weights_bytes": large}).criterion
    assert "1,133,360 bytes (those of `minimum`, own ones not being made yet" in verdict("memory").criterion


def test_the_tightest_limit_of_memory_counts():
    machine = {"memory_available_bytes": 20 * GIB, "memory_left_in_group_bytes": 5 * MIB}
    assert found("memory", machine).startswith("5 MiB are free of memory, and 463 MiB are needed: free some")
    assert outcome("memory", machine | {"memory_left_in_group_bytes": GIB}) == "pass"
    only_group = {"memory_available_bytes": None, "memory_left_in_group_bytes": GIB}
    assert verdict("memory", only_group).observed["free_bytes"] == GIB


def test_where_groups_are_not_known_enough_memory_is_not_certain_and_too_little_is():
    assert found("memory", {"groups_known": False}) == "whether a container limits memory cannot be told here"
    assert outcome("memory", {"groups_known": False}) == "inconclusive"
    assert outcome("memory", {"groups_known": False, "memory_available_bytes": MIB}) == "fail"
    unknown = {"groups_known": False, "memory_available_bytes": None}
    assert found("memory", unknown) == "how much is free of memory cannot be told"


WITH_WORKERS = tiny_experiment(workers=3, batch=5)  # 2 ranks x 3 workers x 2 ahead x 5 rows of 136 bytes


def test_shared_memory_for_batches_of_workers():
    assert [each.case for each in judged(experiment=WITH_WORKERS)][-1] == "shared_memory"
    assert outcome("shared_memory", {"shared_memory_free_bytes": 8160}, WITH_WORKERS) == "pass"
    assert outcome("shared_memory", {"shared_memory_free_bytes": 8159}, WITH_WORKERS) == "fail"
    assert outcome("shared_memory", {"shared_memory_free_bytes": None}, WITH_WORKERS) == "inconclusive"


def test_too_little_shared_memory_is_told_with_where():
    assert found("shared_memory", {"shared_memory_free_bytes": 0}, WITH_WORKERS) == (
        "0 KiB are free in /dev/shm, and 8 KiB are needed: free some, or give more"
    )
    assert verdict("shared_memory", {}, WITH_WORKERS).criterion == ASKED_OF_SHARED_MEMORY.partition(";")[0]
    assert verdict("shared_memory", {}, ON_GPUS).observed["needed_bytes"] == 0


def test_batches_whose_size_only_the_rows_tell():
    own = tiny_experiment(workers=1, corpus={"path": "rows.jsonl"})
    assert outcome("shared_memory", {}, own) == "inconclusive"
    assert found("shared_memory", {}, own) == "how large a batch is, only the rows tell"
    assert verdict("shared_memory", {}, own).criterion == (
        "in /dev/shm the batches of loader workers: ranks x workers x 2 ahead x rows x row, which is not known before "
        "the rows are read"
    )


def test_what_nccl_wants_of_shared_memory_may_be_less():
    """NCCL's guide says 1 GiB in containers; where GPUs reach each other directly, less will do."""
    assert outcome("shared_memory", {"shared_memory_free_bytes": GIB}, ON_GPUS) == "pass"
    little = {"shared_memory_free_bytes": 64 * MIB}
    assert outcome("shared_memory", little, ON_GPUS) == "inconclusive"
    assert found("shared_memory", little, ON_GPUS) == (
        "64 MiB are free, and NCCL may want more: start the container with --shm-size=1g"
    )
    assert outcome("shared_memory", {"shared_memory_free_bytes": None}, ON_GPUS) == "inconclusive"
    assert verdict("shared_memory", {}, ON_GPUS).criterion.startswith("in /dev/shm 1 GiB, which NCCL's guide asks for")


def test_two_processes_that_are_right():
    assert outcome("ranks", {}, None, ON_CPU) == "pass"
    assert verdict("ranks", {}, None, ON_CPU).observed == ON_CPU
    assert what_is_wrong(BOTH, "gloo") is None


def test_an_error_of_two_processes_is_what_is_told():
    dual = ON_CPU | {"processes": [], "error": "rank 1 was killed"}
    assert found("ranks", {}, None, dual) == "rank 1 was killed"
    assert outcome("ranks", {}, None, dual) == "fail"


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ([], "0 of two processes told about themselves: start again"),
        (BOTH[:1], "1 of two processes told about themselves"),
        ([PROCESS, PROCESS], "2 of two processes told about themselves"),
        (
            [PROCESS, BOTH[1] | {"sums": [24.0, 24.0]}],
            "rank 1 has the sums [24.0, 24.0], not (120, 48): gloo adds wrongly here",
        ),
        ([PROCESS, PROCESS | {"rank": 1}], "both ranks are process 11: the launcher started one process only"),
    ],
)
def test_two_processes_that_are_not_right(processes, text):
    assert what_is_wrong(processes, "gloo").startswith(text)


def test_equal_numbers_on_two_hosts_are_two_processes():
    assert what_is_wrong([PROCESS, PROCESS | {"rank": 1, "host": "b"}], "gloo") is None


def on_gpus(first, second):
    return [
        PROCESS | {"device": "cuda:0", "uuid": first},
        PROCESS | {"rank": 1, "pid": 12, "device": "cuda:1", "uuid": second},
    ]


def test_two_processes_on_one_gpu():
    shared = on_gpus("GPU-0", "GPU-0")
    assert is_shared(shared)
    assert what_is_wrong(shared, "gloo") is None
    assert what_is_wrong(shared, "nccl") == (
        "both ranks took cuda:0, which NCCL cannot share: set backend to gloo, or give two GPUs"
    )
    assert not is_shared(on_gpus("GPU-0", "GPU-1"))
    assert what_is_wrong(on_gpus("GPU-0", "GPU-1"), "nccl") is None


def test_a_shared_gpu_fails_where_the_backend_is_nccl():
    dual = {"device": "cuda", "backend": "nccl", "processes": on_gpus("a", "a"), "error": None, "said": []}
    assert outcome("ranks", {}, ON_GPUS, dual) == "fail"
    assert outcome("ranks", {}, ON_GPUS, dual | {"backend": "gloo"}) == "pass"


def test_without_uuids_the_devices_tell():
    apart = on_gpus(None, None)
    assert not is_shared(apart)
    assert is_shared([apart[0], apart[1] | {"device": "cuda:0"}])
    assert not is_shared(BOTH), "the CPU is for all"


def test_the_criterion_says_what_two_processes_must_do():
    assert verdict("ranks", {}, None, ON_CPU).criterion == (
        "two processes on cpu meet over gloo, are told apart by number, and both sum (12, 12) and (108, 36) to "
        "(120, 48)"
    )
    dual = {"device": "cuda", "backend": "nccl", "processes": on_gpus("a", "b"), "error": None, "said": []}
    assert "told apart by number and GPU, and both" in verdict("ranks", {}, ON_GPUS, dual).criterion
