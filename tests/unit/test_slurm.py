"""What jobs ask of SLURM, by hand from the settings."""

import pytest

from ddp_tokens.errors import LaunchError
from ddp_tokens.slurm import (
    launch_on_hosts,
    require_engine,
    resources_of_environment,
    resources_of_one_process,
    resources_of_ranks,
    resources_to_measure,
)
from tests.helpers import tiny_experiment

TWO_HOSTS = {"nodes": 2, "tasks": 2, "mpi": "srun"}


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (
            {"nodes": 2},
            "srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 env NPROC_PER_NODE=1 RDZV_TIMEOUT_S=600",
        ),
        (
            {"nodes": 3, "world_size": 12, "threads_per_rank": 2, "workers": 1, "rendezvous_timeout_s": 9},
            "srun --nodes=3 --ntasks-per-node=1 --cpus-per-task=12 env NPROC_PER_NODE=4 RDZV_TIMEOUT_S=9",
        ),
    ],
)
def test_one_task_per_host_starts_the_ranks_of_its_host(settings, command):
    assert launch_on_hosts(tiny_experiment(**settings)) == f"{command} python -m ddp_tokens.hosts"


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, {"cpus_per_task": 2, "gpu": 0}),
        ({"world_size": 4, "threads_per_rank": 2, "workers": 1}, {"cpus_per_task": 12, "gpu": 0}),
        ({"device": "cuda"}, {"cpus_per_task": 2, "gpu": 2, "nodes": 1}),
        ({"device": "cuda", "backend": "gloo"}, {"cpus_per_task": 2, "gpu": 1, "nodes": 1}),
        ({"nodes": 2}, {"cpus_per_task": 1} | TWO_HOSTS),
        (
            {"nodes": 2, "world_size": 8, "device": "cuda"},
            {"cpus_per_task": 4, "gres": "gpu:4", "tasks_per_gpu": 0} | TWO_HOSTS,
        ),
        (
            {"nodes": 2, "world_size": 8, "device": "cuda", "backend": "gloo", "gpus_per_node": 3},
            {"cpus_per_task": 4, "gres": "gpu:3", "tasks_per_gpu": 0} | TWO_HOSTS,
        ),
    ],
)
def test_a_job_that_starts_ranks_asks_for_its_hosts_their_cores_and_gpus(settings, asked):
    assert resources_of_ranks(tiny_experiment(**settings)) == asked


def test_a_single_process_asks_for_a_gpu_where_it_computes_on_one():
    assert resources_of_one_process(tiny_experiment(nodes=2)) == {"gpu": 0}
    assert resources_of_one_process(tiny_experiment(device="cuda", world_size=4)) == {"gpu": 1, "nodes": 1}


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"threads_per_rank": 2, "workers": 1}, {"cpus_per_task": 6, "gpu": 0}),
        ({"device": "cuda", "nodes": 2, "world_size": 8}, {"cpus_per_task": 4, "gpu": 4, "nodes": 1}),
        ({"device": "cuda", "backend": "gloo"}, {"cpus_per_task": 2, "gpu": 1, "nodes": 1}),
    ],
)
def test_who_looks_at_a_host_has_of_it_what_the_ranks_of_a_run_have(settings, asked):
    assert resources_of_environment(tiny_experiment(**settings)) == asked


def test_what_is_measured_has_its_host_alone():
    """On 1, 2, 4 and world_size processes."""
    experiment = tiny_experiment(world_size=6, threads_per_rank=2, nodes=2)
    assert resources_to_measure(experiment) == {"cpus_per_task": 12, "slurm_extra": "--exclusive"}
    assert resources_to_measure(tiny_experiment())["cpus_per_task"] == 4


def test_several_hosts_need_an_engine():
    require_engine(tiny_experiment(), is_submitted=False)
    require_engine(tiny_experiment(nodes=2), is_submitted=True)
    with pytest.raises(LaunchError, match=r"tiny: nodes is 2.*set nodes to 1.*--profile profiles/slurm.*by hand"):
        require_engine(tiny_experiment(nodes=2), is_submitted=False)
