"""A real SLURM of two nodes, n1 and n2, on this machine, from Debian's packages slurm-wlm and munge.

All of it lies in one folder, with ports and a munge socket of its own: nothing of the machine is changed. SLURM's
commands find it by the programs in `bin`, since the plugin's job steps drop the variable SLURM_CONF.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr", "sshare")
NODES = ("n1", "n2")
MARK = "DDP_TOKENS_TEST_CLUSTER"  # in the environment of all that belongs to the cluster, its jobs too
UP_WITHIN_S = 60
ENDED_WITHIN_S = 60
CONF = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/task_prolog
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
GresTypes=gpu
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 RealMemory=8000 Gres=gpu:4
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# SLURM's own record of which task of which step ran where.
TASK_PROLOG = """\
#!/bin/sh
echo "$SLURM_JOB_ID ${{SLURM_STEP_ID:-batch}} $SLURMD_NODENAME" >> {folder}/tasks.txt
"""


def why_not() -> str | None:
    """What keeps this machine from having such a cluster, if anything does."""
    if os.geteuid() != 0:
        return "a local SLURM needs root"
    missing = [name for name in (*DAEMONS, "sbatch", "srun", "scontrol") if program(name) is None]
    if missing:
        return f"a local SLURM needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    running = [name for name in ("slurmctld", "slurmd") if is_running(name)]
    return f"{' and '.join(running)} already running on this machine" if running else None


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def is_running(name: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if path.read_text().strip() == name:
                return True
    return False


@dataclass(frozen=True)
class Cluster:
    folder: Path

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{before['PATH']}"
        return {**before, "PATH": path, MARK: str(self.folder)}

    def run(self, *command: str) -> str:
        environment = self.environment(os.environ)
        return subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def nodes_of_step(self, job: str) -> list[str]:
        """Of each task of the job's first step, the node that it ran on."""
        tasks = (line.split() for line in (self.folder / "tasks.txt").read_text().splitlines())
        return sorted(node for of_job, step, node in tasks if (of_job, step) == (job, "0"))

    def processes(self, job: str) -> Iterator[dict[str, str]]:
        """Environments of the processes of a job that run now."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                pairs = (line.partition("=") for line in path.read_text(errors="replace").split("\0"))
                found = {name: value for name, _, value in pairs}
                if found.get(MARK) == str(self.folder) and found.get("SLURM_JOB_ID") == job:
                    yield found


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """The cluster while the block runs. Whatever happens inside, nothing of it is left afterwards."""
    cluster = Cluster(folder)
    write_files(folder)
    conf, munge = str(folder / "slurm.conf"), folder / "munge"
    commands = {
        "munged": [f"--{name}={munge / path}" for name, path in MUNGE.items()] + ["--foreground", "--force"],
        "slurmctld": ["-D", "-c", "-f", conf],
        **{node: ["-D", "-f", conf, "-N", node] for node in NODES},
    }
    with ExitStack() as stack:
        stack.callback(kill_all_of, folder)
        processes = []
        for name, arguments in commands.items():
            output = stack.enter_context(open(folder / f"{name}.out", "w"))
            daemon = program("slurmd" if name in NODES else name)
            environment = cluster.environment(os.environ) | {"SLURM_CONF": conf}
            process = subprocess.Popen([str(daemon), *arguments], env=environment, stdout=output, stderr=output)
            stack.callback(stop, process)
            processes.append(process)
            if name == "munged":
                wait_until((munge / "socket").exists, UP_WITHIN_S, folder)
        wait_until(lambda: nodes_are_idle(cluster), UP_WITHIN_S, folder)
        stack.callback(cancel_all_jobs, cluster)
        yield cluster


MUNGE = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


def write_files(folder: Path) -> None:
    for name in ("state", "bin", "munge"):
        (folder / name).mkdir(parents=True)
    for number in range(4):
        (folder / f"gpu{number}").touch()
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=free_ports()))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-3]\n")
    write_program(folder / "task_prolog", TASK_PROLOG.format(folder=folder))
    for name in COMMANDS:
        text = f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {program(name)} "$@"\n'
        write_program(folder / "bin" / name, text)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def free_ports() -> list[int]:
    """One, and two that follow each other, as SLURM's list of nodes wants them."""
    while True:
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            first.bind(("127.0.0.1", 0))
            second.bind(("127.0.0.1", 0))
            ports = [first.getsockname()[1], second.getsockname()[1], second.getsockname()[1] + 1]
            with suppress(OSError, OverflowError):
                third.bind(("127.0.0.1", ports[2]))
                return ports


def nodes_are_idle(cluster: Cluster) -> bool:
    with suppress(subprocess.CalledProcessError):
        return cluster.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == str(len(NODES))
    return False


def wait_until(is_so: Callable[[], bool], within_s: float, folder: Path) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            said = "\n".join(
                f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.[ol][uo][tg]"))
            )
            raise TimeoutError(f"not within {within_s} s:\n{said}")
        time.sleep(0.1)


def cancel_all_jobs(cluster: Cluster) -> None:
    with suppress(subprocess.SubprocessError, TimeoutError):
        cluster.run("scancel", "--partition=debug")
        wait_until(lambda: not cluster.run("squeue", "--noheader").strip(), ENDED_WITHIN_S, cluster.folder)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_all_of(folder: Path) -> None:
    """What the daemons and jobs have left behind."""
    mark = f"{MARK}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
