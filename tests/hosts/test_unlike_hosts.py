"""Two hosts that do not run the same, or do not share their results: both refuse, before anything is trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from tests.distributed.tiny import SETTINGS
from tests.helpers import PROJECT, record, write_lines
from tests.hosts.chain import WITHIN_S, Chain

pytestmark = [pytest.mark.all_hosts, pytest.mark.timeout(900)]
USER_ERROR = 2


def another_checkout(chain: Chain, folder: Path) -> tuple[Chain, list[str]]:
    """By what host 1 differs: a chain of its own, and which module it starts if not the same."""
    source = folder / "checkout" / "src"
    shutil.copytree(PROJECT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(PROJECT / "envs", source.parent / "envs")
    with open(source / "ddp_tokens" / "window.py", "a") as stream:
        stream.write("# another line\n")
    return replace(chain, source=source), []


def another_config(chain, folder):
    path = chain.config.with_name("other.yaml")
    path.write_text(yaml.safe_dump(yaml.safe_load(chain.config.read_text()) | {"name": "tiny", "checkpoint_every": 3}))
    return replace(chain, config=path), []


def another_corpus(chain, folder):
    """Its own folder, with its own rows under the same name."""
    own = replace(chain, config=folder / "own" / chain.config.name)
    own.config.parent.mkdir()
    shutil.copy(chain.config, own.config)
    write_own_rows(own.config.parent, tokens=(1, 0))
    own.steps(("prepare", "reference"))
    return own, []


def another_folder(chain, folder):
    """The same files, but its own copy of them."""
    own = replace(chain, config=folder / "own" / chain.config.name)
    shutil.copytree(chain.config.parent, own.config.parent)
    return own, []


def another_torch(chain, folder):
    return chain, ["-m", "tests.hosts.other_torch"]


FIRST = "rank 0 on host host0"
SECOND = "rank 1 on host host1"
ROWS = "results/tiny/corpus/rows.jsonl"
ONCE = "prepare once, on a folder that all hosts share"
SAID = {
    another_checkout: f"{SECOND} runs another src/ddp_tokens/window.py than {FIRST}: use the same checkout on all "
    "hosts",
    another_config: f"{SECOND} has checkpoint_every 3, {FIRST} 10: use the same config on all hosts",
    another_corpus: f"{SECOND} has another {ROWS} than {FIRST}: {ONCE}",
    another_folder: f"{SECOND} does not see what {FIRST} writes to results/tiny: put the results folder on a file "
    "system that all hosts share",
    another_torch: f"{SECOND} has torch 2.12.0, {FIRST} {torch.__version__}: install the same versions "
    "(envs/requirements.lock) on all hosts",
}


def write_own_rows(folder, tokens=(0, 1)):
    splits = [*["train"] * 16, "validation", "test"]
    rows = [record(f"row-{number}", split, tokens, (0, 1)) for number, split in enumerate(splits)]
    write_lines(folder / "rows.jsonl", *rows)


@pytest.mark.parametrize("unlike", SAID, ids=lambda function: function.__name__)
def test_both_hosts_refuse_and_name_the_difference(hosts, tmp_path, unlike):
    chain = Chain(tmp_path / "shared" / "tiny.yaml")
    chain.config.parent.mkdir()
    chain.config.write_text(yaml.safe_dump(SETTINGS | {"corpus": {"path": "rows.jsonl"}}))
    write_own_rows(chain.config.parent)
    chain.steps(("prepare", "reference"))
    other, module = unlike(chain, tmp_path)
    processes = [
        chain.start(hosts, 0, 1, chain.arguments),
        other.start(hosts, 1, 1, [*module, *other.arguments]),
    ]
    assert [process.wait(WITHIN_S) for process in processes] == [USER_ERROR, USER_ERROR], chain.said(0).read_text()
    for of_host, who in ((chain.said(0), "ddp_tokens.train"), (other.said(1), "ddp_tokens.train, rank 1")):
        text = of_host.read_text()
        assert [line for line in text.splitlines() if line.startswith("ddp_tokens.train")] == [
            f"{who}: {SAID[unlike]}"
        ], text
        assert "Traceback" not in text
    for at in (chain.at, other.at):
        assert not at.run("interrupt").parent.exists(), "something was trained"
