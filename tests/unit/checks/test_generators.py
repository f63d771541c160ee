"""Against real generators of torch: how many 32-bit words lie between two states."""

import numpy
import pytest
import torch

from ddp_tokens.checks.generators import BYTES, words_between


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(17)


def state_of(generator):
    return generator.get_state().numpy()


def drawn(generator, draw):
    before = state_of(generator).copy()
    draw(generator)
    return words_between(before, state_of(generator))


# A float32 takes one word, a float64 and an int64 without bounds two; torch makes 16 and more normal numbers at once.
DRAWS = {
    "nothing": (lambda generator: None, 0),
    "one float32": (lambda generator: torch.rand((), generator=generator), 1),
    "a loader's base seed": (lambda generator: torch.empty((), dtype=torch.int64).random_(generator=generator), 2),
    "three float64": (lambda generator: torch.rand(3, dtype=torch.float64, generator=generator), 6),
    "a block to its last word": (lambda generator: torch.rand(624, generator=generator), 624),
    "one word of the next block": (lambda generator: torch.rand(625, generator=generator), 625),
    "many blocks": (lambda generator: torch.rand(100_000, generator=generator), 100_000),
    "16 normal numbers": (lambda generator: torch.randn(16, generator=generator), 16),
}


@pytest.mark.parametrize("before", [0, 1, 600, 624, 1000], ids=lambda words: f"after {words}")
@pytest.mark.parametrize(("draw", "words"), DRAWS.values(), ids=DRAWS.keys())
def test_words_drawn_from_a_real_generator(generator, before, draw, words):
    torch.rand(before, generator=generator)
    assert drawn(generator, draw) == words


def test_the_layout_is_that_of_this_torch(generator):
    assert state_of(generator).nbytes == BYTES


def test_an_earlier_state_is_not_later(generator):
    for words in (1, 700):
        before = state_of(generator).copy()
        torch.rand(words, generator=generator)
        assert words_between(state_of(generator), before, most_blocks=50) is None


def test_an_earlier_state_of_the_same_block_is_not_later(generator):
    torch.rand(1, generator=generator)
    before = state_of(generator).copy()
    torch.rand(100, generator=generator)
    assert words_between(before, state_of(generator)) == 100
    assert words_between(state_of(generator), before, most_blocks=50) is None


def test_another_seed_is_another_stream(generator):
    other = torch.Generator().manual_seed(18)
    torch.rand(1000, generator=other)
    assert words_between(state_of(generator), state_of(other), most_blocks=50) is None


def test_the_search_ends_at_its_bound(generator):
    """Block 0 is the one that the seed made, all used; 2 * 624 words on, block 2 is reached."""
    before = state_of(generator).copy()
    torch.rand(2 * 624, generator=generator)
    assert words_between(before, state_of(generator), most_blocks=3) == 2 * 624
    assert words_between(before, state_of(generator), most_blocks=2) is None


def damaged(state, offset, value):
    state = state.copy()
    state[offset : offset + len(value)] = value
    return state


def test_a_word_may_have_all_its_32_bits(generator):
    state = damaged(state_of(generator), 24, [255] * 4)
    assert words_between(state, state) == 0


@pytest.mark.parametrize(
    "other",
    [
        lambda state: state[:-1],
        lambda state: state[:16],  # as of a CUDA generator
        lambda state: damaged(state, 8, [0, 0, 0, 0]),  # no word is ever left in this way
        lambda state: damaged(state, 24 + 4, [1]),  # a word above 32 bits
    ],
)
def test_a_state_of_another_layout_tells_nothing(generator, other):
    state = state_of(generator)
    assert words_between(state, state) == 0
    assert words_between(other(state), state) is None
    assert words_between(state, other(state)) is None
    assert words_between(numpy.zeros(0, numpy.uint8), state) is None
