import json
import os
import subprocess

import pytest

from ddp_tokens.archive.source import source_document, source_state


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder, "Snakefile", "rule all:\n")
    write(folder, "src/a b.py", "one = 1\n")
    write(folder, "notes.txt", "tracked, in no room\n")
    write(folder, ".gitignore", "ignored/\n__pycache__/\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


ALL = (".gitignore", "Snakefile", "notes.txt", "src/a b.py")


def test_a_clean_tree_is_its_commit(project):
    state = source_state(project)
    assert state.files == ALL
    assert state.commit == git(project, "rev-parse", "HEAD")
    assert state.date == git(project, "show", "--no-patch", "--format=%cI")
    assert (state.dirty, state.difference, state.untracked) == (False, b"", ())


def test_a_change_makes_it_dirty_and_the_difference_leads_from_the_commit_to_it(project, tmp_path):
    write(project, "src/a b.py", "one = 2\n")
    (project / "src/bytes.bin").write_bytes(bytes(range(256)))
    git(project, "add", "src/bytes.bin")
    state = source_state(project)
    assert state.dirty
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(project), str(other))
    (tmp_path / "source.diff").write_bytes(state.difference)
    git(other, "apply", str(tmp_path / "source.diff"))
    assert (other / "src/a b.py").read_text() == "one = 2\n"
    assert (other / "src/bytes.bin").read_bytes() == bytes(range(256))


def test_the_difference_is_the_same_whatever_git_is_told_elsewhere(project, tmp_path, monkeypatch):
    write(project, "src/a b.py", "".join(f"line {number}\n" for number in range(40)))
    git(project, "commit", "--quiet", "--all", "--message", "longer")
    write(project, "src/a b.py", "".join(f"line {number}\n" for number in range(40) if number not in (10, 25)))
    before = source_state(project).difference
    settings = (
        "[diff]\nnoprefix = true\nmnemonicPrefix = true\ncontext = 0\nalgorithm = patience\ninterHunkContext = 20\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write(tmp_path, "gitconfig", settings)))
    assert b"@@" in before
    assert source_state(project).difference == before


def test_new_files_in_the_rooms_are_taken_and_no_others(project):
    write(project, "src/new.py", "")
    write(project, "ignored/big.bin", "")
    write(project, "src/__pycache__/a.pyc", "")
    write(project, "secret.txt", "not ours to give away")
    write(project, "data/rows.jsonl", "")
    state = source_state(project)
    assert state.untracked == ("src/new.py",)
    assert state.dirty
    assert set(state.files) == {*ALL, "src/new.py"}


def test_links_that_lead_out_are_not_followed(project, tmp_path):
    """Neither in a repository nor without one; a link inside the project is the file that it leads to."""
    outside = write(tmp_path, "private.txt", "not ours to give away")
    (project / "src/out").symlink_to(outside)
    (project / "src/folder").symlink_to(tmp_path)
    (project / "src/in").symlink_to(project / "notes.txt")
    assert set(source_state(project).files) == {*ALL, "src/in"}
    (project / ".git").rename(tmp_path / "git")
    assert set(source_state(project).files) == {".gitignore", "Snakefile", "src/a b.py", "src/in"}


def test_a_deleted_file_is_not_there_but_in_the_difference(project):
    (project / "notes.txt").unlink()
    state = source_state(project)
    assert "notes.txt" not in state.files
    assert b"deleted file" in state.difference


def test_a_project_inside_a_repository_is_only_itself(project):
    write(project, "inner/Snakefile", "rule all:\n")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "second")
    write(project, "notes.txt", "changed outside\n")
    state = source_state(project / "inner")
    assert state.files == ("Snakefile",)
    assert state.dirty is False
    write(project, "inner/Snakefile", "changed inside\n")
    assert b"a/Snakefile" in source_state(project / "inner").difference


def test_a_copy_inside_another_repository_is_not_of_its_commit(project):
    """As a rebuild is, in a folder that git ignores or does not know."""
    for folder in ("ignored/copy", "copy"):
        write(project, f"{folder}/Snakefile", "rule all:\n")
        write(project, f"{folder}/src/a.py", "")
        state = source_state(project / folder)
        assert (state.commit, state.dirty) == (None, None)
        assert state.files == ("Snakefile", "src/a.py")


def test_another_repository_in_the_environment_is_not_asked(project, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert source_state(project).files == ALL


def test_without_a_repository_the_rooms_are_taken(tmp_path):
    for name in ("Snakefile", "src/a.py", "src/x.egg-info/PKG-INFO", "src/__pycache__/a.pyc", "results/README.md"):
        write(tmp_path, name, "")
    for name in ("results/minimum/plan.json", ".venv/bin/python", "rebuild.log", "data/rows.jsonl"):
        write(tmp_path, name, "")
    state = source_state(tmp_path)
    assert state.files == ("Snakefile", "results/README.md", "src/a.py")
    assert (state.commit, state.date, state.dirty) == (None, None, None)


@pytest.mark.parametrize("git_program", [None, "#!/bin/sh\nexit 128\n"], ids=["missing", "refuses"])
def test_where_git_does_not_answer_the_commit_is_not_known(project, tmp_path, monkeypatch, git_program):
    programs = tmp_path / "bin"
    programs.mkdir()
    if git_program:
        write(programs, "git", git_program).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    state = source_state(project)
    assert (state.commit, state.dirty) == (None, None)
    assert state.files == (".gitignore", "Snakefile", "src/a b.py")


def test_the_document_changes_with_every_file_and_the_commit(project):
    seen = {source_document(project)}
    write(project, "notes.txt", "changed\n")
    seen.add(source_document(project))
    git(project, "commit", "--quiet", "--all", "--message", "second")
    seen.add(source_document(project))
    assert len(seen) == 3
    os.utime(project / "notes.txt", (0, 0))
    assert source_document(project) in seen
    assert json.loads(source_document(project))["dirty"] is False
