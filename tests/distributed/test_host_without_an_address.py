"""A host whose own name has no address: common in containers, and on clusters with an incomplete /etc/hosts."""

import os
import shlex
import socket
import subprocess
import sys

import pytest

from ddp_tokens.workflow import Experiments

NAME = "no-address-of-this-name"
MODULE = """
import os, socket, sys
from ddp_tokens.distributed import process_group, sum_over_ranks

def main(arguments):
    with process_group("gloo", 60):
        [total] = sum_over_ranks([float(os.environ["RANK"]) + 1])
    sys.stdout.write(f"rank {os.environ['RANK']} on {socket.gethostname()}: {total}\\n")  # in one piece: ranks share it
    return 0

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
TIME_LIMIT_S = 100  # with the host's name, torch tries for 300


@pytest.fixture(params=["fork", "torchrun", "spawn"])
def launch(request, tmp_path, monkeypatch):
    """As the rules start two ranks."""
    (tmp_path / "config").mkdir()
    for name in ("some", "controls", "exercise"):
        (tmp_path / "config" / f"{name}.yaml").write_text(f"launcher: {request.param}\n")
    monkeypatch.chdir(tmp_path)
    return shlex.split(Experiments({"experiments": ["some"]}, ["results/some/x"]).launch("some"))


def test_ranks_meet_all_the_same(launch, tmp_path):
    (tmp_path / "ranks.py").write_text(MODULE)
    named = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c", f'hostname {NAME} && exec "$@"', "sh"]
    possible = subprocess.run([*named, "true"], capture_output=True, text=True)
    if possible.returncode:
        pytest.skip(f"this machine gives no process another host name: {possible.stderr.strip()}")
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(NAME, 1)

    program = [sys.executable, "-m", "torch.distributed.run"] if launch[0] == "torchrun" else [sys.executable]
    done = subprocess.run(
        [*named, *program, *launch[1:], "-m", "ranks"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} on {NAME}: 3.0" for rank in range(2)]  # 1 + 2
