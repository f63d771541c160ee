"""Which updates are profiled, and what is made of torch's averages; real profiles are in tests/distributed."""

from dataclasses import dataclass

import pytest

from ddp_tokens.profiling import operators_table, profiled_updates


@pytest.mark.parametrize(
    ("step", "until", "updates"),
    [
        (0, 100, [3, 4, 5]),
        (50, 100, [53, 54, 55]),
        (0, 5, [3, 4, 5]),
        (0, 4, [2, 3, 4]),
        (0, 3, [2, 3]),
        (7, 9, [9]),
        (7, 8, [8]),
    ],
)
def test_a_few_updates_after_the_first_are_profiled(step, until, updates):
    assert list(profiled_updates(step, until)) == updates


@dataclass
class Event:
    """As torch gives them, in microseconds."""

    key: str
    self_cpu_time_total: float
    cpu_time_total: float
    self_device_time_total: float = 0.0
    device_time_total: float = 0.0
    count: int = 1
    is_user_annotation: bool = False
    device_type: str = "DeviceType.CPU"


EVENTS = [
    Event("small", 250.0, 250.0, 3000.0, 3000.0),
    Event("large", 750.0, 1000.0, 1000.0, 4000.0, count=3),
    Event("forward", 9000.0, 9000.0, 0.0, 0.0, is_user_annotation=True),
    Event("a kernel", 0.0, 0.0, 4000.0, 4000.0, device_type="DeviceType.CUDA"),
]


def test_operators_stand_by_their_own_time_with_their_share():
    """250 and 750 of 1000 microseconds. Ranges and kernels are no operators."""
    assert operators_table(EVENTS, on_cuda=False) == {
        "operators": [
            {"name": "large", "calls": 3, "self_cpu_ms": 0.75, "total_cpu_ms": 1.0, "share": 0.75},
            {"name": "small", "calls": 1, "self_cpu_ms": 0.25, "total_cpu_ms": 0.25, "share": 0.25},
        ],
        "all_operators": 2,
        "all_self_ms": 1.0,
    }


def test_on_a_gpu_their_own_time_there_decides():
    table = operators_table(EVENTS, on_cuda=True)
    assert [(row["name"], row["share"]) for row in table["operators"]] == [("small", 0.75), ("large", 0.25)]
    assert table["operators"][0] == {
        "name": "small",
        "calls": 1,
        "self_cpu_ms": 0.25,
        "total_cpu_ms": 0.25,
        "self_cuda_ms": 3.0,
        "total_cuda_ms": 3.0,
        "share": 0.75,
    }


def test_twenty_are_listed_and_all_are_counted():
    table = operators_table([Event(f"{number:02}", 1000.0, 1000.0) for number in range(25)], on_cuda=False)
    assert [row["name"] for row in table["operators"]] == [f"{number:02}" for number in range(20)]
    assert (table["all_operators"], table["all_self_ms"]) == (25, 25.0)


def test_nothing_that_took_time_has_no_share():
    assert operators_table([Event("idle", 0.0, 0.0)], on_cuda=False)["operators"][0]["share"] == 0.0
