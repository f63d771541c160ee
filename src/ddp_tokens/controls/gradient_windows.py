"""The rows of the compared windows, made to measure: how many units each rank and microbatch holds. No torch."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, count

from ddp_tokens.config import GeneratedCorpus, Images, ResNet
from ddp_tokens.controls.counting import COUNTED_BY_TOKEN, Counting
from ddp_tokens.corpora import images
from ddp_tokens.corpora.lock import read_lock, write_corpus
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.formulas import RIGHT, Formula, alike_on, excluded_by, possible_on
from ddp_tokens.layout import Layout
from ddp_tokens.plan import Plan, write_plan
from ddp_tokens.window_facts import WindowFacts

# units[rank][microbatch][row]
Units = list[list[list[int]]]
COMPARED = "compared"
WINDOWS = 2
MOST_IGNORED = 3
IMAGES_SEED = 17
SMALL_IMAGES = Images(classes=4, size=8)
# row id, split, number of units, draws, rows before it -> row
MakeRow = Callable[[str, str, int, random.Random, int], Row]


@dataclass(frozen=True)
class OfImages:
    """What a case is made of whose rows are images. `training`: ranks compute in training mode."""

    model: ResNet
    training: bool = False
    corpus: Images = SMALL_IMAGES

    @property
    def uses_statistics(self) -> bool:
        """Of the rows that are computed at once: another function of the window than that of its rows one by one."""
        return self.training and self.model.norm != "group"


@dataclass(frozen=True)
class Case:
    """Two windows; gradients are compared in the second, so that there is one before it.

    `change`: what makes the second window special. `tied`: the head shares the embedding's weights. `autocast`: forward
    in bfloat16. `decidable`: every excluded formula differs from the right one by arithmetic. `apart`: all differ from
    each other too. `special`: the change in words. `of_images`: where rows are images. `drawn_as`: the case that has
    the same rows. `counting`: what counts once.
    """

    name: str
    world_size: int
    accumulation: int
    batch: int
    change: Callable[[Units], Units] = lambda units: units
    tied: bool = False
    autocast: bool = False
    decidable: bool = True
    apart: bool = False
    special: str = ""
    of_images: OfImages | None = None
    drawn_as: str = ""
    counting: Counting = COUNTED_BY_TOKEN

    @property
    def what(self) -> str:
        """For the readers of the table."""
        rows = f"{self.batch} row{'s' if self.batch > 1 else ''}"
        shape = (
            f"{self.world_size} rank{'s' if self.world_size > 1 else ''}, {self.accumulation} "
            f"microbatch{'es' if self.accumulation > 1 else ''} of "
            f"{f'1 to {self.world_size * self.batch} images' if self.of_images else rows}"
        )
        return f"{shape}: {self.special}" if self.special else shape

    @property
    def compared(self) -> dict[str, int]:
        return {COMPARED: WINDOWS - 1}

    def windows(self, rng: random.Random) -> list[Units]:
        *earlier, last = [self._drawn(rng) for _ in range(WINDOWS)]
        return [*earlier, self.change(last)]

    def suits(self, facts: WindowFacts) -> bool:
        """Equal totals, which happen by chance, would make a wrong formula the right one, or two of them the same."""
        if not self.decidable:
            return True
        if any(alike_on(facts, RIGHT, wrong) for wrong in excluded_by(facts)):
            return False
        return not self.apart or not any(alike_on(facts, *pair) for pair in _that_can_differ(facts))

    def _drawn(self, rng: random.Random) -> Units:
        """Rows of a rank are longer than all rows of the ranks before it; of images, it has more in each microbatch."""
        draw = self._images_drawn if self.of_images else self._rows_drawn
        return [[draw(rank, rng) for _ in range(self.accumulation)] for rank in range(self.world_size)]

    def _rows_drawn(self, rank: int, rng: random.Random) -> list[int]:
        return [rng.randint(1 + 6 * rank, 6 + 6 * rank) for _ in range(self.batch)]

    def _images_drawn(self, rank: int, rng: random.Random) -> list[int]:
        """One that counts, and then some of which one in four does not."""
        others = rng.randint(self.batch * rank, self.batch * (rank + 1) - 1)
        return [1, *(int(rng.random() < 0.75) for _ in range(others))]


def _that_can_differ(facts: WindowFacts) -> Iterator[tuple[Formula, Formula]]:
    """Pairs of formulas, without the two divisions that are one where there are as many microbatches as ranks."""
    for one, other in combinations(possible_on(facts), 2):
        divisions = {one.name, other.name} == {"world_size_forgotten", "extra_division_by_accumulation"}
        if not divisions or facts.world_size != facts.microbatches:
            yield one, other


def with_microbatches(number: int, units: Units) -> Units:
    """The last window of an epoch: fewer microbatches on every rank."""
    return [of_rank[:number] for of_rank in units]


def with_one_microbatch_less_on_rank_0(units: Units) -> Units:
    return [units[0][:-1], *units[1:]]


def without_units_on_the_last_rank(units: Units) -> Units:
    return [*units[:-1], [[0 for _ in rows] for rows in units[-1]]]


def without_units_in_one_microbatch(units: Units) -> Units:
    """The first microbatch of the last rank."""
    return [*units[:-1], [[0 for _ in units[-1][0]], *units[-1][1:]]]


def at_an_epochs_end(number: int, units: Units) -> Units:
    """A short window of which one rank holds less than the others."""
    return with_one_microbatch_less_on_rank_0(with_microbatches(number, units))


def with_equal_units(each: int, units: Units) -> Units:
    """`each` in every row."""
    return [[[each for _ in rows] for rows in of_rank] for of_rank in units]


def with_one_unit_less_on_rank_0(each: int, units: Units) -> Units:
    first, *others = with_equal_units(each, units)
    return [[[each - 1, *first[0][1:]], *first[1:]], *others]


def prepare_case(case: Case, corpus: GeneratedCorpus, at: Layout) -> None:
    """Write rows, lock and plan as `prepare` does: of the first draw that suits. `corpus` gives the shape of a model of
    tokens.
    """
    own = case.of_images.corpus if case.of_images else corpus
    make: MakeRow = partial(_image, own) if isinstance(own, Images) else partial(_row, own)
    for attempt in count():
        rows, plan = _drawn_rows(case, make, random.Random(f"{case.drawn_as or case.name}, attempt {attempt}"))
        if case.suits(case.counting.facts(plan, case.compared[COMPARED], rows)):
            break
    recipe = images.recipe(own, IMAGES_SEED) if isinstance(own, Images) else None
    write_corpus(rows, own, at.rows, at.lock, images=recipe, objective=case.counting.objective)
    write_plan(at.plan, plan, {}, read_lock(at.rows, at.lock)["corpus_sha256"])


def _drawn_rows(case: Case, make: MakeRow, rng: random.Random) -> tuple[list[Row], Plan]:
    rows: list[Row] = [case.counting.applied(make("test-0", "test", case.counting.scored, rng, 0), WINDOWS, 0, rng)]
    plan: Plan = []
    for step, units in enumerate(case.windows(rng)):
        plan.append([[[] for _ in of_rank] for of_rank in units])
        for rank, of_rank in enumerate(units):
            for index, microbatch in enumerate(of_rank):
                for number_of_units in microbatch:
                    row = make(f"row-{len(rows):04d}", "train", number_of_units, rng, len(rows))
                    row = case.counting.applied(row, step, len(rows), rng)
                    plan[step][rank][index].append(row.id)
                    rows.append(row)
    return rows, plan


def _image(corpus: Images, row_id: str, split: str, units: int, rng: random.Random, index: int) -> Row:
    """One image, with its label or without."""
    label = images.label_of(index, IMAGES_SEED, corpus.classes) if units else UNSUPERVISED
    return Row(row_id, split, (), (label,), index=index)


def _row(corpus: GeneratedCorpus, row_id: str, split: str, units: int, rng: random.Random, index: int) -> Row:
    """`units` supervised tokens and up to three others, at random places."""
    most = max(1, min(MOST_IGNORED, corpus.max_length - units))
    length = units + rng.randint(1, most)
    tokens = tuple(rng.randrange(corpus.vocabulary) for _ in range(length))
    counted = set(rng.sample(range(length), units))
    labels = tuple(
        (token + place) % corpus.classes if place in counted else UNSUPERVISED for place, token in enumerate(tokens)
    )
    return Row(row_id, split, tokens, labels)


REGULAR = (
    Case("w1_a1_b4", 1, 1, 4),
    Case("w1_a2_b3", 1, 2, 3),
    Case("w1_a4_b1", 1, 4, 1),
    Case("w2_a1_b8", 2, 1, 8),
    Case("w2_a2_b4", 2, 2, 4),
    Case("w2_a3_b2", 2, 3, 2),
    Case("w2_a4_b5", 2, 4, 5),
    Case("w3_a1_b2", 3, 1, 2),
    Case("w3_a2_b3", 3, 2, 3),
    Case("w3_a3_b1", 3, 3, 1),
    Case("w3_a4_b2", 3, 4, 2),
    Case("w4_a1_b6", 4, 1, 6),
    Case("w4_a2_b2", 4, 2, 2),
    Case("w4_a4_b1", 4, 4, 1),
)
SPECIAL = (
    Case(
        "short_last_window",
        *(3, 4, 2),
        partial(with_microbatches, 3),
        apart=True,
        special="the last window of an epoch, with 3 of its 4 microbatches",
    ),
    Case(
        "fewer_microbatches_on_one_rank",
        *(2, 3, 2),
        with_one_microbatch_less_on_rank_0,
        special="one microbatch less on rank 0",
    ),
    *(
        Case(
            f"empty_microbatch_w{size}",
            *(size, 2, 2),
            without_units_in_one_microbatch,
            special="a microbatch without a unit",
        )
        for size in (2, 3, 4)
    ),
    *(
        Case(f"empty_rank_w{size}", size, 2, 2, without_units_on_the_last_rank, special="a rank without a unit")
        for size in (2, 3, 4)
    ),
    Case("tied_weights", 2, 2, 3, tied=True, special="the head shares the embedding's weights"),
    Case(
        "one_unit_less_in_float32",
        *(2, 1, 1),
        partial(with_one_unit_less_on_rank_0, 120),
        special="119 and 120 units, in float32 seen as unequal",
    ),
)
UNDECIDABLE = (
    Case(
        "equal_counts",
        *(3, 1, 2),
        partial(with_equal_units, 7),
        decidable=False,
        special="as many units on each rank, so that a mean of means is the mean over all units",
    ),
    Case(
        "one_unit_less_in_bfloat16",
        *(2, 1, 1),
        partial(with_one_unit_less_on_rank_0, 120),
        autocast=True,
        special="119 and 120 units, a difference below the rounding of a forward in bfloat16",
    ),
)
CONTROLLED = Case("controlled", 3, 2, 3, apart=True)
CONTROLLED_THREE = Case("controlled_three_microbatches", 2, 3, 2)
_TINY_BATCH, _TINY_GROUP = (ResNet(stages=(8,), blocks=1, norm=norm, groups=4) for norm in ("batch", "group"))
BATCH_FROZEN = Case(
    *("batch_norm_frozen", 2, 2, 3),
    special="BatchNorm with frozen statistics",
    of_images=OfImages(_TINY_BATCH),
)
BATCH_IN_TRAINING = Case(
    *("batch_norm_in_training", 2, 2, 3),
    special="BatchNorm in training mode",
    of_images=OfImages(_TINY_BATCH, training=True),
    drawn_as=BATCH_FROZEN.name,
)
OF_LAYERS = (
    BATCH_FROZEN,
    Case(
        *("group_norm_in_training", 2, 2, 3),
        special="GroupNorm in training mode",
        of_images=OfImages(_TINY_GROUP, training=True),
        drawn_as=BATCH_FROZEN.name,
    ),
    Case(
        *("batch_norm_frozen_short_window", 2, 3, 2, partial(at_an_epochs_end, 2)),
        special="BatchNorm with frozen statistics, and a short last window in which rank 0 has one microbatch of 2",
        of_images=OfImages(_TINY_BATCH),
    ),
)
CASES = {
    case.name: case
    for case in (*REGULAR, *SPECIAL, *UNDECIDABLE, *OF_LAYERS, BATCH_IN_TRAINING, CONTROLLED, CONTROLLED_THREE)
}
