"""Limits of a container, from files as the kernel writes them; sizes are small numbers that can be redone by hand."""

import pytest

from ddp_tokens import cgroups
from ddp_tokens.cgroups import Limits, limits

V2_MOUNT = "30 23 0:26 {root} {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "33 31 0:30 {root} {at} rw,relatime - cgroup cgroup rw,{controller}"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Write what the kernel says: this process's groups, what is mounted where, and files of groups."""

    def say(groups, mounts, files):
        for name, lines in (("groups", groups), ("mounts", mounts)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    monkeypatch.setattr(cgroups, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "mounts")
    return say


def test_version_2_with_a_limit_of_its_own_and_none_above(kernel, tmp_path):
    """1.5 cores: 150000 of every 100000 microseconds. Of 1000 bytes 700 are used, 200 of these by a cache: 500 left."""
    files = {
        "g/cpu.max": "max 100000",
        "g/a/cpu.max": "150000 100000",
        "g/memory.max": "max",
        "g/a/memory.max": "1000",
        "g/a/memory.current": "700",
        "g/a/memory.stat": "anon 400\ninactive_file 200\nactive_file 100",
    }
    kernel(["0::/a"], [V2_MOUNT.format(root="/", at=tmp_path / "g")], files)
    assert limits() == Limits(cores=1.5, memory=1000, left=500, known=True)


def test_version_2_where_a_group_above_is_the_tighter_one(kernel, tmp_path):
    """The group above is full but for 30 bytes; the own one has no limit. The cores of the own one are fewer."""
    files = {
        "g/cpu.max": "400000 100000",
        "g/a/cpu.max": "50000 100000",
        "g/memory.max": "600",
        "g/memory.current": "570",
        "g/a/memory.max": "max",
        "g/a/memory.current": "10",
    }
    kernel(["0::/a"], [V2_MOUNT.format(root="/", at=tmp_path / "g")], files)
    assert limits() == Limits(cores=0.5, memory=600, left=30, known=True)


def test_the_smallest_limit_and_the_least_that_is_left_may_be_of_different_groups(kernel, tmp_path):
    files = {
        "g/memory.max": "900",
        "g/memory.current": "890",
        "g/a/memory.max": "500",
        "g/a/memory.current": "100",
    }
    kernel(["0::/a"], [V2_MOUNT.format(root="/", at=tmp_path / "g")], files)
    assert limits() == Limits(cores=None, memory=500, left=10, known=True)


def test_version_1_in_a_container_that_sees_its_own_group_only(kernel, tmp_path):
    """The kernel names the group by the host's path, and the container has mounted that group as the root."""
    mounts = [V1_MOUNT.format(root="/docker/ab", at=tmp_path / name, controller=name) for name in ("memory", "cpu")]
    files = {
        "memory/memory.limit_in_bytes": "2000",
        "memory/memory.usage_in_bytes": "1500",
        "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300",
        "cpu/cpu.cfs_quota_us": "200000",
        "cpu/cpu.cfs_period_us": "100000",
    }
    kernel(["4:memory:/docker/ab", "2:cpu,cpuacct:/docker/ab", "0::/"], mounts, files)
    assert limits() == Limits(cores=2.0, memory=2000, left=800, known=True)


def test_version_1_without_limits(kernel, tmp_path):
    """As it writes "none": a number of pages that no machine has, and -1."""
    mounts = [V1_MOUNT.format(root="/", at=tmp_path / name, controller=name) for name in ("memory", "cpu")]
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "1500",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
    }
    kernel(["4:memory:/", "2:cpu:/"], mounts, files)
    assert limits() == Limits(cores=None, memory=None, left=None, known=True)


def test_a_group_that_is_mounted_elsewhere_is_read_at_the_mount(kernel, tmp_path):
    """Where the group of /proc does not lie below what is mounted, the mount is the nearest that can be read."""
    files = {"g/memory.max": "100", "g/memory.current": "40"}
    kernel(["0::/elsewhere"], [V2_MOUNT.format(root="/docker/ab", at=tmp_path / "g")], files)
    assert limits() == Limits(memory=100, left=60, known=True)


def test_more_used_than_allowed_leaves_nothing(kernel, tmp_path):
    files = {"g/memory.max": "100", "g/memory.current": "140"}
    kernel(["0::/"], [V2_MOUNT.format(root="/", at=tmp_path / "g")], files)
    assert limits().left == 0


def test_where_there_are_no_groups_nothing_is_known(kernel, tmp_path):
    assert limits() == Limits(known=False)
    kernel([], [], {})
    assert limits() == Limits(known=False)
    kernel(["0::/"], ["22 1 254:0 / / rw - ext4 /dev/vda rw"], {})
    assert limits() == Limits(known=False)


def test_a_mount_of_nothing_is_no_hindrance(kernel, tmp_path):
    """mount -t tmpfs "" /x: an empty name between two spaces."""
    kernel(["0::/"], ["22 1 0:5 / /x rw - tmpfs  rw,size=1m"], {})
    assert not limits().known
