"""Ranks on two hosts: the same results as on one, and what is said when the other host is not there."""

import json
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from ddp_tokens.checkpoint_files import verify
from ddp_tokens.layout import Layout
from ddp_tokens.progress import place_file
from tests.distributed.tiny import SETTINGS
from tests.helpers import PROJECT
from tests.hosts.chain import WITHIN_S, Chain
from tests.hosts.two_hosts import NAMES

pytestmark = pytest.mark.timeout(900)  # several processes each import torch, on however few cores
USER_ERROR = 2


def chain_of(folder: Path, name: str = "tiny", **changes: object) -> Chain:
    """`name`: tiny, or an experiment of the project."""
    folder.mkdir()
    settings = SETTINGS if name == "tiny" else yaml.safe_load((PROJECT / "config" / f"{name}.yaml").read_text())
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings | changes))
    return Chain(folder / f"{name}.yaml")


def assert_as_expected(chain: Chain) -> None:
    """Each verdict is as expected; parity told the right formula from the wrong one, and the resume was exact."""
    verdicts = chain.verdicts()
    assert all(expected for cases in verdicts.values() for *_, expected in cases), verdicts
    parity = {case: outcome for case, outcome, _ in verdicts["gradient_parity"]}
    assert {outcome for case, outcome in parity.items() if case.startswith("token_mean")} == {"pass"}
    assert {outcome for case, outcome in parity.items() if case.startswith("mean_of_means")} == {"fail"}
    assert {outcome for _, outcome, _ in verdicts["resume"]} == {"pass"}


@pytest.mark.parametrize(
    ("experiment", "ranks_per_host", "backend"),
    [
        ("tiny", 1, "static"),
        pytest.param("tiny", 2, "c10d", marks=pytest.mark.all_hosts),
        pytest.param("minimum", 1, "c10d", marks=pytest.mark.all_hosts),
        pytest.param("minimum", 2, "static", marks=pytest.mark.all_hosts),
    ],
)
def test_two_hosts_give_what_one_host_gives(hosts, tmp_path, experiment, ranks_per_host, backend):
    """The chain to its last check; one host and two leave the same bytes."""
    changes = {"world_size": 2 * ranks_per_host}
    one, two = (chain_of(tmp_path / name, experiment, **changes) for name in ("one", "two"))
    one.on_one_host(2 * ranks_per_host)
    two.on_two_hosts(hosts, ranks_per_host, RDZV_BACKEND=backend)
    assert_as_expected(two)
    assert sorted(two.hosts_of_ranks("resume")) == sorted(NAMES * ranks_per_host)
    assert set(one.hosts_of_ranks("resume")).isdisjoint(NAMES)
    assert len(one.digests()) > 20
    assert two.digests() == one.digests()


LONG = {"steps": 400, "interrupt_at": 1, "timeout_s": 5, "checkpoint_every": 10}


def wait_for_update(at: Layout, step: int, process: subprocess.Popen[bytes]) -> None:
    """Of rank 0's continuous run, which `process` has started."""
    while True:
        assert process.poll() is None, "the run has ended before"
        with suppress(FileNotFoundError, ValueError):  # not there yet, or half written
            if (json.loads(place_file(at.rank_logs("continuous"), 0).read_text())["step"] or 0) >= step:
                return
        time.sleep(0.05)


@pytest.mark.all_hosts
@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_cut_link_ends_both_sides_who_name_each_other_and_the_run_goes_on_when_it_is_mended(hosts, tmp_path, backend):
    undisturbed, chain = chain_of(tmp_path / "undisturbed", **LONG), chain_of(tmp_path / "cut", **LONG)
    for one in (undisturbed, chain):
        one.steps(("prepare", "reference"))
    continuous = [*chain.arguments, "--continuous"]
    processes = [chain.start(hosts, host, 1, continuous, RDZV_BACKEND=backend) for host in (0, 1)]
    wait_for_update(chain.at, 25, processes[0])
    hosts.cut()
    assert [process.wait(WITHIN_S) for process in processes] == [USER_ERROR, USER_ERROR]
    for host, other in ((0, 1), (1, 0)):
        said = [line for line in chain.said(host).read_text().splitlines() if "cannot be reached" in line]
        assert len(said) == 1, chain.said(host).read_text()
        where = re.search(rf"rank {other} on host {NAMES[other]} cannot be reached; it was in update (\d+)", said[0])
        assert where, said
        assert 25 <= int(where[1]) < 400
        assert f"while rank {host} on host {NAMES[host]} was in the " in said[0]
        checkpoint = re.search(r"the newest whole checkpoint is .*/\.continuous\.\w+/step-(\d+)$", said[0])
        assert checkpoint, said
        assert 20 <= int(checkpoint[1]) <= int(where[1])
        assert "Traceback" not in chain.said(host).read_text()
    assert not chain.at.run("continuous").exists()
    hosts.mend()
    ends = chain.launch(hosts, 1, continuous, RDZV_BACKEND=backend)
    assert [code for code, _ in ends] == [0, 0], ends
    assert re.search(r"continuing after update \d+0 of 400", ends[0][1])
    assert [code for code, _ in undisturbed.launch(hosts, 1, [*undisturbed.arguments, "--continuous"])] == [0, 0]
    assert chain.digests() == undisturbed.digests()


@pytest.mark.all_hosts
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_one_host_stops_all_after_the_same_update(hosts, tmp_path, number):
    chain = chain_of(tmp_path / "stopped", **LONG)
    chain.steps(("prepare", "reference"))
    processes = [chain.start(hosts, host, 1, [*chain.arguments, "--continuous"]) for host in (0, 1)]
    wait_for_update(chain.at, 5, processes[0])
    processes[1].send_signal(number)
    assert [process.wait(WITHIN_S) for process in processes] == [128 + number, 128 + number]
    said = re.search(rf"stopped by {number.name} after update (\d+) of 400, kept in (\S+):", chain.said(0).read_text())
    assert said, chain.said(0).read_text()
    assert verify(chain.config.parent / said[2])["step"] == int(said[1])


@pytest.mark.all_hosts
@pytest.mark.parametrize("backend", ["static", "c10d"])
@pytest.mark.parametrize("host", [0, 1])
def test_who_waits_in_vain_for_the_other_host_says_so(hosts, tmp_path, host, backend):
    chain = chain_of(tmp_path / "alone")
    alone = chain.start(hosts, host, 1, chain.arguments, RDZV_BACKEND=backend, RDZV_TIMEOUT_S="3")
    assert alone.wait(WITHIN_S) == USER_ERROR
    starts, ends = [line for line in chain.said(host).read_text().splitlines() if line.startswith("ddp_tokens")]
    where = "10.77.0.1:12355 (MASTER_ADDR:MASTER_PORT)"
    assert starts == (
        f"ddp_tokens.hosts: NODE_RANK {host}, 1 rank here (NPROC_PER_NODE), meeting 1 other at {where} within 3 s"
    )
    assert ends.startswith(
        f"ddp_tokens.hosts: within 3 s (RDZV_TIMEOUT_S) not all of 2 hosts (NNODES) have met at {where}; this one has "
        f"NODE_RANK {host}: start the same command on each"
    )
    assert "Traceback" not in chain.said(host).read_text()


@pytest.mark.all_hosts
@pytest.mark.parametrize("backend", ["static", "c10d"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_host_may_come_late(hosts, tmp_path, late, backend):
    chain = chain_of(tmp_path / "late", steps=2, interrupt_at=1)
    chain.steps(("prepare", "reference"))
    first = chain.start(hosts, 1 - late, 1, chain.arguments, RDZV_BACKEND=backend, RDZV_TIMEOUT_S="60")
    time.sleep(8)
    assert first.poll() is None
    second = chain.start(hosts, late, 1, chain.arguments, RDZV_BACKEND=backend, RDZV_TIMEOUT_S="60")
    assert [process.wait(WITHIN_S) for process in (first, second)] == [0, 0], chain.said(late).read_text()
    assert chain.at.checkpoint("interrupt", 1).is_dir()
