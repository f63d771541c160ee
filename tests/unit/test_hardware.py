import os
import platform

import pytest

from ddp_tokens import hardware
from ddp_tokens.hardware import cores, cpu_memory, cpu_memory_available, cpu_name, gibibytes, in_words


@pytest.fixture
def facts(tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(hardware, "CPU_FACTS", path)
    return path


@pytest.mark.parametrize("text", [None, "processor\t: 0\n"])
def test_where_the_kernel_gives_no_name_it_is_the_architecture(facts, text):
    if text is not None:
        facts.write_text(text)
    assert cpu_name() == platform.machine()


def test_the_name_is_that_of_the_first_processor(facts):
    facts.write_text("processor\t: 0\nmodel name\t: A Processor: fast @ 2 GHz\nmodel name\t: another\n")
    assert cpu_name() == "A Processor: fast @ 2 GHz"


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5} if process == 0 else set())
    assert cores() == 3


def test_available_memory_is_what_the_kernel_says_in_kibibytes(tmp_path, monkeypatch):
    path = tmp_path / "meminfo"
    monkeypatch.setattr(hardware, "MEMORY_FACTS", path)
    assert cpu_memory_available() is None
    path.write_text("MemTotal:  4 kB\n")
    assert cpu_memory_available() is None
    path.write_text("MemTotal:  4 kB\nMemFree: 1 kB\nMemAvailable:       3 kB\n")
    assert cpu_memory_available() == 3 * 1024


def test_this_machine_has_as_much_memory_as_is_available():
    assert 0 < cpu_memory_available() < cpu_memory()


def test_sizes_in_words():
    assert gibibytes(3 * 2**29) == "1.5 GiB"
    sizes = (0, 2**20 - 2**10, 2**20, 1023 * 2**20, 2**30)
    assert [in_words(size) for size in sizes] == ["0 KiB", "1,023 KiB", "1 MiB", "1,023 MiB", "1.0 GiB"]
