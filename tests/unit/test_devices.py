import os

import pytest
import torch

from ddp_tokens import hardware
from ddp_tokens.devices import described_device


@pytest.fixture
def facts(tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(hardware, "CPU_FACTS", path)
    return path


def test_a_cpu_is_told_with_its_name_its_cores_and_its_memory(facts, monkeypatch):
    facts.write_text("processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nmodel name\t: another\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3})
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**21}.get)
    assert described_device("cpu") == "cpu, A Processor @ 2 GHz, 2 cores, 8.0 GiB"


def test_a_gpu_is_told_with_its_name_and_its_memory(monkeypatch):
    class Properties:
        total_memory = 40 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"A GPU at {device}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert described_device("cuda:1") == "cuda:1, A GPU at cuda:1, 40.0 GiB"
