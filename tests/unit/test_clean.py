"""What `clean` deletes, what it leaves, and what it refuses, in projects of a few small files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_tokens import clean, sweep, tracked
from ddp_tokens.errors import CleanError
from ddp_tokens.locks import lock_alone
from ddp_tokens.options import run_as_program
from ddp_tokens.sweep import Sweep
from tests.helpers import PROJECT

IS_ROOT = os.geteuid() == 0
README = "results/README.md"
RUN_FILES = ["results/a/runs/.interrupt.0123456789abcdef/step-0002/model", "results/a/runs/resume/step-0004/model"]
BY_HAND = ["results/by hand/a/runs/resume/step-0004/model"]
OTHER = ["results/a/corpus/lock.json", "results/a/plan.json", "results/by hand/a/plan.json"]
AUDIT = ["results/audit/runs/bare.json"]  # no run of an experiment: nothing in it is a checkpoint
GONE_YAML = ["results/was/runs/resume/model", "results/was/plan.json"]
CONTROLS = ["results/controls/ranks/2/runs/x/model", "results/report.zip"]
OF_TOOLS = [
    ".snakemake/metadata/x",
    ".pytest_cache/x",
    ".mypy_cache/x",
    ".ruff_cache/x",
    ".hypothesis/x",
    "__pycache__/x.pyc",
    "src/ddp_tokens/__pycache__/x.pyc",
    "tests/__pycache__/x.pyc",
]
NEVER = [
    "Snakefile",
    "config/config.yaml",
    "config/a.yaml",
    "config/__pycache__/x.pyc",
    "data/rows.jsonl",
    ".env",
    ".venv/lib/__pycache__/x.pyc",
    ".venv/results/x",
    "src/ddp_tokens/x.py",
    README,
]
CHECKPOINTS = [*RUN_FILES, *BY_HAND, GONE_YAML[0]]
GENERATED = [*OTHER, GONE_YAML[1], *CONTROLS, *AUDIT]
GOES = {"checkpoints": CHECKPOINTS, "generated": GENERATED, "all": [*CHECKPOINTS, *GENERATED, *OF_TOOLS]}
EVERYTHING = [*CHECKPOINTS, *GENERATED, *OF_TOOLS, *NEVER]


def write(path, content="12345"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Outside any repository, unless a test makes one."""
    root = tmp_path / "project"
    for path in EVERYTHING:
        write(root / path)
    write(root / "config/config.yaml", "experiments: [a]\n")
    write(root / "config/a.yaml", "steps: 4\ninterrupt_at: 2\n")
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL"):
        monkeypatch.setenv(name, {"GIT_CONFIG_NOSYSTEM": "1"}.get(name, os.devnull))
    return root


def git(folder, *arguments):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def run(*arguments):
    return run_as_program("ddp_tokens.cli", lambda own: clean.main("ddp_tokens.cli clean", own), arguments)


def files(root):
    """Files and links below a folder."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()}


def state(root):
    paths = sorted([root, *root.rglob("*")])
    return [
        (str(path), (s := path.lstat()).st_mode, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_size) for path in paths
    ]


def refuses(sentence, *arguments):
    """And changes nothing."""
    before = state(Path.cwd())
    with pytest.raises(CleanError, match=sentence) as refusal:
        clean.main("clean", arguments)
    assert state(Path.cwd()) == before
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("scope", list(GOES))
def test_each_scope_deletes_what_it_says_and_a_second_call_nothing(project, capsys, scope):
    before = files(project)
    assert before == set(EVERYTHING)
    assert run("--scope", scope, "--yes") == 0
    assert files(project) == before - set(GOES[scope])
    assert f"{len(GOES[scope])}  deleted" in capsys.readouterr().out
    assert run("--scope", scope, "--yes") == 0
    assert capsys.readouterr().out == "Nothing to clean.\n"
    assert files(project) == before - set(GOES[scope])


def test_all_leaves_no_empty_folder_of_results(project):
    run("--scope", "all", "--yes")
    assert os.listdir("results") == ["README.md"]
    assert sorted(os.listdir()) == sorted(["Snakefile", "config", "data", ".env", ".venv", "src", "tests", "results"])


@pytest.mark.parametrize("scope", list(GOES))
@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_dry_run_changes_nothing_at_all(project, capsys, scope, how):
    """Neither with lock files nor without: `.snakemake` is there in one scope only."""
    if scope == "generated":
        shutil.rmtree(".snakemake")
        write(project / "results/a/runs/.resume.lock", "1@gone/boot\n")
    before = state(project)
    assert run("--scope", scope, *how) == 0
    assert state(project) == before
    out = capsys.readouterr().out
    assert f"{len(GOES[scope])}  in all\n" in out
    assert out.endswith("Nothing has been deleted.\n")


def test_one_line_for_each_folder_that_goes_as_a_whole(project, capsys):
    write(project / "results/a/plan.json", "x" * 3000)
    run("--scope", "generated")
    assert capsys.readouterr().out == (
        "      size   files  path\n"
        "       5 B       1  results/a/corpus\n"
        "   2.9 KiB       1  results/a/plan.json\n"
        "       5 B       1  results/audit\n"
        "       5 B       1  results/by hand/a/plan.json\n"
        "       5 B       1  results/controls\n"
        "       5 B       1  results/report.zip\n"
        "       5 B       1  results/was/plan.json\n"
        "   3.0 KiB       7  in all\n"  # 3,030 / 1,024 = 2.959
        "Nothing has been deleted.\n"
    )


def test_runs_are_one_line_each(project, capsys):
    run("--scope", "checkpoints")
    lines = capsys.readouterr().out.splitlines()[1:-2]
    assert [line.split(maxsplit=3)[2:] for line in lines] == [
        ["1" if name != "a" else "2", f"results/{name}/runs"] for name in ("a", "by hand/a", "was")
    ]


def test_a_sparse_file_and_a_file_with_two_names_count_what_they_take(project, capsys):
    with open("results/a/runs/sparse", "wb") as stream:
        stream.truncate(2**40)
    os.link("results/a/plan.json", "results/a/plan-again.json")
    run("--scope", "checkpoints")
    assert "TiB" not in capsys.readouterr().out
    run("--scope", "generated")
    out = capsys.readouterr().out
    assert re.search(r" 5 B +1  results/a/plan-again.json\n +0 B +1  results/a/plan.json\n", out)


def test_names_with_blanks_and_line_breaks(project, capsys):
    odd = "a b\n\x1b[31m\udcff'\"$(x)*"
    write(project / "results" / odd / "x")
    write(project / "results/a/runs" / odd)
    assert run("--scope", "all", "--yes") == 0
    assert os.listdir("results") == ["README.md"]
    assert "results/a b\\n\\x1b[31m\\udcff'\"$(x)*\n" in capsys.readouterr().out


def test_the_scope_must_be_given_and_dry_run_and_yes_do_not_go_together(project, capsys):
    before = state(project)
    for arguments, said in [
        (["--yes"], "the following arguments are required: --scope"),
        (["--scope", "all", "--dry-run", "--yes"], "argument --yes: not allowed with argument --dry-run"),
        (["--scope", "most", "--yes"], "invalid choice: 'most'"),
        (["--scope", "all", "--ye"], "required|unrecognized arguments: --ye"),
    ]:
        with pytest.raises(SystemExit) as end:
            run(*arguments)
        assert end.value.code == 2
        assert re.search(said, capsys.readouterr().err)
    assert state(project) == before


@pytest.mark.parametrize("missing", ["Snakefile", "config"])
def test_a_folder_that_is_no_project_is_refused(project, missing):
    os.rename(missing, "other")
    refuses(r"is no project \(Snakefile and config/ are missing\): go to its folder first", "--scope", "all", "--yes")


# Symbolic links.


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    write(folder / "precious")
    write(folder / "plan.json")
    write(folder / "runs/resume/model")
    return folder


LINKS = {
    "results/file": "../../outside/precious",
    "results/folder": "../../outside",
    "results/a/runs/resume/step-0004/link": "../../../../../../outside",
    "results/a/runs/linked": "../../../../outside/runs/resume",
    "results/by hand/a/dangling": "nowhere",
    "results/a/config": "../../config",
    "results/a/absolute": "/",
    "results/was/loop": "loop",
    "src/ddp_tokens/sub/__pycache__": "../../../../outside",
    ".ruff_cache/link": "../config/a.yaml",
}


@pytest.mark.parametrize("scope", list(GOES))
def test_links_are_neither_followed_nor_deleted(project, outside, capsys, scope):
    for link, target in LINKS.items():
        (project / link).parent.mkdir(parents=True, exist_ok=True)
        (project / link).symlink_to(target)
    before_outside, before = state(outside), files(project)
    assert run("--scope", scope, "--yes") == 0
    assert state(outside) == before_outside
    assert files(project) == before - set(GOES[scope])
    assert {link: os.readlink(link) for link in LINKS} == LINKS
    left = set(re.findall(r"^left: (.*) is a symbolic link$", capsys.readouterr().out, flags=re.MULTILINE))
    inside = {link for link in LINKS if "/runs/" in link}
    others = {link for link in LINKS if link.startswith("results/")} - inside
    of_results = {"results/file", "results/folder"}
    assert left == {"checkpoints": inside | of_results, "generated": others, "all": set(LINKS)}[scope]


@pytest.mark.parametrize("link", ["results", "results/a", "results/a/runs", ".snakemake", "src"])
def test_a_folder_that_is_itself_a_link_stays_with_all_that_is_in_it(project, tmp_path, capsys, link):
    os.rename(link, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", link)
    before = state(tmp_path / "elsewhere")
    assert run("--scope", "all", "--yes") == 0
    assert os.path.islink(link)
    assert state(tmp_path / "elsewhere") == before
    out = capsys.readouterr().out
    assert (f"left: {link} is a symbolic link\n" in out) == (link != "src")
    assert "deleted\n" in out
    for path in NEVER:
        assert Path(path).is_file()


def test_a_link_that_comes_while_it_walks_leads_nowhere(project, outside):
    """results/a is exchanged for a link after the walk was decided on, and after `above` was looked at."""
    before = state(outside)
    sweep = Sweep(project, lambda path: None, delete=True)
    shutil.rmtree("results/a")
    os.symlink(outside, "results/a")
    sweep.take("results/a/plan.json")
    sweep.take("results/a/runs")
    sweep.take("results/a")
    assert state(outside) == before
    assert [path for path, _ in sweep.failed] == ["results/a/plan.json", "results/a/runs"]
    assert sweep.left == [("results/a", "is a symbolic link")]
    assert sweep.rows == []


# What git tracks.


@pytest.mark.parametrize("where", [".", ".."])
@pytest.mark.parametrize("scope", list(GOES))
def test_what_git_tracks_stays_with_its_folders(project, capsys, scope, where):
    """Also where the project is a folder of a larger repository."""
    kept = {"results/a/plan.json", RUN_FILES[1], "results/new\nline", ".pytest_cache/x"}
    write(project / "results/new\nline")
    write(project / ".gitignore", "results/*\n")
    git(project, "init", str(project / where))
    git(project, "add", "--force", *kept)
    before = files(project)
    assert run("--scope", scope, "--yes") == 0
    assert files(project) == before - (set(GOES[scope]) - kept)
    out = capsys.readouterr().out
    assert ("left: results/new\\nline is tracked by git\n" in out) == (scope != "checkpoints")
    assert "README" not in out


def test_a_folder_in_which_something_stays_is_listed_by_what_goes(project, capsys):
    git(project, "init")
    git(project, "add", "--force", RUN_FILES[1])
    write(project / "results/a/runs/resume/step-0004/manifest")
    run("--scope", "checkpoints")
    assert [line.split(maxsplit=3)[-1] for line in capsys.readouterr().out.splitlines()[1:3]] == [
        "results/a/runs/.interrupt.0123456789abcdef",
        "results/a/runs/resume/step-0004/manifest",
    ]


def test_what_another_repository_tracks_in_the_environment_does_not_count(project, tmp_path, monkeypatch):
    """As within a hook, where git says which index is meant."""
    git(project, "init")
    git(project, "add", "--force", "results/a/plan.json")
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "no-index"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "no-repository"))
    assert run("--scope", "generated", "--yes") == 0
    assert Path("results/a/plan.json").is_file()


def test_git_that_does_not_answer_is_a_refusal_with_its_reason(project):
    (project / ".git").mkdir()
    said = refuses("git does not say what it tracks in .*, so nothing is deleted: ", "--scope", "all", "--yes")
    assert "not a git repository" in said


@pytest.mark.skipif(not IS_ROOT, reason="needs files of several users: run as root")
def test_dubious_ownership_is_told(project, monkeypatch):
    monkeypatch.delenv("SUDO_UID", raising=False)
    git(project, "init")
    for path in (project, project / ".git"):
        os.chown(path, 12345, 12345)
    refuses("detected dubious ownership in repository at .* git config --global --add", "--scope", "all", "--yes")


def test_a_missing_git_is_a_refusal_where_there_is_a_repository_and_none_elsewhere(project, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert tracked.tracked(project) == frozenset()
    (project / ".git").write_text("gitdir: elsewhere\n")
    refuses("git cannot be asked what it tracks in .*: install git", "--scope", "all", "--yes")


# Who is at work.

HOLD = """
import sys
from pathlib import Path
from ddp_tokens.locks import lock_alone, share
held = lock_alone(Path(sys.argv[1]))
assert sys.argv[2] == "alone" or share(held)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(project):
    started = []

    def start(path, how):
        command = [sys.executable, "-c", HOLD, str(path), how]
        environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.communicate()


@pytest.mark.parametrize("scope", list(GOES))
def test_it_refuses_while_snakemake_builds(project, holder, capsys, scope):
    process = holder(".snakemake/ddp-tokens.lock", "alone")
    sentence = f"snakemake builds in this folder, process {process.pid}: wait until it has ended"
    assert refuses(".", "--scope", scope, "--yes") == sentence
    before = state(project)
    assert run("--scope", scope) == 0
    assert state(project) == before
    assert f"Nothing has been deleted, and --yes would be refused now: {sentence}.\n" in capsys.readouterr().out


@pytest.mark.parametrize("scope", list(GOES))
@pytest.mark.parametrize(
    ("folder", "run"),
    [("a", "interrupt"), ("by hand/a", "resume"), ("was", "scaling"), ("a", "later")],
)
def test_it_refuses_while_a_run_is_written(project, holder, folder, run, scope):
    process = holder(f"results/{folder}/runs/.{run}.lock", "shared")
    said = refuses(".", "--scope", scope, "--yes")
    assert said == (
        f"results/{folder}/runs/{run} is being written by process {process.pid}: wait until that has ended, or end it"
    )


def test_a_run_behind_a_link_is_seen_and_its_folder_not_written(project, holder, tmp_path):
    os.rename("results/a/runs", tmp_path / "scratch")
    os.symlink(tmp_path / "scratch", "results/a/runs")
    holder("results/a/runs/.resume.lock", "shared")
    before = state(tmp_path / "scratch")
    refuses("results/a/runs/resume is being written by process", "--scope", "generated", "--yes")
    assert state(tmp_path / "scratch") == before


def test_the_locks_are_held_while_it_deletes(project, monkeypatch):
    """Asked by another process at the moment at which the first folder is walked."""
    asked = []
    take = Sweep.take
    code = (
        "import sys; from pathlib import Path; from ddp_tokens.locks import is_held; print(is_held(Path(sys.argv[1])))"
    )

    def take_and_ask(sweep, path):
        if not asked:
            for lock in (".snakemake/ddp-tokens.lock", "results/a/runs/.resume.lock", "results/was/runs/.scaling.lock"):
                done = subprocess.run([sys.executable, "-c", code, lock], capture_output=True, text=True, check=True)
                asked.append(done.stdout)
        take(sweep, path)

    monkeypatch.setattr(Sweep, "take", take_and_ask)
    assert run("--scope", "generated", "--yes") == 0
    assert asked == ["True\n"] * 3
    assert not list(project.rglob("*.lock"))  # made for the moment only


def test_locks_that_were_there_are_left_and_free(project):
    for path in (".snakemake/ddp-tokens.lock", "results/a/runs/.resume.lock"):
        write(project / path, "1@gone/boot\n")
    assert run("--scope", "generated", "--yes") == 0
    assert {path.name for path in project.rglob("*.lock")} == {"ddp-tokens.lock", ".resume.lock"}
    assert run("--scope", "all", "--yes") == 0
    assert not list(project.rglob("*.lock"))


# What cannot be deleted.


@pytest.mark.skipif(IS_ROOT, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named_and_the_rest_goes(project, capsys):
    os.chmod("results/a/corpus", 0o500)
    os.chmod("results/a/runs", 0o500)
    try:
        assert run("--scope", "generated", "--yes") == 1
    finally:
        os.chmod("results/a/corpus", 0o700)
        os.chmod("results/a/runs", 0o700)
    told = capsys.readouterr()
    assert told.err == "ddp_tokens.cli clean: results/a/corpus/lock.json cannot be deleted: Permission denied\n"
    assert re.search(r"5 B +1  results/a \(in part\)\n", told.out)
    assert f"{len(GENERATED) - 1}  deleted" in told.out
    assert set(EVERYTHING) - files(project) == set(GENERATED) - {"results/a/corpus/lock.json"}


def test_an_error_in_the_middle_is_named_and_the_rest_goes(project, capsys, monkeypatch):
    """For root, who may write everywhere: the same error, from the call that would raise it."""
    unlink = os.unlink

    def refusing(name, *, dir_fd=None):
        if name == "lock.json":
            raise PermissionError(13, "Permission denied", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    assert run("--scope", "generated", "--yes") == 1
    told = capsys.readouterr()
    assert told.err == "ddp_tokens.cli clean: results/a/corpus/lock.json cannot be deleted: Permission denied\n"
    assert re.search(r"5 B +1  results/a \(in part\)\n", told.out)
    assert files(project) & set(GENERATED) == {"results/a/corpus/lock.json"}


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
40 22 254:0 /else/where {root}/results/by\\040hand rw,relatime - ext4 /dev/root rw
41 22 254:0 /victim {root}/results/a/runs/m rw,relatime - ext4 /dev/root rw
42 22 254:0 /other {root}-not/results rw,relatime - ext4 /dev/root rw
"""


def test_what_is_mounted_is_read_as_the_kernel_tells_it(tmp_path, monkeypatch):
    """proc_pid_mountinfo(5): the fifth field, a space in it as \\040. A bind mount has the device around it."""
    told = tmp_path / "mountinfo"
    told.write_text(MOUNTS.format(root=tmp_path))
    monkeypatch.setattr(sweep, "MOUNTS", told)
    assert sweep.mount_points(tmp_path) == {"results/by hand", "results/a/runs/m"}
    assert sweep.mount_points(tmp_path / "results") == {"by hand", "a/runs/m"}


@pytest.mark.parametrize("scope", ["checkpoints", "generated", "all"])
def test_what_is_mounted_is_left(project, capsys, monkeypatch, scope):
    mounted = write(project / "results/a/runs/m/precious").parent
    monkeypatch.setattr(clean, "mount_points", lambda root: frozenset({"results/by hand", "results/a/runs/m"}))
    assert run("--scope", scope, "--yes") == 0
    assert (mounted / "precious").exists()
    kept = {path for path in EVERYTHING if path.startswith("results/by hand/")}
    assert files(project) == set(EVERYTHING) - set(GOES[scope]) | kept | {"results/a/runs/m/precious"}
    told = capsys.readouterr().out
    assert "left: results/by hand is mounted from elsewhere\n" in told
    assert ("left: results/a/runs/m is mounted from elsewhere\n" in told) == (scope != "generated")


def test_a_real_mount_is_left(project):
    """In a namespace of mounts of its own, which ends with the command."""
    victim, mounted = write(project.parent / "victim" / "precious").parent, project / "results" / "a" / "mounted"
    mounted.mkdir()
    script = 'mount --bind "$0" "$1" && shift && exec "$@"'
    mounting = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(victim), str(mounted)]
    if subprocess.run([*mounting, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets no process mount a folder")
    program = [sys.executable, "-m", "ddp_tokens.cli", "clean", "--scope", "generated", "--yes"]
    done = subprocess.run([*mounting, *program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "left: results/a/mounted is mounted from elsewhere\n" in done.stdout
    assert (victim / "precious").exists()
    assert not (project / "results/a/plan.json").exists()


def test_in_a_container_that_sees_only_the_results_it_is_refused(project, monkeypatch):
    """There is no repository there, but perhaps one where the results are mounted from."""
    monkeypatch.setattr(clean, "mount_points", lambda root: frozenset({"results"}))
    before = files(project)
    with pytest.raises(CleanError, match="results is mounted from elsewhere, where git may track what is in it"):
        clean.main("clean", ["--scope", "all", "--yes"])
    assert files(project) == before
    git(project, "init")
    assert run("--scope", "all", "--yes") == 0
    assert files(project) & set(EVERYTHING) == set(NEVER)


@pytest.mark.parametrize(
    ("repository", "scope"),
    [("results", "generated"), ("results", "checkpoints"), ("results/a", "checkpoints"), ("src/ddp_tokens", "all")],
)
def test_what_is_inside_another_repository_is_left(project, capsys, repository, scope):
    git(project, "init", repository)
    assert run("--scope", scope, "--yes") == 0
    assert {path for path in files(project) if path.startswith(f"{repository}/")} >= {
        path for path in EVERYTHING if path.startswith(f"{repository}/")
    }
    assert f"left: {repository} is a git repository of its own\n" in capsys.readouterr().out


def test_results_as_a_submodule_are_left(project, capsys):
    git(project, "init")
    git(project, "init", "results")
    git(project / "results", "add", ".")
    git(project / "results", "commit", "-m", "x")
    git(project, "add", "results")
    assert run("--scope", "generated", "--yes") == 0
    assert files(project) >= set(EVERYTHING)
    assert "left: results is tracked by git\n" in capsys.readouterr().out


@pytest.mark.parametrize("scope", ["generated", "all"])
def test_other_repositories_are_left(project, capsys, scope):
    git(project, "init", "results/nested")
    git(project, "init", "--bare", "results/a/bare")
    write(project / "results/nested/work")
    assert run("--scope", scope, "--yes") == 0
    assert (project / "results/nested/.git/HEAD").exists()
    assert (project / "results/nested/work").exists()
    assert (project / "results/a/bare/HEAD").exists()
    assert not (project / "results/a/plan.json").exists()
    told = capsys.readouterr().out
    assert "left: results/nested is a git repository of its own\n" in told
    assert "left: results/a/bare is a git repository of its own\n" in told


OF_IMAGES = "workload: images\nmodel: {kind: resnet}\n"


@pytest.mark.parametrize(
    ("corpus", "path"),
    [
        ("{path: results/mine/rows.jsonl}", "results/mine/rows.jsonl"),
        ("{path: ./results/../results/a/rows.jsonl}", "results/a/rows.jsonl"),
        ("{kind: own_images, path: results/a/runs/images, train: 2, test: 1}", "results/a/runs/images/cat/1.png"),
    ],
)
def test_what_an_experiment_reads_is_left(project, capsys, corpus, path):
    write(project / path)
    write(project / "config/own.yaml", f"{OF_IMAGES * ('images' in corpus)}corpus: {corpus}\n")
    assert run("--scope", "all", "--yes") == 0
    assert files(project) == {*NEVER, path, "config/own.yaml"}
    assert re.search(r"left: results/\S+ is read by config/own.yaml\n", capsys.readouterr().out)


def test_images_behind_links_are_left(project):
    """A folder per class, as own images have it; one image, and one class, lie in the results."""
    for path in ("results/a/made/1.png", "results/a/dogs/1.png", "data/images/cat/2.png"):
        write(project / path)
    (project / "data/images/cat/1.png").symlink_to(project / "results/a/made/1.png")
    (project / "data/images/dog").symlink_to(project / "results/a/dogs")
    corpus = "{kind: own_images, path: data/images, train: 2, test: 1}"
    write(project / "config/own.yaml", f"{OF_IMAGES}corpus: {corpus}\n")
    assert run("--scope", "all", "--yes") == 0
    assert files(project) >= {"results/a/made/1.png", "results/a/dogs/1.png"}
    assert not (project / "results/a/plan.json").exists()


def test_a_run_by_hand_in_a_deep_folder_is_noticed(project):
    run_lock = project / "results/by hand/deeper/a/runs/.resume.lock"
    run_lock.parent.mkdir(parents=True)
    before = files(project)
    with (
        lock_alone(run_lock),
        pytest.raises(CleanError, match=r"results/by hand/deeper/a/runs/resume is being written"),
    ):
        clean.main("clean", ["--scope", "generated", "--yes"])
    assert files(project) - {str(run_lock.relative_to(project))} == before


def test_while_an_experiment_cannot_be_read_nothing_is_deleted(project):
    write(project / "config/own.yaml", "corpus: {path: results/mine/rows.jsonl, colour: red}\n")
    before = files(project)
    with pytest.raises(CleanError, match=r"config/own.yaml: .*colour.*until it can be read, nothing is deleted"):
        clean.main("clean", ["--scope", "generated", "--yes"])
    assert files(project) == before


def test_without_results_there_is_nothing_to_clean(project, capsys):
    shutil.rmtree("results")
    shutil.rmtree(".snakemake")
    before = files(project)
    for scope in ("checkpoints", "generated"):
        for how in ("--yes", "--dry-run"):
            assert run("--scope", scope, how) == 0
            assert capsys.readouterr().out == "Nothing to clean.\n"
    assert files(project) == before
    assert not os.path.exists(".snakemake")
