"""What torchrun is told of the hosts. Real hosts are in tests/hosts."""

import socket
import subprocess
import sys

import pytest

from ddp_tokens import hosts as module
from ddp_tokens.errors import LaunchError
from ddp_tokens.fixed_hosts import backend_for
from ddp_tokens.hosts import (
    SLURM_PORTS,
    Hosts,
    first_node,
    hosts_from,
    main,
    module_and_arguments,
    not_met,
    of_slurm_step,
    require_known,
    torchrun_arguments,
    use_interface_of,
)

STEP = {
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_JOB_ID": "12003",
    "SLURM_LOCALID": "0",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3",
}


def test_the_defaults_are_those_that_are_documented():
    assert hosts_from({}) == Hosts(
        nnodes=2,
        nproc_per_node=4,
        node_rank=0,
        master_addr="127.0.0.1",
        master_port=12355,
        rdzv_backend="static",
        rdzv_timeout_s=600,
    )
    for name, field in Hosts.model_fields.items():
        assert f"{name.upper():<17}{field.default:<11}" in module.__doc__


def test_variables_win():
    given = {"NNODES": "3", "NPROC_PER_NODE": "1", "NODE_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert hosts_from(given | {"RDZV_BACKEND": "c10d", "RDZV_TIMEOUT_S": "9"}) == Hosts(
        nnodes=3, nproc_per_node=1, node_rank=2, master_addr="a", master_port=1, rdzv_backend="c10d", rdzv_timeout_s=9
    )


WHOLE = "a whole number from 1 is needed"
WRONG = {
    "NNODES": ["two", "0", "-1", "", "1:2", WHOLE],
    "NPROC_PER_NODE": ["auto", "0", "", "1.5", WHOLE],
    "RDZV_TIMEOUT_S": ["soon", "0", WHOLE],
    "NODE_RANK": ["-1", "first", "", "a whole number from 0 is needed"],
    "MASTER_ADDR": ["", "two words", "an address or the name of the host with NODE_RANK 0 is needed"],
    "MASTER_PORT": ["0", "65536", "http", "a port from 1 to 65535 is needed"],
    "RDZV_BACKEND": ["etcd", "", "static or c10d is needed"],
}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [(name, value, wanted) for name, (*values, wanted) in WRONG.items() for value in values],
)
def test_a_wrong_value_is_one_sentence(name, value, wanted):
    with pytest.raises(LaunchError) as raised:
        hosts_from({name: value})
    assert str(raised.value) == f"{name} is '{value}': {wanted}"


def test_every_variable_has_a_wrong_value_above():
    assert set(WRONG) == {name.upper() for name in Hosts.model_fields}


def test_a_host_beyond_the_last_is_refused():
    with pytest.raises(LaunchError, match=r"^NODE_RANK is 2 and NNODES 2: hosts are numbered from 0 to 1$"):
        hosts_from({"NODE_RANK": "2"})


def test_the_second_host_needs_the_address_of_the_first():
    with pytest.raises(LaunchError, match=r"^MASTER_ADDR is not set: on the host with NODE_RANK 1 it must be"):
        hosts_from({"NODE_RANK": "1"})
    assert hosts_from({"NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1"}).node_rank == 1  # two on one machine


def test_in_a_slurm_step_all_but_the_ranks_is_known(monkeypatch):
    monkeypatch.setattr(module, "first_node", lambda names: "n1" if names == "n[1-2]" else None)
    found = hosts_from(STEP | {"NPROC_PER_NODE": "1"})
    assert (found.nnodes, found.node_rank, found.master_addr) == (2, 1, "n1")
    assert found.master_port == SLURM_PORTS[3] == 20003  # 12003 modulo 12000 ports
    assert hosts_from(STEP | {"MASTER_PORT": "5"}).master_port == 5


def test_where_nodes_are_no_names_of_hosts_the_step_came_from_the_first(monkeypatch):
    monkeypatch.setattr(module, "first_node", lambda names: None)
    assert of_slurm_step(STEP)["master_addr"] == "10.1.2.3"
    assert "master_addr" not in of_slurm_step(STEP | {"SLURM_LAUNCH_NODE_IPADDR": ""})


def test_outside_of_a_step_slurm_says_nothing():
    assert of_slurm_step({name: value for name, value in STEP.items() if name != "SLURM_NODEID"}) == {}


def test_two_tasks_of_a_step_on_one_host_are_refused():
    with pytest.raises(LaunchError, match="more than one task on this host: give it --ntasks-per-node=1"):
        hosts_from(STEP | {"SLURM_LOCALID": "1"})


@pytest.mark.parametrize(
    ("shown", "first"),
    [("127.0.0.1\n127.0.0.2\n", "127.0.0.1"), ("no.such.host.invalid\n", None), ("", None)],
)
def test_the_first_node_counts_where_its_name_leads_to_a_host(monkeypatch, shown, first):
    done = subprocess.CompletedProcess([], 0, stdout=shown)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: done)
    assert first_node("n[1-2]") == first


def test_no_first_node_is_known_without_slurms_commands(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert first_node("n[1-2]") is None


def test_what_torchrun_is_told():
    hosts = Hosts(node_rank=1, master_addr="a", master_port=5, rdzv_timeout_s=9)
    static = torchrun_arguments(hosts, "10.0.0.2", has_master_addr=False)
    assert static == [
        "--nnodes=2",
        "--nproc-per-node=4",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        "--local-addr=10.0.0.2",
        f"--rdzv-backend={backend_for('static')}",
        "--rdzv-id=ddp_tokens",
        "--rdzv-endpoint=a:5",
        "--rdzv-conf=rank=1,timeout=9",
    ]
    c10d = torchrun_arguments(hosts.model_copy(update={"rdzv_backend": "c10d"}), None, has_master_addr=False)
    assert f"--rdzv-backend={backend_for('c10d')}" in c10d
    assert c10d[-1] == "--rdzv-conf=join_timeout=9,read_timeout=9,is_host=0"


@pytest.mark.parametrize(("node_rank", "has_it", "is_host"), [(0, True, 1), (1, True, 0), (0, False, 0)])
def test_with_c10d_the_store_is_on_the_host_that_has_the_address_and_there_on_the_first(node_rank, has_it, is_host):
    hosts = Hosts(rdzv_backend="c10d", node_rank=node_rank)
    assert torchrun_arguments(hosts, None, has_it)[-1].endswith(f",is_host={is_host}")


def test_gloo_is_told_the_interface_unless_the_user_has_said_it():
    environment = {}
    use_interface_of("127.0.0.1", environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo"}
    environment["GLOO_SOCKET_IFNAME"] = "eth7"
    use_interface_of("127.0.0.1", environment)
    assert environment == {"GLOO_SOCKET_IFNAME": "eth7"}
    use_interface_of(None, environment := {})
    assert environment == {}


def test_arguments_are_those_of_training_unless_another_module_is_named():
    assert module_and_arguments(["--config", "a"]) == ("ddp_tokens.train", ["--config", "a"])
    assert module_and_arguments(["-m", "ddp_tokens.gradients", "-m"]) == ("ddp_tokens.gradients", ["-m"])
    with pytest.raises(LaunchError, match="-m needs the name of a module"):
        module_and_arguments(["-m"])


def test_what_is_said_when_hosts_do_not_meet():
    assert not_met(Hosts(node_rank=1, master_addr="a")) == (
        "within 600 s (RDZV_TIMEOUT_S) not all of 2 hosts (NNODES) have met at a:12355 (MASTER_ADDR:MASTER_PORT); this "
        "one has NODE_RANK 1: start the same command on each, with another NODE_RANK from 0, address and a free "
        "port of the host with NODE_RANK 0, and see that no firewall is between"
    )


def test_the_name_of_no_host_is_refused_at_once():
    with pytest.raises(LaunchError, match=r"MASTER_ADDR is 'no.such.host.invalid', which is the name of no host"):
        require_known("no.such.host.invalid")
    require_known("127.0.0.1")


def test_another_program_that_has_the_port_is_not_waited_for_longer_than_the_limit():
    """It takes connections and says nothing: torch's own limit would not end this."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        own = {"NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(silent.getsockname()[1])}
        done = subprocess.run(
            [sys.executable, "-m", "ddp_tokens.hosts", "--config", "x"],
            env={"PYTHONPATH": ":".join(sys.path), "RDZV_TIMEOUT_S": "2"} | own,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("ddp_tokens")]
    assert len(said) == 2, done.stderr
    assert said[0].startswith("ddp_tokens.hosts: NODE_RANK 1, 4 ranks here (NPROC_PER_NODE), meeting 1 other at 127.0.")
    assert said[1].startswith("ddp_tokens.hosts: within 2 s (RDZV_TIMEOUT_S) not all of 2 hosts (NNODES) have met at")


def test_help_lists_the_variables(capsys):
    assert main(["--help"]) == 0
    assert "RDZV_TIMEOUT_S" in capsys.readouterr().out


def test_a_port_that_is_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "ddp_tokens.hosts", "--config", "x"],
            env={"NNODES": "1", "NPROC_PER_NODE": "1", "MASTER_PORT": port, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"ddp_tokens.hosts: MASTER_PORT {port} is in use on this host: set another, the same on all hosts"
    )
    assert "Traceback" not in done.stderr
