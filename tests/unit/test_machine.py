import os
import socket
import subprocess
import sys

import pytest

from ddp_tokens.machine import interface_of, is_own_address, name_of, own_address_towards, this_machine

NOWHERE = "192.0.2.1"  # RFC 5737: for documentation, no machine has it


def test_a_machine_is_its_name_the_boot_of_its_kernel_and_its_numbering_of_processes():
    name, boot, namespace = this_machine().split("/")
    assert name == name_of(this_machine()) == os.uname().nodename
    assert len(boot) == 36
    assert namespace.isdigit()


def test_a_container_with_the_name_of_its_host_is_another_machine():
    """There, process 1 is the command itself; on the host it is another process."""
    program = "import os; from ddp_tokens.machine import this_machine; print(os.getpid(), this_machine())"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program]
    inside = subprocess.run(command, capture_output=True, text=True)
    if inside.returncode and "unshare" in inside.stderr:
        pytest.skip(f"this machine makes no process namespaces: {inside.stderr.strip()}")
    number, machine = inside.stdout.split()
    assert number == "1"
    assert name_of(machine) == name_of(this_machine())
    assert machine != this_machine()


def test_towards_itself_a_machine_is_localhost():
    assert own_address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"


def test_no_address_is_known_towards_a_name_that_does_not_resolve():
    assert own_address_towards("no.such.host.invalid") is None
    assert interface_of(None) is None


def test_an_address_of_another_machine_is_not_its_own():
    assert is_own_address("127.0.0.1")
    assert not is_own_address(NOWHERE)
    assert not is_own_address("no.such.host.invalid")
    assert interface_of(NOWHERE) is None


@pytest.mark.parametrize("name", [name for _, name in socket.if_nameindex()])
def test_every_interface_can_be_asked(name):
    assert interface_of("0.0.0.0") is None  # none has it, and the question comes to each
