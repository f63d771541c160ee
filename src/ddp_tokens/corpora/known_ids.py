"""Whether an id was there before, among more ids than fit in memory as strings."""

from array import array

EMPTY = 0


class KnownIds:
    """A hash table that holds the ids' hashes alone: 12 to 24 bytes per id, however long it is."""

    def __init__(self) -> None:
        self._number, self._slots = 0, array("q", [EMPTY]) * 1024

    def __len__(self) -> int:
        return self._number

    def add(self, row_id: str) -> bool:
        """Whether the id may have been added before: another may have its hash, so whoever needs to know has to look.

        Python salts the hashes of strings, so that no file can be made of ids that share them.
        """
        known = _put(self._slots, hash(row_id) or 1)
        if not known:
            self._number += 1
            if 3 * self._number > 2 * len(self._slots):
                self._grow()
        return known

    def _grow(self) -> None:
        slots = array("q", [EMPTY]) * (2 * len(self._slots))
        for of_id in self._slots:
            if of_id != EMPTY:
                _put(slots, of_id)
        self._slots = slots


def _put(slots: "array[int]", of_id: int) -> bool:
    """Whether it was there. Slots are a power of two; the search starts at one and goes on to the next empty one."""
    last = len(slots) - 1
    slot = of_id & last
    while (found := slots[slot]) != EMPTY:
        if found == of_id:
            return True
        slot = (slot + 1) & last
    slots[slot] = of_id
    return False
