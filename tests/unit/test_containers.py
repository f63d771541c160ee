"""compose.yaml and envs/Dockerfile, read; tests/containers/ runs them."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from tests.helpers import PROJECT

COMPOSE = PROJECT / "compose.yaml"
DOCKERFILE = PROJECT / "envs" / "Dockerfile"
PODMAN = "#!/bin/sh\necho podman version 5.0.0\n"  # asked for its version, and for nothing else
USER = "UID=1234\nGID=5678\n"


def parsed(folder, environment_file):
    """What podman-compose, which follows the compose specification, makes of compose.yaml."""
    (folder / "compose.yaml").write_bytes(COMPOSE.read_bytes())
    (folder / ".env").write_text(environment_file)
    (folder / "bin").mkdir()
    (folder / "bin" / "podman").write_text(PODMAN)
    (folder / "bin" / "podman").chmod(0o755)
    without_user = {name: value for name, value in os.environ.items() if name not in ("UID", "GID", "BASE")}
    profiles = [f"--profile={name}" for name in ("acquire", "gpu", "dual")]
    return subprocess.run(
        [sys.executable, "-m", "podman_compose", *profiles, "config"],
        cwd=folder,
        env=without_user | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    done = parsed(tmp_path_factory.mktemp("compose"), USER)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["services"]


SERVICES = ("acquire", "cpu", "dual", "gpu")


def test_there_are_four_services(services):
    assert tuple(sorted(services)) == SERVICES


def test_cpu_is_the_one_that_is_started_when_none_is_named(services):
    assert [name for name, service in services.items() if "profiles" not in service] == ["cpu"]


@pytest.mark.parametrize("name", SERVICES)
def test_each_runs_as_the_user_with_no_more_rights_than_it_needs(services, name):
    service = services[name]
    assert service["user"] == "1234:5678"
    assert service["network_mode"] == "none"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert not {"privileged", "cap_add", "environment", "env_file", "secrets", "ports", "pid", "ipc"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_only_what_is_made_can_be_written(services, name):
    mounts = {mount["target"].removeprefix("/project/"): mount for mount in services[name]["volumes"]}
    assert {target: mount.get("read_only", False) for target, mount in mounts.items()} == {
        "results": False,
        ".snakemake": False,
        "config": True,
        "data": True,
    }
    assert all(mount["source"] == f"./{target}" for target, mount in mounts.items())
    assert all(mount["bind"] == {"create_host_path": False} for mount in mounts.values())  # root would own it


def test_setup_makes_the_folders_that_are_mounted_and_not_in_git(services):
    [listed] = re.findall(r"^FOLDERS=\((.*)\)$", (PROJECT / "scripts" / "setup.sh").read_text(), flags=re.MULTILINE)
    mounted = {mount["source"].removeprefix("./") for mount in services["cpu"]["volumes"]}
    assert set(listed.split()) == mounted - {"config"}


@pytest.mark.parametrize(("name", "gpus"), [("cpu", 0), ("acquire", 0), ("gpu", 1), ("dual", 2)])
def test_gpus_are_those_that_snakemake_is_told(services, name, gpus):
    reserved = services[name].get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    assert [(device["driver"], device["count"], device["capabilities"]) for device in reserved] == (
        [("nvidia", gpus, ["gpu"])] if gpus else []
    )
    assert [word for word in services[name].get("command", []) if word.startswith("gpu=")] == (
        [f"gpu={gpus}"] if gpus else []
    )


@pytest.mark.parametrize("environment_file", ["", "UID=1234\n", "GID=1234\n"])
def test_without_setup_it_says_what_to_run(tmp_path, environment_file):
    done = parsed(tmp_path, environment_file)
    assert done.returncode != 0
    assert "run scripts/setup.sh first" in done.stderr


def test_another_base_image_is_a_line_in_the_environment_file(tmp_path):
    done = parsed(tmp_path, f"{USER}BASE=localhost/debian-with-python\n")
    assert "BASE=localhost/debian-with-python" in yaml.safe_load(done.stdout)["services"]["cpu"]["build"]["args"]


def instructions():
    """Of the Dockerfile: [(FROM, ...), (RUN, ...), ...], lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_the_base_image_is_pinned_and_named_once(services):
    [default] = [value for word, value in instructions() if word == "ARG" and value.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:\d+\.\d+\.\d+-slim-bookworm", default)
    assert default in services["cpu"]["build"]["args"]
    assert [value for word, value in instructions() if word == "FROM"] == ["${BASE}"]


def test_an_edited_source_file_does_not_install_everything_anew():
    """What is above a changed line is taken from the last build."""
    steps = instructions()
    [copied] = [number for number, step in enumerate(steps) if step == ("COPY", ". .")]
    [installed] = [number for number, (_, value) in enumerate(steps) if "--requirement envs/requirements.lock" in value]
    [user] = [number for number, step in enumerate(steps) if step == ("ARG", "UID=1000")]
    assert installed < user < copied


def test_the_image_ends_as_a_user_and_holds_no_secret():
    users = [value for word, value in instructions() if word == "USER"]
    assert users == ["${UID}:${GID}"]
    assert not re.search(
        r"password|token=|secret|api.?key", DOCKERFILE.read_text().replace("passwords", ""), re.IGNORECASE
    )


def test_what_git_ignores_does_not_go_into_the_image():
    ignored = {line.strip("/") for line in (PROJECT / ".gitignore").read_text().split()}
    left_out = {line.removeprefix("**/") for line in (PROJECT / ".dockerignore").read_text().split()}
    assert ignored <= left_out
    assert ".git" in left_out
