"""scripts/setup.sh in a copy: folders for the containers, UID and GID in .env, and nothing else."""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.helpers import PROJECT

IS_ROOT = os.geteuid() == 0
OWNER = (12345, 23456) if IS_ROOT else (os.getuid(), os.getgid())
WRITTEN = f"UID={OWNER[0]}\nGID={OWNER[1]}\n"
FOLDERS = (".snakemake", "data", "results")
only_root = pytest.mark.skipif(not IS_ROOT, reason="needs files of several users: run as root")


@pytest.fixture
def project():
    """A copy that belongs to OWNER, where another user than the one of the tests can come, too."""
    with tempfile.TemporaryDirectory(prefix="setup ") as folder:
        os.chmod(folder, 0o755)
        copy = Path(folder) / "the project"
        (copy / "scripts").mkdir(parents=True)
        shutil.copy(PROJECT / "scripts/setup.sh", copy / "scripts")
        give(copy, *OWNER)
        yield copy


def give(folder, user, group):
    for path in (folder, *folder.rglob("*")):
        if IS_ROOT:
            os.chown(path, user, group, follow_symlinks=False)


def setup(project, cwd="/", environment=(), **who):
    base = {name: value for name, value in os.environ.items() if name not in ("SUDO_UID", "SUDO_GID")}
    command = [str(project / "scripts/setup.sh")]
    return subprocess.run(
        command, cwd=cwd, env=base | dict(environment), capture_output=True, text=True, timeout=60, **who
    )


def state(folder):
    """All that a second call could change."""
    found = {}
    for path in sorted((folder, *folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ino, content)
    return found


def made(project):
    return sorted(path.name for path in project.iterdir() if path.name != "scripts")


def refused(project, sentence, **how):
    before = state(project)
    done = setup(project, **how)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"setup.sh: {sentence}\n")
    assert state(project) == before


def test_makes_the_folders_and_writes_who_owns_results(project):
    done = setup(project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"setup.sh: results .snakemake data are there, and .env says UID={OWNER[0]} and GID={OWNER[1]}\n"
    )
    assert (project / ".env").read_text() == WRITTEN
    assert made(project) == sorted([".env", *FOLDERS])
    for name in made(project):
        status = (project / name).stat()
        assert (status.st_uid, status.st_gid) == OWNER
    assert stat.S_IMODE((project / ".env").stat().st_mode) == 0o644


def test_a_second_call_changes_nothing(project):
    setup(project)
    before = state(project)
    assert setup(project, cwd=project / "scripts", environment={"CDPATH": "/usr"}).returncode == 0
    assert state(project) == before


@only_root
def test_an_ordinary_user_runs_it(project):
    done = setup(project, user=OWNER[0], group=OWNER[1], extra_groups=[])
    assert done.returncode == 0, done.stderr
    assert (project / ".env").read_text() == WRITTEN


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("BASE=x\n# UID=1\n", "BASE=x\n# UID=1\n{uid}\n{gid}\n"),
        ("BASE=no end", "BASE=no end\n{uid}\n{gid}\n"),
        ("A=1\r\nUID=7\nB=a&b/\\1\nexport GID = 0\nUID_MAX=5\n", "A=1\r\n{uid}\nB=a&b/\\1\n{gid}\nUID_MAX=5\n"),
        ("", "{uid}\n{gid}\n"),
        ("{gid}\nX=\udcff\n", "{gid}\nX=\udcff\n{uid}\n"),
    ],
)
def test_other_lines_of_env_stay_byte_for_byte(project, before, after):
    uid, gid = WRITTEN.split()

    def written(text):
        return text.replace("{uid}", uid).replace("{gid}", gid).encode(errors="surrogateescape")

    path = project / ".env"
    path.write_bytes(written(before))
    path.chmod(0o600)
    give(project, *OWNER)
    assert setup(project).returncode == 0
    assert path.read_bytes() == written(after)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made(project) == sorted([".env", *FOLDERS])
    assert setup(project).returncode == 0
    assert path.read_bytes() == written(after)


@only_root
def test_sudo_means_who_called_it(project):
    give(project, 777, 778)
    assert setup(project, environment={"SUDO_UID": "777", "SUDO_GID": "778"}).returncode == 0
    assert (project / ".env").read_text() == "UID=777\nGID=778\n"
    assert (project / "data").stat().st_uid == 777


@only_root
@pytest.mark.parametrize("environment", [{}, {"SUDO_UID": "0", "SUDO_GID": "0"}])
def test_root_alone_is_refused(project, environment):
    give(project, 0, 0)
    sentence = "containers do not run as root: run this as the user to whom results should belong"
    refused(project, sentence, environment=environment)


@only_root
def test_what_another_user_has_made_in_the_results_is_refused_with_the_repair(project):
    file = project / "results" / "minimum" / "plan.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    give(project, *OWNER)
    os.chown(file, 0, 0)
    done = setup(project)
    assert done.returncode == 1
    assert done.stderr == (
        f"setup.sh: results/minimum/plan.json belongs to user 0, not {OWNER[0]}: sudo chown -R {OWNER[0]}:{OWNER[1]} "
        "results\n"
    )
    assert made(project) == ["results"]


@only_root
def test_sudo_without_a_group_means_the_group_of_that_user(project):
    give(project, 0, 0)
    assert setup(project, environment={"SUDO_UID": "0"}).returncode == 1
    done = setup(project, environment={"SUDO_UID": "1"})  # daemon, on every Linux
    assert (done.returncode, (project / ".env").read_text()) == (0, "UID=1\nGID=1\n")
    nobody = setup(project, environment={"SUDO_UID": "54321"})
    assert nobody.returncode == 1
    assert "SUDO_UID=54321 and SUDO_GID= must be numbers" in nobody.stderr


@only_root
def test_a_folder_of_another_user_is_refused_with_the_repair(project):
    (project / "results").mkdir()  # as docker makes a folder that it mounts
    sentence = "results belongs to user 0, not 12345: sudo chown -R 12345:23456 results"
    refused(project, sentence)
    refused(project, sentence, user=OWNER[0], group=OWNER[1], extra_groups=[])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_file_in_the_place_of_a_folder_is_refused(project, name):
    (project / name).touch()
    refused(project, f"{name} is no folder: move it away")


def test_a_link_that_leads_nowhere_is_no_folder(project):
    (project / "data").symlink_to("gone")
    refused(project, "data is no folder: move it away")


def test_env_as_a_link_is_refused(project):
    (project / "settings").write_text("A=1\n")
    (project / ".env").symlink_to("settings")
    refused(project, ".env is a symbolic link, which is not written through: replace it by a file")


def test_env_as_a_folder_is_refused(project):
    (project / ".env").mkdir()
    refused(project, ".env is no file: move it away")


def test_git_ignores_what_it_writes():
    if not (PROJECT / ".gitignore").is_file():
        pytest.skip("an unpacked archive without .gitignore")
    assert {".env", "/data/", ".snakemake/", "results/*"} <= set((PROJECT / ".gitignore").read_text().split())
