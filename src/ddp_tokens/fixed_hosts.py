"""torch's c10d rendezvous for hosts that are there from the beginning to the end.

torch asks its store all the time whether another host wants to join, and once more when it leaves. From a host that has
been cut off these questions take minutes, in which the launcher does not notice that its ranks have ended.
"""

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

BACKEND = "c10d_fixed_hosts"


class FixedHosts(RendezvousHandler):
    def __init__(self, meeting: RendezvousHandler) -> None:
        self._meeting = meeting

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return bool(self._meeting.use_agent_store)

    def next_rendezvous(self) -> RendezvousInfo:
        return self._meeting.next_rendezvous()

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return str(self._meeting.get_run_id())

    def shutdown(self) -> bool:
        return True


def register() -> None:
    """For `torchrun --rdzv-backend` in this process."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    backend, store = create_backend(parameters)
    return FixedHosts(create_handler(store, backend, parameters))
