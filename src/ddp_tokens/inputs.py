"""What every step with tensors starts from: the locked corpus, the plan, the initial weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from ddp_tokens.checkpoint_files import parts_of
from ddp_tokens.config import Experiment
from ddp_tokens.corpora.lock import ImageShape, Shape, read_corpus, require_same_source, shape_in
from ddp_tokens.corpora.objective import document_of, objective_of, require_same_objective, unit_in
from ddp_tokens.corpora.rows import Row
from ddp_tokens.document_plan import require_whole_documents
from ddp_tokens.errors import EvidenceError
from ddp_tokens.layout import Layout
from ddp_tokens.plan import Plan, dealt, equally_many_microbatches, read_plan
from ddp_tokens.steps import dump
from ddp_tokens.strategy_settings import FSDP2
from ddp_tokens.tensors import fits, load_weights, load_whole
from ddp_tokens.terms import counts_documents, require_unit, with_shares
from ddp_tokens.workloads import Workload, load, terms_of


@dataclass(frozen=True)
class Prepared:
    """`planned_for`: ranks that the plan was made for, where its windows are dealt to another number."""

    rows: Mapping[str, Row]
    lock: Mapping[str, Any]
    plan: Plan
    planned_for: int | None = None

    @property
    def shape(self) -> Shape | ImageShape:
        return shape_in(self.lock)

    @property
    def unit(self) -> str:
        """What counts once."""
        return unit_in(self.lock)

    @property
    def training_rows(self) -> int:
        return int(self.lock["counts"]["train"]["rows"])

    def windows_per_epoch(self, experiment: Experiment) -> int:
        """Of the plan, whoever computes its windows."""
        planned_for = self.planned_for or experiment.world_size
        return experiment.model_copy(update={"world_size": planned_for}).windows_per_epoch(self.training_rows)

    def for_ranks_of(self, strategy: str) -> Self:
        """As ranks that train by this strategy take the windows: under fsdp2, where every forward waits for all ranks,
        with equally many microbatches. References and checks keep to the plan: what is added sums nothing.
        """
        return replace(self, plan=equally_many_microbatches(self.plan)) if strategy == FSDP2 else self


def read_prepared(experiment: Experiment, at: Layout, repartitioned: bool = False) -> Prepared:
    """Raises CorpusError or PlanError when they are missing, altered, or made for other settings than this view's.

    `repartitioned`: the plan may have been made for another number of ranks; its windows are dealt to this one.
    """
    read, lock = read_corpus(at.rows, at.lock)
    settings = dump(experiment)
    rows = counted_for_terms(experiment, read, lock) if "workload" in settings else read
    if "corpus" in settings:
        require_same_source(experiment.corpus, lock, at.lock)
    if "unit" in settings:
        require_same_objective(objective_of(experiment), lock, at.lock)
    if repartitioned:
        any_size = {name: value for name, value in settings.items() if name != "world_size"}
        plan = read_plan(at.plan, lock["corpus_sha256"], any_size)
        return Prepared(rows, lock, dealt(plan, experiment.world_size), len(plan[0]))
    return Prepared(rows, lock, read_plan(at.plan, lock["corpus_sha256"], settings))


def counted_for_terms(experiment: Experiment, rows: Mapping[str, Row], lock: Mapping[str, Any]) -> Mapping[str, Row]:
    """The rows as a loss of several terms needs them. Raises WorkloadError where the objective has a unit besides,
    and CorpusError where documents cannot be counted.
    """
    terms = terms_of(load(experiment.workload))
    require_unit(terms, unit_in(lock))
    return with_shares(rows, terms)


def require_documents_of_terms(workload: Workload, prepared: Prepared) -> None:
    """Raises PlanError, naming the document, where a term counts documents and a window holds a part of one."""
    if counts_documents(terms_of(workload)):
        trained_on = (row for row in prepared.rows.values() if row.split == "train")
        require_whole_documents(prepared.plan, {row.id: document_of(row) for row in trained_on})


def require_initial(weights: Path) -> None:
    if not parts_of(weights):
        raise EvidenceError(f"{weights} does not exist: run reference first")


def initial_model(
    experiment: Experiment,
    workload: Workload,
    shape: Shape | ImageShape,
    weights: Path,
    device: str,
    dtype: torch.dtype,
) -> torch.nn.Module:
    """A model with the weights of a file, or of its parts by rank, never with "the same seed"."""
    require_initial(weights)
    model = workload.build_model(experiment.model, shape)
    tensors = load_whole(weights)
    if not fits(model, tensors):
        raise EvidenceError(f"{weights} does not fit the model of this experiment: run reference again")
    load_weights(model, tensors)
    return model.to(device=device, dtype=dtype)
