"""What is asked of SLURM: the commands that the plugin makes of rules' resources; and what is refused without it."""

import shutil
from pathlib import Path

import pytest

from tests.slurm.cluster import COMMANDS, write_program
from tests.slurm.projects import GATE, environment_with, snakemake
from tests.workflow.projects import build, copy_project
from tests.workflow.projects import snakemake as local_snakemake

GRADIENTS = "results/tiny/gradients/token_mean.native.safetensors"
INITIAL = "results/tiny/initial.safetensors"


@pytest.fixture(scope="module")
def prepared(plugin, tmp_path_factory) -> Path:
    """A project in which all inputs of `gradients` are there, apart from its settings."""
    project = copy_project(tmp_path_factory.mktemp("prepared") / "project")
    build(project, INITIAL)
    return project


@pytest.fixture
def sbatch(prepared, plugin, tmp_path):
    """Calls Snakemake for one rule; sbatch refuses the job, and the words that it was called with are returned."""
    programs, words = tmp_path / "bin", tmp_path / "words.txt"
    programs.mkdir()
    for name in COMMANDS:
        write_program(programs / name, "#!/bin/sh\nexit 1\n")
    write_program(programs / "sinfo", "#!/bin/sh\necho 'debug*'\n")
    write_program(programs / "sbatch", f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {words}\nexit 1\n")

    def called(rule: str, target: str, *config: str) -> tuple[list[str], str]:
        project = Path(shutil.copytree(prepared, tmp_path / "project"))  # the outputs of a failed job are removed
        environment = environment_with(plugin, project)
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        only = ("--printshellcmds", "--allowed-rules", rule, "settings", "--config", *config, "--", target)
        done = snakemake(project, environment, *only)
        assert "SLURM sbatch failed" in done.stdout, done.stdout
        return words.read_text().splitlines(), done.stdout

    return called


def options(words: list[str]) -> list[str]:
    """Those that say how much is asked for."""
    about = ("--nodes", "--ntasks", "--cpus", "--gres", "--gpus", "--mem", "-t", "--exclusive")
    values = iter(words)
    return sorted(
        f"{word}={next(values)}" if word in ("--mem", "-t") else word for word in values if word.startswith(about)
    )


def test_two_hosts_with_four_gpus_each(sbatch):
    gpus = ("device=cuda", "gpus_per_node=4", "world_size=8", "threads_per_rank=3", "workers=2")
    words, output = sbatch("gradients", GRADIENTS, *gpus)
    asked = ["--cpus-per-task=20", "--gres=gpu:4", "--mem=4000", "--nodes=2", "--ntasks=2", "-t=120"]
    assert options(words) == asked, "and neither --gpus nor --ntasks-per-gpu, which are for all hosts together"
    step = "srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=20 env NPROC_PER_NODE=4 RDZV_TIMEOUT_S=600"
    assert f"Shell command: {step} python -m ddp_tokens.hosts -m ddp_tokens.gradients --settings" in output


def test_two_hosts_without_gpus(sbatch):
    words, _ = sbatch("gradients", GRADIENTS, "world_size=4")
    assert options(words) == ["--cpus-per-task=2", "--mem=4000", "--nodes=2", "--ntasks=2", "-t=120"]


def test_one_host_with_four_gpus(sbatch):
    words, output = sbatch("gradients", GRADIENTS, "device=cuda", "nodes=1", "world_size=4")
    assert options(words) == ["--cpus-per-task=4", "--gpus=4", "--mem=4000", "--nodes=1", "-t=120"]
    assert "srun" not in output


def test_a_single_process_is_where_a_gpu_is(sbatch):
    words, _ = sbatch("reference", INITIAL, "device=cuda")
    assert options(words) == ["--cpus-per-task=1", "--gpus=1", "--mem=4000", "--nodes=1", "-t=120"]


def test_slurm_takes_the_options_for_gpus(cluster, sbatch, tmp_path):
    """Its nodes say that they have four each."""
    words, _ = sbatch("gradients", GRADIENTS, "device=cuda", "gpus_per_node=4", "world_size=8", "threads_per_rank=1")
    asked = [word.replace("--cpus-per-task=4", "--cpus-per-task=2") for word in options(words) if word[:2] == "--"]
    step = "srun --nodes=2 --ntasks-per-node=1 sh -c 'echo $SLURMD_NODENAME $SLURM_STEP_GPUS $SLURM_GPUS_ON_NODE'"
    said = tmp_path / "said.txt"
    cluster.run("sbatch", "--wait", f"--output={said}", *asked, f"--wrap={step}")
    assert sorted(line.split()[0] for line in said.read_text().splitlines()) == ["n1", "n2"]
    assert all(line.endswith(" 4") for line in said.read_text().splitlines()), said.read_text()


def test_several_hosts_without_slurm_are_refused_before_the_first_job(prepared, tmp_path):
    project = Path(shutil.copytree(prepared, tmp_path / "project"))
    done = local_snakemake(project, "--config", "nodes=2", "--", GATE)
    assert done.returncode != 0
    assert "tiny: nodes is 2, and this call starts ranks on one host only: set nodes to 1, let SLURM" in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project / "results/tiny/corpus/.snakemake_timestamp").exists()
    assert not (project / "results/tiny/gradients").exists()
