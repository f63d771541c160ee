"""How many windows a pass over the training rows has, and which window stands where. Plain arithmetic."""


def windows_per_epoch(rows: int, world_size: int, rows_per_rank: int, drop_last: bool) -> int:
    """`rows_per_rank`: rows of one rank in a full window. Rows are dealt in turn, so ranks differ by at most one row.

    Without `drop_last` the last window may be short; with it, it is left out. Raises ValueError when none is left.
    """
    largest_share = -(-rows // world_size)
    windows = rows // world_size // rows_per_rank if drop_last else -(-largest_share // rows_per_rank)
    if windows == 0:
        raise ValueError(
            f"{rows} training rows over world_size {world_size} do not fill one window of accumulation x batch = "
            f"{rows_per_rank} rows per rank: lower batch or accumulation, or set drop_last to false"
        )
    return windows


def place_in_epoch(step: int, windows: int) -> tuple[int, int]:
    """(epoch, window), both from 0, of update `step`, which counts from 1: with 125 windows, update 201 is (1, 75)."""
    return divmod(step - 1, windows)


def ends_epoch(step: int, windows: int) -> bool:
    return step % windows == 0
