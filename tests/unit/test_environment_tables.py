"""What is shown on a terminal of 100 columns."""

import pytest

from ddp_tokens.checks.environment import check_environment
from ddp_tokens.environment_tables import facts_shown, ranges, tables
from tests.helpers import tiny_experiment
from tests.unit.checks.test_environment import CPU_BUILD, GIB, GPU, MACHINE, ON_CPU, ON_GPUS, TORCH, on_gpus

SHOWN = MACHINE | {
    "host": "a-host",
    "platform": "Linux-6.1.0-18-amd64-x86_64-with-glibc2.36",
    "cpu": "AMD EPYC 7763 64-Core Processor",
    "cores": 2,
    "cores_of_group": None,
    "memory_bytes": 24 * GIB,
    "memory_of_group_bytes": None,
    "dual": None,
}
TOLD = {"device_name": "NVIDIA A100-SXM4-80GB", "cores": [0, 1, 2, 5], "threads": 1}


def shown(**changes):
    machine = SHOWN | changes
    return tables(machine, check_environment(ON_GPUS, machine, machine["dual"]))


def test_no_table_is_wider_than_a_terminal():
    processes = [process | TOLD for process in on_gpus("GPU-7b4c1b2e-54c6-4b2f-9a47-9d5f6f0f2c11", "GPU-8")]
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    text = shown(
        host="a-host-with-a-rather-long-name.cluster.example",
        torch=TORCH | {"architectures": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]},
        gpus=[GPU | {"name": "NVIDIA A100-SXM4-80GB"}, {"index": 1, "error": error}],
        dual=ON_CPU | {"device": "cuda", "backend": "nccl", "processes": processes},
    )
    assert max(map(len, text.splitlines())) <= 100, text
    for part in ("7b4c1b2e-54c6", "0-2,5", "120, 48", "exactly", "ECC", "gpu_1", "fail"):
        assert part in text


def test_tables_stand_there_only_where_there_is_something_to_show():
    machine = SHOWN | {"torch": TORCH | CPU_BUILD, "gpus": []}
    text = tables(machine, check_environment(tiny_experiment(), machine))
    assert "capability" not in text
    assert "sums" not in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("memory ")] == [
        ["memory", "24.0"],
        ["memory", "pass"],
    ]


def test_what_is_needed_is_shown_beside_what_is_free():
    [line] = [line for line in shown().splitlines() if line.startswith("disk")]
    assert line.split("pass")[1].strip() == "100.0 GiB free, at least 66 MiB needed"


def test_facts_in_words():
    assert facts_shown(SHOWN) == {
        "host": "a-host",
        "system": "Python 3.11.7, Linux-6.1.0-18-amd64-x86_64-with-glibc2.36",
        "packages": "all 2 as in envs/requirements.lock",
        "torch": "2.13.0, CUDA 13.0, cuDNN 91900, for sm_80, sm_90; gloo, NCCL 2.28.9",
        "CPU": "AMD EPYC 7763 64-Core Processor; 2 cores for this process",
        "memory": "24.0 GiB, 20.0 GiB available",
        "/dev/shm": "8.0 GiB free",
        "results": "results/tiny, 100.0 GiB free, locks: work",
        "driver": "NVIDIA 580.95",
    }


@pytest.mark.parametrize(
    ("changes", "item", "text"),
    [
        ({"torch": {"error": "ImportError: no"}}, "torch", "ImportError: no"),
        ({"torch": TORCH | CPU_BUILD}, "torch", "2.13.0, built without CUDA; gloo, no NCCL"),
        ({"torch": TORCH | {"cuda": None, "hip": "6.4"}}, "torch", "2.13.0, built for HIP 6.4; gloo, NCCL 2.28.9"),
        ({"cores": 1, "cores_of_group": 0.5}, "CPU", "1 core for this process, limited to 0.5 by its cgroup"),
        (
            {"memory_of_group_bytes": 4 * GIB, "memory_left_in_group_bytes": GIB},
            "memory",
            "24.0 GiB, 20.0 GiB available; the cgroup's limit is 4.0 GiB, of which 1.0 GiB are left",
        ),
        ({"groups_known": False}, "memory", "whether a cgroup limits it is not known"),
        ({"shared_memory_free_bytes": None}, "/dev/shm", "free space not known"),
        ({"driver": None, "cuda_visible_devices": ""}, "driver", "no NVIDIA driver; CUDA_VISIBLE_DEVICES is ''"),
    ],
)
def test_facts_that_are_not_as_usual(changes, item, text):
    assert text in facts_shown(SHOWN | changes)[item]


def test_packages_that_are_not_those_of_the_lock_are_named():
    packages = {
        "torch": {"installed": "2.9", "locked": "2.13.0"},
        "tqdm": {"installed": None, "locked": "4.70.1"},
        "numpy": {"installed": "2.4.6", "locked": "2.4.6"},
    }
    assert facts_shown(SHOWN | {"packages": packages})["packages"] == (
        "1 of 3 as in envs/requirements.lock; torch 2.9 (2.13.0), tqdm missing (4.70.1)"
    )


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([0, 2, 3, 4, 9], "0,2-4,9")])
def test_cores_in_few_letters(numbers, text):
    assert ranges(numbers) == text
