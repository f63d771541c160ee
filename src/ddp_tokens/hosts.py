"""torchrun on several hosts: one command, given on each of them; what differs stands in the environment.

    NNODES=2 NPROC_PER_NODE=4 NODE_RANK=0 MASTER_ADDR=10.0.0.1 python -m ddp_tokens.hosts --config config/minimum.yaml

Arguments go on to ddp_tokens.train, or after `-m MODULE` to that module. Variables, and what they are by default:

    NNODES           2          number of hosts
    NPROC_PER_NODE   4          ranks on each host
    NODE_RANK        0          which of the hosts this is, from 0
    MASTER_ADDR      127.0.0.1  address of the host with NODE_RANK 0, as the others reach it
    MASTER_PORT      12355      a free port of that host, the same on all hosts
    RDZV_BACKEND     static     c10d: torchrun numbers the hosts by itself, and NODE_RANK can stay 0 on all
    RDZV_TIMEOUT_S   600        seconds in which all hosts must have come

Inside a SLURM step (srun, one task per host) all but NPROC_PER_NODE come from the step where they are not set.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from threading import Event
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from ddp_tokens.errors import LaunchError
from ddp_tokens.launch import QUIETER, SILENCED_LOGGERS, name_killed_ranks, pass_on
from ddp_tokens.machine import interface_of, is_own_address, own_address_towards
from ddp_tokens.options import USER_ERROR, run_as_program
from ddp_tokens.setting_types import NonNegative, Positive
from ddp_tokens.stopping import SIGNALLED
from ddp_tokens.watching import end_with, snakemake_of

PROGRAM = "ddp_tokens.hosts"
TRAIN = "ddp_tokens.train"
# At the end of a run that went well, the host with the store may leave first, which the others would tell at length.
OF_AGENT = "torch.distributed.elastic.agent.server.api"
INTERFACE = "GLOO_SOCKET_IFNAME"
THIS_HOST = "127.0.0.1"
# As torchrun sets it, with a page about it.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Jobs that share a host get ports of their own from the number of the job: above those of well-known services, below
# those that Linux gives to outgoing connections.
SLURM_PORTS = range(20000, 32000)
SLURM_STEP = ("SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_LOCALID")


class Hosts(BaseModel):
    """What torchrun is told of the hosts. The names are those of the variables, in small letters."""

    nnodes: Positive = 2
    nproc_per_node: Positive = 4
    node_rank: NonNegative = 0
    master_addr: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] = THIS_HOST
    master_port: Annotated[int, Field(ge=1, le=65535)] = 12355
    rdzv_backend: Literal["static", "c10d"] = "static"
    rdzv_timeout_s: Positive = 600


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments[:1]):
        print(__doc__)
        return 0
    module, rest = module_and_arguments(arguments)
    hosts = hosts_from(os.environ)
    own_address = own_address_towards(hosts.master_addr)
    if hosts.nnodes > 1:
        require_known(hosts.master_addr)
        use_interface_of(own_address, os.environ)
    for name, value in (ONE_THREAD | QUIETER).items():
        os.environ.setdefault(name, value)
    end_with(snakemake_of(os.environ), first=lambda: os.kill(os.getpid(), signal.SIGTERM))
    if hosts.nnodes > 1:
        ranks = f"{hosts.nproc_per_node} rank{'s' if hosts.nproc_per_node > 1 else ''} here (NPROC_PER_NODE)"
        where = f"meeting {hosts.nnodes - 1} other at {place_of(hosts)} within {hosts.rdzv_timeout_s} s"
        print(f"{PROGRAM}: NODE_RANK {hosts.node_rank}, {ranks}, {where}", file=sys.stderr, flush=True)
    own = torchrun_arguments(hosts, own_address, is_own_address(hosts.master_addr))
    return run(hosts, [*own, "-m", module, *rest])


def module_and_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    if arguments[:1] != ["-m"]:
        return TRAIN, list(arguments)
    if len(arguments) < 2:
        raise LaunchError("-m needs the name of a module, such as ddp_tokens.gradients")
    return arguments[1], list(arguments[2:])


def hosts_from(environment: Mapping[str, str]) -> Hosts:
    """Raises LaunchError, naming the variable, where one is wrong, or is missing and has no default that can work."""
    given = of_slurm_step(environment) | {
        name: environment[name.upper()] for name in Hosts.model_fields if name.upper() in environment
    }
    try:
        hosts = Hosts.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise LaunchError(f"{name.upper()} is '{given[name]}': {_wanted(name)}") from None
    if hosts.rdzv_backend == "static" and hosts.node_rank >= hosts.nnodes:
        raise LaunchError(
            f"NODE_RANK is {hosts.node_rank} and NNODES {hosts.nnodes}: hosts are numbered from 0 to {hosts.nnodes - 1}"
        )
    if hosts.node_rank > 0 and "master_addr" not in given:
        raise LaunchError(
            f"MASTER_ADDR is not set: on the host with NODE_RANK {hosts.node_rank} it must be the address of the host "
            f"with NODE_RANK 0 ({THIS_HOST}, the default, is this host)"
        )
    return hosts


def _wanted(name: str) -> str:
    return {
        "node_rank": "a whole number from 0 is needed",
        "master_addr": "an address or the name of the host with NODE_RANK 0 is needed",
        "master_port": "a port from 1 to 65535 is needed",
        "rdzv_backend": "static or c10d is needed",
    }.get(name, "a whole number from 1 is needed")


def of_slurm_step(environment: Mapping[str, str]) -> dict[str, str]:
    """By srun's variables: the step's nodes, this one's number, the first node, and a port that the job has alone.

    Raises LaunchError where a host has more than one task of the step.
    """
    if not all(environment.get(name) for name in SLURM_STEP):
        return {}
    nodes, node, names, job, task_on_host = (environment[name] for name in SLURM_STEP)
    if task_on_host != "0":
        raise LaunchError("srun started more than one task on this host: give it --ntasks-per-node=1")
    first = first_node(names) or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    port = SLURM_PORTS[int(job) % len(SLURM_PORTS)]
    return {"nnodes": nodes, "node_rank": node, "master_port": str(port)} | ({"master_addr": first} if first else {})


def first_node(names: str) -> str | None:
    """Of a list as SLURM writes it, n[1-2]; None where that is no name of a host, as where nodes share one machine."""
    try:
        shown = subprocess.run(["scontrol", "show", "hostnames", names], capture_output=True, text=True, check=True)
        first = shown.stdout.split()[0]
        socket.getaddrinfo(first, None)
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
    return first


def require_known(master: str) -> None:
    try:
        socket.getaddrinfo(master, None)
    except OSError:
        raise LaunchError(f"MASTER_ADDR is '{master}', which is the name of no host that is known here") from None


def use_interface_of(own_address: str | None, environment: MutableMapping[str, str]) -> None:
    """gloo takes the interface of the host's own name, which on many machines is 127.0.1.1, where no other host is."""
    interface = interface_of(own_address)
    if interface is not None:
        environment.setdefault(INTERFACE, interface)


def torchrun_arguments(hosts: Hosts, own_address: str | None, has_master_addr: bool) -> list[str]:
    """`own_address`: by which the host of rank 0 is told to the others; torchrun would take the host's name.
    `has_master_addr`: MASTER_ADDR is an address of this host; torchrun would look for it under the host's name.
    """
    waits = hosts.rdzv_timeout_s
    common = [
        f"--nnodes={hosts.nnodes}",
        f"--nproc-per-node={hosts.nproc_per_node}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        *([f"--local-addr={own_address}"] if own_address else []),
        f"--rdzv-backend={hosts.rdzv_backend}_fixed_hosts",  # see fixed_hosts, which imports torch
        "--rdzv-id=ddp_tokens",
        f"--rdzv-endpoint={hosts.master_addr}:{hosts.master_port}",
    ]
    if hosts.rdzv_backend == "static":
        return [*common, f"--rdzv-conf=rank={hosts.node_rank},timeout={waits}"]
    is_host = int(has_master_addr and hosts.node_rank == 0)
    return [*common, f"--rdzv-conf=join_timeout={waits},read_timeout={waits},is_host={is_host}"]


def run(hosts: Hosts, arguments: Sequence[str]) -> int:
    """torchrun in this process; its exit code is that of the first rank that failed. Raises LaunchError when the hosts
    do not meet.
    """
    from torch.distributed import DistNetworkError, DistStoreError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

    from ddp_tokens import fixed_hosts

    met = Event()
    fixed_hosts.register(met)
    fixed_hosts.end_unless(met, hosts.rdzv_timeout_s, lambda: f"{PROGRAM}: {not_met(hosts)}", USER_ERROR)
    signal.signal(signal.SIGUSR1, pass_on)  # torch's agent passes SIGTERM, SIGINT and SIGHUP on by itself
    for name in (*SILENCED_LOGGERS, OF_AGENT):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        torchrun.run(torchrun.parse_args(arguments))
    except ChildFailedError as error:
        name_killed_ranks(PROGRAM, {rank: failure.exitcode for rank, failure in error.failures.items()})
        return max(1, int(error.get_first_failure()[1].exitcode))
    except SignalException as stop:
        return SIGNALLED + int(stop.sigval)
    except (DistNetworkError, DistStoreError, RendezvousConnectionError, RendezvousTimeoutError) as error:
        if "EADDRINUSE" not in str(error):
            raise LaunchError(not_met(hosts)) from error
        taken = f"MASTER_PORT {hosts.master_port} is in use on this host: set another, the same on all hosts"
        raise LaunchError(taken) from error
    finally:
        met.set()
    return 0


def place_of(hosts: Hosts) -> str:
    return f"{hosts.master_addr}:{hosts.master_port} (MASTER_ADDR:MASTER_PORT)"


def not_met(hosts: Hosts) -> str:
    return (
        f"within {hosts.rdzv_timeout_s} s (RDZV_TIMEOUT_S) not all of {hosts.nnodes} hosts (NNODES) have met at "
        f"{place_of(hosts)}; this one has NODE_RANK {hosts.node_rank}: start the same command on each, with another "
        "NODE_RANK from 0, address and a free port of the host with NODE_RANK 0, and see that no firewall is between"
    )


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
