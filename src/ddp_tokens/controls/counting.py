"""What counts once in a case of the controls, and by how much; rows that have documents, weights, or are packed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddp_tokens.corpora.objective import Objective, weights_of_documents
from ddp_tokens.corpora.rows import Criterion, Row
from ddp_tokens.objective_settings import DOCUMENT, TOKEN
from ddp_tokens.plan import Plan
from ddp_tokens.window_facts import WindowFacts, window_facts

WEIGHTS = (0.0, 0.25, 0.7, 1.0, 3.0)


@dataclass(frozen=True)
class Counting:
    """`documents`: rows are in turn parts of so many; `packed`: every row holds two sequences; `weighted`: every
    position has a weight of its own, some 0. `several`: the loss has the terms of controls.term_cases.
    """

    unit: str = TOKEN
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    documents: int = 0
    packed: bool = False
    weighted: bool = False
    several: bool = False

    @property
    def scored(self) -> int:
        """Supervised tokens of the row that is not trained on: so many that not all can have the weight 0."""
        return 1 if self == COUNTED_BY_TOKEN else 8

    @property
    def objective(self) -> Objective:
        return Objective(self.unit, Criterion(self.class_weights, self.label_smoothing))

    @property
    def settings(self) -> dict[str, Any]:
        """Of the experiment."""
        return {"unit": self.unit, **vars(self.objective.criterion)}

    def applied(self, row: Row, step: int, index: int, rng: random.Random) -> Row:
        """`index`: of the row in the corpus; documents of another window `step` are others."""
        changes: dict[str, Any] = {}
        if self.documents:
            changes["document"] = f"window {step}, document {index % self.documents}"
        if self.packed:
            changes["starts"] = (0, max(1, len(row.tokens) // 3))
        if self.weighted:
            changes["weights"] = tuple(rng.choice(WEIGHTS) for _ in row.labels)
        return replace(row, **changes)

    def facts(self, plan: Plan, index: int, rows: Sequence[Row]) -> WindowFacts:
        """Of a window of the rows as they are drawn."""
        if self == COUNTED_BY_TOKEN:
            return window_facts(plan, index, {row.id: row for row in rows})
        objective = self.objective
        if self.unit == DOCUMENT:
            objective = replace(objective, documents=weights_of_documents(rows, objective.criterion))
        return window_facts(plan, index, {row.id: objective.counted(row) for row in rows}, self.unit)


COUNTED_BY_TOKEN = Counting()
