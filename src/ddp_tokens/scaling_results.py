"""From what `measure` left in results/EXP/scaling to all that is read there. No torch."""

import logging

from ddp_tokens import scaling, scaling_rows
from ddp_tokens.checks.replicas import check_measured_replicas
from ddp_tokens.checks.verdict import Verdict, write_verdicts
from ddp_tokens.config import Experiment
from ddp_tokens.figures import outputs_of
from ddp_tokens.files import to_json, write_text
from ddp_tokens.layout import Layout
from ddp_tokens.scaling_figure import save_scaling
from ddp_tokens.scaling_further import further
from ddp_tokens.scaling_manifest import manifest, rounded
from ddp_tokens.step_figure import save_step_parts

CHECK = "measured_replicas"
log = logging.getLogger(__name__)


def write_results(experiment: Experiment, at: Layout) -> Verdict:
    """Table, figure, manifest, and the verdict on the replicas, which is returned and logged with what was learned.

    Raises EvidenceError when the measurements are missing, malformed or incomplete.
    """
    machine = scaling_rows.read_machine(at.machine)
    reduced = scaling.allreduces(scaling_rows.read_timings(at.timings), machine.steps)
    runs = scaling_rows.read_runs(at.runs_in_turn)
    scaling.require_all_runs(runs, experiment.measured_processes, experiment.scaling.repeats)
    points = scaling.points(runs, reduced, machine)
    replicas = check_measured_replicas([at.measured_state(rank) for rank in range(experiment.world_size)])
    parts = scaling_rows.read_step_parts(at.step_parts)
    reached = scaling_rows.read_reached(at.time_to_accuracy)
    found = manifest(experiment, machine, points, reduced, replicas)
    found |= {name: rounded(value) for name, value in further(parts, reached, experiment.scaling.accuracy).items()}
    write_verdicts(at.scaling / "replicas.json", CHECK, [replicas])
    write_text(at.scaling / "scaling.csv", scaling.table(points))
    save_scaling(points, machine, outputs_of(at.scaling / "scaling"))
    save_step_parts(parts, outputs_of(at.scaling / "step_parts"))
    write_text(at.scaling / "manifest.json", to_json(found, sort_keys=False))  # a reader meets the lab's fields first
    log.info(sentence(replicas))
    log.info(found["lesson_notes"])
    return replicas


def sentence(replicas: Verdict) -> str:
    bits = {True: "bit-equal", False: "not bit-equal", None: "one rank alone"}[replicas.observed["bit_equal"]]
    return f"replicas: {replicas.outcome}, {bits}, largest difference {replicas.observed['max_abs_difference']:.3g}"
