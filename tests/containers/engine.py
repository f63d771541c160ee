"""The services of compose.yaml, for real, where no Docker engine runs: podman-compose with podman and runc, as root.

The image is built on a Debian made by debootstrap, or on the image that BASE names. BUILD_OPTIONS are more options for
`podman build`, such as --volume for a folder of wheels that pip's settings name. Where no overlay can be mounted, set
STORAGE_DRIVER=vfs.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import PROJECT

PROGRAMS = ("podman", "runc", "debootstrap", "catatonit")
USER = 1234  # to whom the project belongs; not root, and nobody here
DEBIAN = "localhost/debian-with-python"
PACKAGES = "ca-certificates,python3,python3-venv,python3-pip"
STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
# Plain limits, which a sandbox lets runc set.
LIMITS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""


def missing() -> str | None:
    if os.getuid() != 0:
        return "not root"
    absent = [program for program in PROGRAMS if not (shutil.which(program) or Path("/usr/bin", program).exists())]
    return f"no {', '.join(absent)}: Debian has packages of these names" if absent else None


@dataclass(frozen=True)
class Engine:
    """`environment` says that images are kept in `folder`, and what podman may ask of the kernel."""

    folder: Path
    environment: Mapping[str, str]

    def _debian(self) -> str:
        """Debian 12, with the Python that it has."""
        root = self.folder / "debian"
        self._run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root))
        for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        packed = self.folder / "debian.tar"
        self._run("tar", "--create", "--file", str(packed), "--directory", str(root), ".")
        self._run("podman", "import", str(packed), DEBIAN)
        packed.unlink()
        shutil.rmtree(root)
        return DEBIAN

    def build(self, project: Path) -> None:
        base = os.environ.get("BASE") or self._debian()
        options = (
            f"--podman-build-args=--layers=false {os.environ.get('BUILD_OPTIONS', '')}"  # one copy, none to build on
        )
        done = self.compose(project, [options, "build", "cpu"], BASE=base)
        assert done.returncode == 0, done.stdout

    def service(self, project: Path, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """What `docker compose run --rm NAME COMMAND` does."""
        return self.compose(project, ["run", "--rm", "-T", name, *command])

    def compose(self, project: Path, arguments: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=project,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "podman_compose", "--in-pod=0", *arguments]

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"


@contextmanager
def engine_in(folder: Path) -> Iterator[Engine]:
    """At the end no container runs, and the images are gone."""
    (folder / "storage.conf").write_text(
        STORAGE.format(folder=folder, driver=os.environ.get("STORAGE_DRIVER", "overlay"))
    )
    (folder / "containers.conf").write_text(LIMITS)
    own = {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "BUILDAH_ISOLATION": "chroot",
    }
    engine = Engine(folder, {**os.environ, **own})
    try:
        yield engine
    finally:
        subprocess.run(["podman", "system", "reset", "--force"], env=engine.environment, capture_output=True)


def copy_of_checkout(folder: Path) -> Path:
    """What git tracks, as it is now, set up for containers; it belongs to USER."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, folder / name)
    subprocess.run(["chown", "--recursive", f"{USER}:{USER}", str(folder)], check=True)
    subprocess.run([str(folder / "scripts" / "setup.sh")], check=True)
    return folder
