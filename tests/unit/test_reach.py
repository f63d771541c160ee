import socket
import time

from ddp_tokens import reach as module
from ddp_tokens.reach import ENDED, THERE, UNREACHABLE, address_of, listen_towards, reach


def test_a_process_is_there_while_it_listens_however_busy_it_is():
    with listen_towards("127.0.0.1") as listening:
        address = address_of(listening)
        assert [reach(address) for _ in range(300)] == [THERE] * 300  # nobody accepts
    assert reach(address) == ENDED


def test_who_has_no_way_to_the_others_does_not_listen():
    assert listen_towards("no.such.host.invalid") is None


def test_an_address_from_which_no_answer_comes_is_unreachable(monkeypatch):
    """A socket whose queue is full answers no more: to the caller, the network is silent."""
    monkeypatch.setattr(module, "ANSWERS_WITHIN_S", 0.2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        with socket.create_connection(deaf.getsockname(), 1):
            began = time.monotonic()
            assert reach(address_of(deaf)) == UNREACHABLE
            assert time.monotonic() - began >= 0.2
