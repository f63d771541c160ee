"""torch's two rendezvous, for hosts that are there from the beginning to the end, and within a time limit.

With c10d torch asks its store all the time whether another host wants to join, and once more when it leaves. From a
host that has been cut off that takes minutes, in which the launcher does not notice that its ranks have ended.
Neither rendezvous keeps its time limit: they try again, and where another program has the port, they wait for ever.
"""

import os
import sys
from collections.abc import Callable
from threading import Event, Thread

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler

OF_TORCH = ("static", "c10d")


def backend_for(of_torch: str) -> str:
    return f"{of_torch}_fixed_hosts"


class FixedHosts(RendezvousHandler):
    def __init__(self, meeting: RendezvousHandler, backend: str, met: Event) -> None:
        self._meeting, self._backend, self._met = meeting, backend, met

    def get_backend(self) -> str:
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        return bool(self._meeting.use_agent_store)

    def next_rendezvous(self) -> RendezvousInfo:
        found = self._meeting.next_rendezvous()
        self._met.set()
        return found

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


def register(met: Event) -> None:
    """For `torchrun --rdzv-backend` in this process, once. `met` is set when all hosts have met."""

    def created(parameters: RendezvousParameters) -> RendezvousHandler:
        return FixedHosts(_of_torch(parameters), parameters.backend, met)

    for of_torch in OF_TORCH:
        rendezvous_handler_registry.register(backend_for(of_torch), created)


def _of_torch(parameters: RendezvousParameters) -> RendezvousHandler:
    if parameters.backend == backend_for("static"):
        parameters.config["rank"] = int(parameters.config["rank"])
        return create_rdzv_handler(parameters)
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


def end_unless(met: Event, within_s: float, say: Callable[[], str], exit_code: int) -> None:
    """End this process in time, in a thread of its own: torch's C++ may not come back."""

    def wait() -> None:
        if not met.wait(within_s):
            sys.stderr.write(f"{say()}\n")
            sys.stderr.flush()
            os._exit(exit_code)

    Thread(target=wait, name="meeting", daemon=True).start()
