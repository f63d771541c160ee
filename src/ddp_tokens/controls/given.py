"""What variants of resumes and replicas are composed of: begin as a new process would, load, train, write."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_tokens.checkpoint import load
from ddp_tokens.config import Experiment
from ddp_tokens.controls.resume_cases import second_interruption
from ddp_tokens.inputs import Prepared
from ddp_tokens.layout import Layout
from ddp_tokens.run_files import write_run
from ddp_tokens.start import take_start
from ddp_tokens.train import Begun, begin
from ddp_tokens.trainer import train
from ddp_tokens.world import World


@dataclass(frozen=True)
class Given:
    """What every variant starts from. `identity`: what a checkpoint must agree with. `alter`: what a variant trains in
    place of the experiment's model and optimizer.
    """

    experiment: Experiment
    prepared: Prepared
    initial: Path
    identity: Mapping[str, Any]
    world: World
    alter: Callable[[Begun], Begun] = lambda begun: begun

    def begun(self) -> Begun:
        return self.alter(begin(self.experiment, self.prepared, self.initial, self.world))

    def resumed(self, checkpoint: Path) -> Begun:
        """A new process that has loaded the checkpoint, as it should."""
        begun = self.begun()
        load(checkpoint, begun.state, self.identity, self.world)
        return begun

    def finish(self, begun: Begun, run: Path, until: int | None = None) -> None:
        """Train to update `until`, by default the last, and write the run's folder."""
        start = take_start(begun.state, begun.when_seeded, self.world)
        last = self.experiment.steps if until is None else until
        plan, rows = self.prepared.plan, self.prepared.rows
        for _ in train(begun.model, begun.state, begun.workload, plan, rows, self.world, last, begun.how):
            pass
        write_run(run, begun.state, start, self.identity, self.world)


def three_runs(given: Given, at: Layout, forgotten: str | None = None) -> None:
    """`forgotten`: an extra that stays, in the resume, as a new process has built it."""
    given.finish(given.begun(), at.run("interrupt"), given.experiment.interrupt_at)
    given.finish(given.begun(), at.run("continuous"))
    begun = given.begun()
    of_a_new_run = {name: dict(part.state_dict()) for name, part in begun.state.extras.items()}
    load(at.checkpoint("interrupt", given.experiment.interrupt_at), begun.state, given.identity, given.world)
    if forgotten is not None:
        begun.state.extras[forgotten].load_state_dict(of_a_new_run[forgotten])
    given.finish(begun, at.run("resume"))


def interrupted_again(given: Given, interrupted: Path, at: Layout) -> Path:
    """Resume, and stop once more before the end: the checkpoint of the second interruption."""
    until = second_interruption(given.experiment)
    given.finish(given.resumed(interrupted), at.run("interrupt"), until)
    return at.checkpoint("interrupt", until)
