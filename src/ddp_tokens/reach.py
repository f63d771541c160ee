"""Whether a rank on another host is still there: each rank listens, and who waits for it in vain tries to connect.

Nobody accepts: the kernel answers for a process that is busy, refuses for one that has ended, and where the network is
cut, nothing answers. No torch.
"""

import socket

from ddp_tokens.machine import own_address_towards

THERE, ENDED, UNREACHABLE = "there", "ended", "unreachable"
ANSWERS_WITHIN_S = 2.0


def listen_towards(master: str) -> socket.socket | None:
    """A socket on the address by which other hosts reach this one; None where there is none."""
    own = own_address_towards(master)
    if own is None:
        return None
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((own, 0))
    listening.listen(socket.SOMAXCONN)
    return listening


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"{host}:{port}"


def reach(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWERS_WITHIN_S):
            return THERE
    except (ConnectionRefusedError, ConnectionResetError):
        return ENDED
    except OSError:
        return UNREACHABLE
