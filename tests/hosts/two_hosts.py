"""Two hosts made of this machine: network namespaces with a host name of their own, joined by a pair of interfaces.

They share the file system, as hosts with a common results folder do, and nothing else by which ranks find each other.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAMES = ("host0", "host1")
MASTER_ADDR = "10.77.0.1"
ENTER = 'hostname "$0" && exec "$@"'


def missing() -> str | None:
    """Why there can be no two hosts here."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    try:
        with two_hosts():
            return None
    except FileNotFoundError:
        return "the command `ip` is missing (Debian: apt-get install iproute2)"
    except subprocess.CalledProcessError as error:
        return f"this machine allows no network namespaces: {error.stderr.strip()}"


@dataclass(frozen=True)
class TwoHosts:
    """`namespaces`: by host."""

    namespaces: tuple[str, str]

    def start(
        self, host: int, command: Sequence[str], output: Path, environment: Mapping[str, str], folder: Path
    ) -> subprocess.Popen[bytes]:
        """The command on a host, in `folder`; what it says goes to the file `output`."""
        inside = ["ip", "netns", "exec", self.namespaces[host], "unshare", "--uts", "sh", "-c", ENTER, NAMES[host]]
        with open(output, "ab") as stream:
            return subprocess.Popen([*inside, *command], cwd=folder, env=environment, stdout=stream, stderr=stream)

    def cut(self) -> None:
        """From now on, nothing gets through; neither side is told."""
        _ip("-n", self.namespaces[1], "link", "set", "veth1", "down")

    def mend(self) -> None:
        _ip("-n", self.namespaces[1], "link", "set", "veth1", "up")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """What still runs on them at the end of the block is killed."""
    hosts = TwoHosts((f"ddp-{os.getpid()}-0", f"ddp-{os.getpid()}-1"))
    try:
        for namespace in hosts.namespaces:
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        first, second = hosts.namespaces
        _ip("link", "add", "veth0", "netns", first, "type", "veth", "peer", "name", "veth1", "netns", second)
        for number, namespace in enumerate(hosts.namespaces):
            _ip("-n", namespace, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"veth{number}")
            _ip("-n", namespace, "link", "set", f"veth{number}", "up")
        yield hosts
    finally:
        for namespace in hosts.namespaces:
            _remove(namespace)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _remove(namespace: str) -> None:
    try:
        inside = _ip("netns", "pids", namespace).split()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return
    subprocess.run(["kill", "-KILL", *inside], check=False, capture_output=True)
    _ip("netns", "del", namespace)


def variables(host: int, ranks: int, source: Path, **more: str) -> dict[str, str]:
    """By which the same command knows its place on each host. `source`: the folder src of the checkout that runs."""
    paths = {"PYTHONPATH": f"{source}{os.pathsep}{source.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
    own = {"NODE_RANK": str(host), "NPROC_PER_NODE": str(ranks), "MASTER_ADDR": MASTER_ADDR}
    return os.environ | paths | own | more


def launched(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ddp_tokens.hosts", *arguments]
