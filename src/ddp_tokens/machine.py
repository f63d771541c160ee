"""Which machine this is, and by which of its addresses another reaches it. Sends nothing. No torch."""

import fcntl
import os
import socket
import struct
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR of <linux/sockios.h>
LONGEST_INTERFACE = 15
ANY_PORT = 9  # connecting a datagram socket only looks up the route


@cache
def this_machine() -> str:
    """NAME/BOOT/NAMESPACE: where two agree, a process number means the same process.

    Machines may share a name, and containers may share the name and the kernel of their host, but number their own
    processes (pid_namespaces(7)).
    """
    namespace = os.readlink(PID_NAMESPACE).removeprefix("pid:[").removesuffix("]")
    return f"{socket.gethostname()}/{BOOT_ID.read_text().strip()}/{namespace}"


def name_of(machine: str) -> str:
    return machine.partition("/")[0]


def own_address_towards(host: str) -> str | None:
    """The IPv4 address under which `host` would see this machine; None where no way or no such name is known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, ANY_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def is_own_address(host: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
        return True


def interface_of(address: str | None) -> str | None:
    """The name of the network interface that has this IPv4 address."""
    if address is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:LONGEST_INTERFACE])
            try:
                found = fcntl.ioctl(any_socket, ADDRESS_OF_INTERFACE, request)
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None
