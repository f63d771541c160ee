"""Does one state of torch's CPU generator lie later in the stream of another? Read from the states, without torch."""

from typing import Any

import numpy
from numpy.typing import NDArray

# torch's CPUGeneratorImplStateLegacy, little-endian: uint64 seed, int32 left, int32 seeded, uint64 next, then the 624
# words of the Mersenne Twister as uint64, then 40 bytes for a second normal number. With all words used, `left` is 1.
BYTES, HEADER, WORDS = 5056, 24, 624
LARGEST_WORD = 2**32 - 1
MOST_BLOCKS = 10_000


def words_between(before: NDArray[Any], after: NDArray[Any], most_blocks: int = MOST_BLOCKS) -> int | None:
    """32-bit words that are drawn from `before` to `after`, both as torch.get_rng_state() gives them (uint8).

    None when `after` is not reached within `most_blocks` blocks of 624 words, or when a state is laid out otherwise.
    """
    first, last = _read(before), _read(after)
    if first is None or last is None:
        return None
    (words, used), (wanted, used_after) = first, last
    stream = numpy.random.MT19937(0)
    for block in range(most_blocks):
        if (words == wanted).all():
            drawn = block * WORDS + used_after - used
            return drawn if drawn >= 0 else None
        stream.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": WORDS}}
        stream.random_raw()  # with none left, one word makes the whole next block
        words = stream.state["state"]["key"]
    return None


def _read(state: NDArray[Any]) -> tuple[NDArray[numpy.uint32], int] | None:
    """The words, and how many of them have been drawn; None when these bytes are no such state."""
    data = state.tobytes()
    if len(data) != BYTES:
        return None
    left = int(numpy.frombuffer(data, "<i4", 1, 8)[0])
    words = numpy.frombuffer(data, "<u8", WORDS, HEADER)
    if not 1 <= left <= WORDS or words.max() > LARGEST_WORD:
        return None
    return words.astype(numpy.uint32), WORDS + 1 - left
