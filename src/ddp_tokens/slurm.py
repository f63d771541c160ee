"""What jobs ask of SLURM, through Snakemake's executor plugin, and how one starts the ranks of several hosts. No torch.

Names of resources are those of snakemake-executor-plugin-slurm; other executors, the local one too, do not look at them
apart from `gpu`, which `--resources gpu=N` limits.
"""

from ddp_tokens.config import Experiment
from ddp_tokens.errors import LaunchError

PROFILE = "profiles/slurm"
# As the resource `mpi`: without it the plugin would run the whole job as one step on one host.
STEP = "srun"
Resources = dict[str, int | str]


def launch_on_hosts(experiment: Experiment) -> str:
    """One task per host, each of which starts its host's ranks. A step does not inherit its job's --cpus-per-task."""
    step = f"{STEP} --nodes={experiment.nodes} --ntasks-per-node=1 --cpus-per-task={cores_per_host(experiment)}"
    settings = f"NPROC_PER_NODE={experiment.ranks_per_node} RDZV_TIMEOUT_S={experiment.rendezvous_timeout_s}"
    return f"{step} env {settings} python -m ddp_tokens.hosts"


def cores_per_host(experiment: Experiment) -> int:
    return experiment.ranks_per_node * (experiment.threads_per_rank + experiment.workers)


def resources_of_ranks(experiment: Experiment) -> Resources:
    """Of a job that starts the ranks of a run. What is not in it is not asked for; `mpi` makes it an MPI job."""
    gpus = experiment.resolved_gpus_per_node
    asked: Resources = {"cpus_per_task": cores_per_host(experiment)}
    if experiment.nodes == 1:
        return asked | _gpus_of_one_host(gpus)
    hosts: Resources = {"nodes": experiment.nodes, "tasks": experiment.nodes, "mpi": STEP}
    # `gpu` would be a number for all hosts together, and the plugin would take `tasks` as a number for each GPU.
    of_each: Resources = {"gres": f"gpu:{gpus}", "tasks_per_gpu": 0} if gpus else {}
    return asked | hosts | of_each


def resources_of_one_process(experiment: Experiment) -> Resources:
    """Of a job that computes with tensors in one process, where the experiment's device is."""
    return _gpus_of_one_host(1 if experiment.device == "cuda" else 0)


def resources_of_environment(experiment: Experiment) -> Resources:
    """Of the job that looks at one host: what the ranks of a run have of it."""
    return {"cpus_per_task": cores_per_host(experiment)} | _gpus_of_one_host(experiment.resolved_gpus_per_node)


def _gpus_of_one_host(gpus: int) -> Resources:
    """Without `nodes`, SLURM may give GPUs of several hosts."""
    return {"gpu": gpus, "nodes": 1} if gpus else {"gpu": 0}


def resources_to_measure(experiment: Experiment) -> Resources:
    """Of the rule `scaling`, whose times are worth nothing where others use the same host."""
    return {
        "cpus_per_task": max(experiment.measured_processes) * experiment.threads_per_rank,
        "slurm_extra": "--exclusive",
    }


def require_engine(experiment: Experiment, is_submitted: bool) -> None:
    """Raises LaunchError where the ranks belong on several hosts and Snakemake would start them on this one."""
    if experiment.nodes > 1 and not is_submitted:
        raise LaunchError(
            f"{experiment.name}: nodes is {experiment.nodes}, and this call starts ranks on one host only: set nodes "
            f"to 1, let SLURM start them (snakemake --profile {PROFILE}), or start each step by hand on every host "
            "(python -m ddp_tokens.hosts --help)"
        )
