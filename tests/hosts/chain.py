"""The chain of an experiment by hand: ranks on one host or on two, everything else where the test runs."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from ddp_tokens import cli
from ddp_tokens.checks.verdict import read_verdicts
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.files import read_json_lines
from ddp_tokens.layout import Layout
from tests.helpers import PROJECT
from tests.hosts.two_hosts import TwoHosts, launched, variables

FIRST = ("prepare", "reference", "check-loss")
LAST = (
    "check-parity",
    "check-window",
    "check-zero-window",
    "check-resume",
    "check-replicas",
    "check-checkpoints",
    "evaluate",
    "check-evaluation",
)
WITH_TENSORS = ("reference", "evaluate")
WITHIN_S = 240
OF_A_LAUNCH = "logs"


@dataclass(frozen=True)
class Chain:
    """An experiment's YAML file in a folder of its own, where its results go too. `more`: flags of every step."""

    config: Path
    more: tuple[str, ...] = ()
    source: Path = PROJECT / "src"

    @property
    def at(self) -> Layout:
        return Layout(self.config.parent / "results" / self.config.stem)

    @property
    def arguments(self) -> list[str]:
        """Below the experiment's folder, in which every step runs: verdicts hold the paths of what they judged."""
        return ["--config", self.config.name, *self.more]

    @property
    def interrupted(self) -> Path:
        return self.at.checkpoint("interrupt", load_experiment(self.config).interrupt_at)

    @property
    def launches(self) -> list[list[str]]:
        """Module and arguments of each step that starts ranks."""
        train = ["ddp_tokens.train", *self.arguments]
        return [
            ["ddp_tokens.gradients", *self.arguments],
            train,
            [*train, "--continuous"],
            [*train, "--resume", str(self.interrupted.relative_to(self.config.parent))],
        ]

    def steps(self, commands: Sequence[str]) -> None:
        """Those that compute with tensors in a process of their own: they set torch's threads."""
        for command in commands:
            if command in WITH_TENSORS:
                self._run("-m", "ddp_tokens.cli", command, *self.arguments)
            else:
                with chdir(self.config.parent):
                    assert cli.main([command, *self.arguments]) == 0

    def on_one_host(self, ranks: int) -> None:
        self.steps(FIRST)
        for module, *arguments in self.launches:
            self._run("-m", "ddp_tokens.launch", f"--nproc-per-node={ranks}", "-m", module, *arguments)
        self.steps(LAST)

    def on_two_hosts(self, hosts: TwoHosts, ranks_per_host: int, **environment: str) -> None:
        self.steps(FIRST)
        for launch in self.launches:
            ends = self.launch(hosts, ranks_per_host, ["-m", *launch], **environment)
            assert [code for code, _ in ends] == [0, 0], ends
        self.steps(LAST)

    def start(
        self, hosts: TwoHosts, host: int, ranks: int, arguments: Sequence[str], **environment: str
    ) -> subprocess.Popen[bytes]:
        own = variables(host, ranks, self.source, **environment)
        self.said(host).unlink(missing_ok=True)
        return hosts.start(host, launched(*arguments), self.said(host), own, self.config.parent)

    def said(self, host: int) -> Path:
        return self.config.parent / f"host{host}.log"

    def launch(
        self, hosts: TwoHosts, ranks: int, arguments: Sequence[str], **environment: str
    ) -> list[tuple[int, str]]:
        """The command of both hosts: by host, its exit code and what it said."""
        processes = [self.start(hosts, host, ranks, arguments, **environment) for host in (0, 1)]
        return [(process.wait(WITHIN_S), self.said(host).read_text()) for host, process in enumerate(processes)]

    def verdicts(self) -> dict[str, list[tuple[str, str, bool]]]:
        """Check -> case, outcome, and whether that was expected."""
        found = {}
        for path in sorted(self.at.check("loss").parent.glob("*.json")):
            found[path.stem] = [(one.case, one.outcome, one.problem is None) for one in read_verdicts(path)[1]]
        return found

    def digests(self) -> dict[str, str]:
        """Of everything that the chain has made, apart from logs."""
        files = [path for path in sorted(self.at.root.rglob("*")) if path.is_file()]
        kept = {str(path.relative_to(self.at.root)): path for path in files}
        return {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in kept.items()
            if not name.startswith(OF_A_LAUNCH)
        }

    def hosts_of_ranks(self, run: str) -> list[str]:
        """The host that each rank of a run says it is on, in the first line of its log."""
        logs = sorted(self.at.rank_logs(run).glob("rank-*.jsonl"))
        return [next(iter(read_json_lines(log)))["host"] for log in logs]

    def _run(self, *command: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=self.config.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
