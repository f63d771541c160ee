"""Write the locks and environment.yaml from the ranges in pyproject.toml. Run it by `make lock`.

pip resolves the whole set, from nothing, with the pins below. The lock names no build of torch (no "+cpu") and none of
the packages that only torch's CUDA build needs, since torch pins those itself: one lock serves CPU and GPU machines.
slurm.lock holds what the extra `slurm` needs besides, in versions that fit. Who has no SLURM does without: its plugin
asks the cluster whenever Snakemake starts. trainers.lock and data.lock are as that, for the extras `trainers` and
`data`, which `make trainers` and `make data` install.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ENVS = Path(__file__).parent
PROJECT = ENVS.parent
PINS = {"torch": "2.13.0"}
BESIDE = ("slurm", "trainers", "data")  # extras with a lock of their own, which is installed beside the other
ONLY_ON_GPU_BUILDS = re.compile(r"^(nvidia-|cuda-|triton$)")
HEADER = "# Made by `make lock` from pyproject.toml; edit that instead.\n"
CONDA = """\
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python=3.11
  - pip
  - pip:
"""


def resolve(requirements: list[str]) -> dict[str, str]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    report = json.loads(subprocess.run([*command, *requirements], check=True, capture_output=True).stdout)
    found = {}
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if not ONLY_ON_GPU_BUILDS.match(name):
            found[name] = item["metadata"]["version"].split("+")[0]
    return dict(sorted(found.items()))


def write_lock(name: str, versions: dict[str, str]) -> None:
    (ENVS / name).write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in versions.items()))


def main() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    direct = [*project["project"]["dependencies"], *extras["dev"]]
    pins = [f"{name}=={version}" for name, version in PINS.items()]
    versions = resolve([*direct, *project["build-system"]["requires"], *pins])
    write_lock("requirements.lock", versions)
    for extra in BESIDE:
        with_extra = resolve([*extras[extra], "--constraint", str(ENVS / "requirements.lock")])
        write_lock(f"{extra}.lock", {name: version for name, version in with_extra.items() if name not in versions})
    names = sorted(re.split(r"[<>=! ]", requirement)[0].lower() for requirement in direct)
    packages = "".join(f"      - {name}=={versions[name]}\n" for name in names)
    (ENVS / "environment.yaml").write_text(HEADER + CONDA + packages)


if __name__ == "__main__":
    main()
