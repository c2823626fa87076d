# SPDX-License-Identifier: Apache-2.0
"""cgroup and devicefilter on the real kernel, with real runc and crun, on cgroup v1 and v2 hosts.

Each test stands in a mount namespace of its own where /sys/fs/cgroup is what the test wants.  A
node without a driver tells what the device cgroup says: open gives ENXIO where it allows, EPERM
where not.

Needs root, the v1 devices hierarchy, runc, crun, a static busybox and cc; where one lacks, a test
says so and fails.  Must not leave a cgroup, a container or a sysctl behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from errno import EACCES, EBUSY, ENOENT, ENXIO, EPERM
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oci_gpu_hook import bpf, linux
from oci_gpu_hook.container import cgroup, devicefilter
from oci_gpu_hook.container.cgroup import DeviceCgroup
from oci_gpu_hook.oci import DeviceRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = str(Path(__file__).resolve().parents[2])
ROOT = Path("/sys/fs/cgroup")
ID = "0123456789abcdef" * 4
CLONE_NEWNS = 0x00020000

GPU0 = DeviceRule("c", 195, 0, "rw")
CONTROL = DeviceRule("c", 195, 255, "rw")
SPEC_RULES = (DeviceRule("a", None, None, "rwm", allow=False),)

DENY_ALL = bytes.fromhex("b4000000000000009500000000000000")
ALLOW_ALL = bytes.fromhex("b4000000010000009500000000000000")
RUNTIME_LIKE = devicefilter.program((*SPEC_RULES, *devicefilter.runtime_defaults()))


def command(
    *arguments: str,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """Run a program that the test cannot do without; its output, the errors included."""
    if not shutil.which(arguments[0]):
        pytest.fail(f"this test needs the program {arguments[0]}, which is not installed")
    # A file, not a pipe: a detached container keeps what it was given open.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            arguments,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=60,
            check=False,
        )
        output.seek(0)
        said = output.read()
    if done.returncode:
        pytest.fail(f"{' '.join(arguments)} failed with {done.returncode}: {said.strip()}")
    return said


# --- hosts


@pytest.fixture
def own_mounts() -> Iterator[None]:
    """This process in a mount namespace of its own, and afterwards back at home."""
    if os.geteuid():
        pytest.fail("this test needs root: it mounts cgroup filesystems and loads eBPF programs")
    home, folder = os.open("/proc/self/ns/mnt", os.O_RDONLY), os.getcwd()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        pytest.fail(f"this test needs a mount namespace: {os.strerror(ctypes.get_errno())}")
    try:
        command("mount", "--make-rprivate", "/")
        command("umount", "--recursive", str(ROOT))
        yield
    finally:
        linux.setns(home, CLONE_NEWNS)
        os.close(home)
        os.chdir(folder)


@pytest.fixture
def v2(own_mounts: None) -> None:
    """A host with nothing but cgroup2."""
    command("mount", "-t", "cgroup2", "none", str(ROOT))


@pytest.fixture
def v1(own_mounts: None) -> None:
    """A host with v1 hierarchies: those that the device cgroup and the runtimes need."""
    command("mount", "-t", "tmpfs", "none", str(ROOT))
    for controller in ("devices", "freezer", "pids", "memory"):
        (ROOT / controller).mkdir()
        command("mount", "-t", "cgroup", "-o", controller, "none", str(ROOT / controller))


@pytest.fixture
def nodes(own_mounts: None, tmp_path: Path) -> Path:
    """A folder of device nodes, none of which has a driver but null."""
    folder = tmp_path / "nodes"
    folder.mkdir()
    command("mount", "-t", "tmpfs", "-o", "mode=0777", "none", str(folder))
    make_nodes(folder)
    return folder


def make_nodes(folder: Path) -> None:
    for name, major, minor in (
        ("gpu0", 195, 0),
        ("gpu1", 195, 1),
        ("control", 195, 255),
        ("null", 1, 3),
        ("kmsg", 1, 11),
    ):
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(folder / name, 0o666)


@pytest.fixture
def group(own_mounts: None) -> Iterator[Callable[..., Path]]:
    """Makes cgroups, and removes them with all that is below them."""
    made: list[Path] = []

    def make(name: str, hierarchy: Path = ROOT) -> Path:
        path = hierarchy / name
        path.mkdir(parents=True, exist_ok=True)
        made.append(hierarchy / name.partition("/")[0])
        return path

    yield make
    for top in set(made):
        remove(top)


@pytest.fixture
def container(v2: None, group: Callable[..., Path]) -> DeviceCgroup:
    """A container's cgroup on a v2 host, with no program yet."""
    path = str(group(f"test-{os.getpid()}/libpod-{ID}.scope"))
    return DeviceCgroup("v2", path, path, "")


def remove(top: Path) -> None:
    for folder in sorted([top, *[p for p in top.rglob("*") if p.is_dir()]], reverse=True):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        for _ in range(100):
            try:
                folder.rmdir()
                break
            except OSError as err:
                if err.errno != EBUSY:
                    raise
                time.sleep(0.02)


# --- what a process in a cgroup may do


def attempt(folder: str | Path, action: Callable[[], object]) -> int:
    """The errno that `action` ends with in a process that is in the cgroup; 0 where it succeeds."""
    child = os.fork()
    if not child:
        result = 255
        try:
            Path(folder, "cgroup.procs").write_text("0")
            action()
            result = 0
        except OSError as err:
            result = err.errno or 255
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def opens(folder: str | Path, node: Path, flags: int = os.O_RDWR) -> int:
    return attempt(folder, lambda: os.close(os.open(node, flags)))


def makes(folder: str | Path, node: Path, device: int, kind: int = stat.S_IFCHR) -> int:
    return attempt(folder, lambda: os.mknod(node, kind | 0o600, device))


# --- programs


def attach(path: str, *programs: bytes, flags: int = bpf.BPF_F_ALLOW_MULTI) -> list[int]:
    """Attach programs as a runtime would; their ids."""
    cgroup_fd = os.open(path, os.O_RDONLY)
    for instructions in programs:
        prog_fd = bpf.prog_load(
            bpf.BPF_PROG_TYPE_CGROUP_DEVICE, instructions, name="", license="MIT"
        )
        bpf.prog_attach(cgroup_fd, prog_fd, attach_flags=flags)
        os.close(prog_fd)
    os.close(cgroup_fd)
    return attached(path)


def attached(path: str) -> list[int]:
    cgroup_fd = os.open(path, os.O_RDONLY)
    try:
        return list(bpf.prog_query(cgroup_fd)[1])
    finally:
        os.close(cgroup_fd)


def instructions_of(prog_id: int) -> bytes | None:
    prog_fd = bpf.prog_get_fd_by_id(prog_id)
    try:
        return bpf.prog_insns(prog_fd)
    finally:
        os.close(prog_fd)


def open_descriptors() -> set[str]:
    return {fd for fd in os.listdir("/proc/self/fd") if Path("/proc/self/fd", fd).exists()}


# --- cgroup v2


def test_only_the_given_device_opens_and_only_for_read_and_write(
    container: DeviceCgroup, nodes: Path
) -> None:
    attach(container.path, DENY_ALL)
    assert opens(container.path, nodes / "gpu0") == EPERM
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    assert change.skipped == ""
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "gpu0", os.O_RDONLY) == ENXIO
    assert opens(container.path, nodes / "gpu0", os.O_WRONLY) == ENXIO
    assert opens(container.path, nodes / "gpu1") == EPERM
    assert opens(container.path, nodes / "null") == EPERM
    assert makes(container.path, nodes / "new", os.makedev(195, 0)) == EPERM
    assert makes(container.path, nodes / "new", os.makedev(195, 0), stat.S_IFBLK) == EPERM
    change.close()
    assert opens(container.path, nodes / "gpu0") == ENXIO


def test_a_read_only_rule_lets_nobody_write(container: DeviceCgroup, nodes: Path) -> None:
    attach(container.path, DENY_ALL)
    cgroup.allow(container, [GPU0._replace(access="r")], SPEC_RULES).close()
    assert opens(container.path, nodes / "gpu0", os.O_RDONLY) == ENXIO
    assert opens(container.path, nodes / "gpu0", os.O_RDWR) == EPERM


def test_what_the_runtime_allowed_and_denied_stays_so(container: DeviceCgroup, nodes: Path) -> None:
    attach(container.path, RUNTIME_LIKE)
    cgroup.allow(container, [GPU0, CONTROL], SPEC_RULES).close()
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "control") == ENXIO
    assert opens(container.path, nodes / "null") == 0
    assert opens(container.path, nodes / "kmsg") == EPERM
    assert makes(container.path, nodes / "new", os.makedev(195, 0)) == 0


def test_undo_puts_the_very_program_back(container: DeviceCgroup, nodes: Path) -> None:
    before = attach(container.path, RUNTIME_LIKE)
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    assert attached(container.path) != before
    change.undo()
    assert attached(container.path) == before
    assert opens(container.path, nodes / "gpu0") == EPERM
    assert opens(container.path, nodes / "null") == 0


def test_no_descriptor_stays_open_and_none_is_inherited(container: DeviceCgroup) -> None:
    attach(container.path, RUNTIME_LIKE, RUNTIME_LIKE)
    before = open_descriptors()
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    held = open_descriptors() - before
    assert held
    for fd in held:
        assert fcntl.fcntl(int(fd), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    change.close()
    assert open_descriptors() == before
    cgroup.allow(container, [GPU0], SPEC_RULES).undo()
    assert open_descriptors() == before


def test_the_new_program_is_the_old_one_with_the_rules_in_front(container: DeviceCgroup) -> None:
    attach(container.path, RUNTIME_LIKE)
    cgroup.allow(container, [GPU0], SPEC_RULES).close()
    (prog_id,) = attached(container.path)
    assert instructions_of(prog_id) == devicefilter.prefix([GPU0]) + RUNTIME_LIKE


def test_all_programs_of_the_cgroup_are_replaced(container: DeviceCgroup, nodes: Path) -> None:
    before = attach(container.path, DENY_ALL, RUNTIME_LIKE)
    assert len(before) == 2
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    after = attached(container.path)
    assert len(after) == 2 and not set(after) & set(before)
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "null") == EPERM
    change.undo()
    assert attached(container.path) == before


@pytest.mark.parametrize("flags", [0, 1], ids=["exclusive", "BPF_F_ALLOW_OVERRIDE"])
def test_a_single_program_that_is_attached_otherwise_is_replaced_too(
    container: DeviceCgroup, nodes: Path, flags: int
) -> None:
    before = attach(container.path, RUNTIME_LIKE, flags=flags)
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    assert len(attached(container.path)) == 1
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "gpu1") == EPERM
    change.undo()
    assert attached(container.path) == before


def test_a_scope_and_its_sub_cgroup_are_both_opened(
    container: DeviceCgroup, group: Callable[..., Path], nodes: Path
) -> None:
    leaf = Path(container.path, "container")
    leaf.mkdir()
    before = attach(container.path, DENY_ALL), attach(str(leaf), RUNTIME_LIKE)
    change = cgroup.allow(container._replace(path=str(leaf)), [GPU0], SPEC_RULES)
    assert opens(leaf, nodes / "gpu0") == ENXIO
    assert opens(leaf, nodes / "null") == EPERM
    change.undo()
    assert (attached(container.path), attached(str(leaf))) == before


def test_programs_above_the_container_are_left_alone(container: DeviceCgroup, nodes: Path) -> None:
    parent = str(Path(container.path).parent)
    above = attach(parent, DENY_ALL)
    attach(container.path, RUNTIME_LIKE)
    cgroup.allow(container, [GPU0], SPEC_RULES).close()
    assert attached(parent) == above
    assert opens(container.path, nodes / "gpu0") == EPERM


def test_no_program_at_all_is_said_and_left_so(container: DeviceCgroup, nodes: Path) -> None:
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    assert change.skipped == "no device program restricts the container's cgroup"
    assert attached(container.path) == []
    change.undo()
    attach(str(Path(container.path).parent), DENY_ALL)
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    assert change.skipped.endswith("only 1 of the cgroups above, which are not its own")
    change.close()


def test_as_many_programs_as_the_kernel_can_replace_and_a_long_one(
    container: DeviceCgroup, nodes: Path
) -> None:
    long = devicefilter.program([DeviceRule("c", 7, minor, "rw") for minor in range(700)])
    assert len(long) > 4096 * 8
    attach(container.path, long, *[RUNTIME_LIKE] * 62)
    cgroup.allow(container, [GPU0], SPEC_RULES).close()
    assert len(attached(container.path)) == 63
    assert opens(container.path, nodes / "gpu0") == ENXIO


def test_replacing_leaves_no_window(container: DeviceCgroup, nodes: Path) -> None:
    """What is denied never opens, and what is allowed never fails, while programs change."""
    attach(container.path, RUNTIME_LIKE)
    child = os.fork()
    if not child:
        rounds = wrong = 0
        Path(container.path, "cgroup.procs").write_text("0")
        running = [True]
        signal.signal(signal.SIGTERM, lambda *_: running.clear())
        while running:
            rounds += 1
            try:
                os.close(os.open(nodes / "null", os.O_RDWR))
                os.open(nodes / "gpu1", os.O_RDWR)
            except OSError as err:
                if err.errno != EPERM or err.filename != str(nodes / "gpu1"):
                    wrong += 1
        (nodes / "result").write_text(f"{rounds} {wrong}")
        os._exit(0)
    deadline = time.monotonic() + 10
    while str(child) not in Path(container.path, "cgroup.procs").read_text().split():
        assert time.monotonic() < deadline, "the child did not enter the cgroup"
    time.sleep(0.05)
    for _ in range(200):
        cgroup.allow(container, [GPU0], SPEC_RULES).undo()
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    rounds, wrong = map(int, (nodes / "result").read_text().split())
    assert rounds > 200
    assert wrong == 0


# --- cgroup v2: what can go wrong


def test_a_failure_in_the_middle_puts_everything_back(
    container: DeviceCgroup, nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = attach(container.path, RUNTIME_LIKE, RUNTIME_LIKE)
    descriptors = open_descriptors()
    real, calls = bpf.prog_attach, [0]

    def second_fails(*descriptors: int, **options: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise linux.SyscallError(EPERM, "bpf", "BPF_PROG_ATTACH")
        real(*descriptors, **options)

    monkeypatch.setattr(bpf, "prog_attach", second_fails)
    with pytest.raises(OSError, match="bpf BPF_PROG_ATTACH: Operation not permitted"):
        cgroup.allow(container, [GPU0], SPEC_RULES)
    assert attached(container.path) == before
    assert opens(container.path, nodes / "gpu0") == EPERM
    assert open_descriptors() == descriptors


def test_a_program_that_another_replaces_meanwhile_is_replaced_in_turn(
    container: DeviceCgroup, nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd does at daemon-reload: when we come to replace its program, there is a new one."""
    attach(container.path, DENY_ALL)
    real, calls = bpf.prog_get_fd_by_id, [0]

    def raced(prog_id: int) -> int:
        calls[0] += 1
        if calls[0] == 1:
            old_fd, new_fd = (
                real(prog_id),
                bpf.prog_load(
                    bpf.BPF_PROG_TYPE_CGROUP_DEVICE, RUNTIME_LIKE, name="", license="MIT"
                ),
            )
            cgroup_fd = os.open(container.path, os.O_RDONLY)
            flags = bpf.BPF_F_ALLOW_MULTI | bpf.BPF_F_REPLACE
            bpf.prog_attach(cgroup_fd, new_fd, attach_flags=flags, replace_fd=old_fd)
            for fd in (cgroup_fd, new_fd, old_fd):
                os.close(fd)
            wait_until_gone(prog_id)
        return real(prog_id)

    def wait_until_gone(prog_id: int) -> None:
        for _ in range(500):  # the kernel frees it after a grace period
            try:
                os.close(real(prog_id))
            except OSError as err:
                assert err.errno == ENOENT
                return
            time.sleep(0.01)
        pytest.fail("the replaced program did not go")

    monkeypatch.setattr(bpf, "prog_get_fd_by_id", raced)
    cgroup.allow(container, [GPU0], SPEC_RULES).close()
    assert calls[0] == 2
    assert len(attached(container.path)) == 1
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "null") == 0


def test_others_that_never_stop_are_an_error(
    container: DeviceCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(container.path, DENY_ALL)
    real = bpf.prog_query

    def busy(cgroup_fd: int, *, query_flags: int = 0) -> tuple[int, tuple[int, ...]]:
        monkeypatch.setattr(bpf, "prog_query", real)
        attach(container.path, DENY_ALL)
        monkeypatch.setattr(bpf, "prog_query", busy)
        return real(cgroup_fd, query_flags=query_flags)

    monkeypatch.setattr(bpf, "prog_query", busy)
    with pytest.raises(OSError, match=r"others change .* too: Device or resource busy"):
        cgroup.allow(container, [GPU0], SPEC_RULES)


def test_undo_after_another_has_replaced_ours_changes_nothing(container: DeviceCgroup) -> None:
    attach(container.path, RUNTIME_LIKE)
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    cgroup.allow(container, [CONTROL], SPEC_RULES).close()
    after = attached(container.path)
    change.undo()
    assert attached(container.path) == after


def test_undo_after_the_container_is_gone_is_quiet(container: DeviceCgroup) -> None:
    attach(container.path, RUNTIME_LIKE)
    change = cgroup.allow(container, [GPU0], SPEC_RULES)
    os.rmdir(container.path)
    change.undo()


def test_what_the_verifier_refuses_is_told_with_its_words(v2: None) -> None:
    read_of_r2 = bytes.fromhex("bc200000000000009500000000000000")
    with pytest.raises(linux.SyscallError) as caught:
        bpf.prog_load(
            bpf.BPF_PROG_TYPE_CGROUP_DEVICE, read_of_r2, name="oci_gpu_hook", license="MIT"
        )
    assert str(caught.value) == ("bpf BPF_PROG_LOAD oci_gpu_hook: R2 !read_ok: Permission denied")
    assert caught.value.errno == EACCES


# --- cgroup v2: instructions that the kernel hides


@pytest.fixture
def hardened(request: pytest.FixtureRequest) -> Iterator[None]:
    """net.core.bpf_jit_harden=2, with constants hidden from everybody where kptr_restrict is 2."""
    wanted = {
        Path("/proc/sys/net/core/bpf_jit_harden"): "2",
        Path("/proc/sys/kernel/kptr_restrict"): request.param,
    }
    before = {path: path.read_text() for path in wanted}
    try:
        for path, value in wanted.items():
            try:
                path.write_text(value)
            except OSError as err:
                pytest.fail(f"this test needs to write {path}: {err.strerror}")
        yield
    finally:
        for path, value in before.items():
            path.write_text(value)


@pytest.mark.parametrize("hardened", ["1", "2"], indirect=True, ids=["blinded", "hidden"])
def test_a_program_that_is_not_shown_is_rebuilt_from_the_rules(
    container: DeviceCgroup, nodes: Path, hardened: None, request: pytest.FixtureRequest
) -> None:
    # More open than config.json says: what is in force afterwards was rebuilt, not copied.
    before = attach(container.path, ALLOW_ALL)
    shown = instructions_of(before[0])
    if request.node.callspec.id == "hidden":
        assert shown is None
    else:
        assert shown is not None and not devicefilter.is_loadable(shown)
    spec_rules = (*SPEC_RULES, DeviceRule("c", 195, 255, "rw"))
    change = cgroup.allow(container, [GPU0], spec_rules)
    assert opens(container.path, nodes / "gpu0") == ENXIO
    assert opens(container.path, nodes / "control") == ENXIO
    assert opens(container.path, nodes / "gpu1") == EPERM
    assert opens(container.path, nodes / "null") == 0
    assert opens(container.path, nodes / "kmsg") == EPERM
    change.undo()
    assert attached(container.path) == before
    assert opens(container.path, nodes / "kmsg", os.O_RDONLY | os.O_NONBLOCK) == 0


# --- cgroup v1


def listed(folder: str | Path) -> str:
    return Path(folder, "devices.list").read_text()


@pytest.fixture
def old_container(v1: None, group: Callable[..., Path]) -> DeviceCgroup:
    """A container's cgroup on a v1 host, with the rules of a runtime in a small way."""
    path = group(f"test-{os.getpid()}/{ID}", ROOT / "devices")
    (path / "devices.deny").write_text("a")
    (path / "devices.allow").write_text("c 1:3 rwm")
    return DeviceCgroup("v1", str(path), str(path), "")


def test_v1_opens_only_the_given_device(old_container: DeviceCgroup, nodes: Path) -> None:
    folder = old_container.path
    before = listed(folder)
    assert opens(folder, nodes / "gpu0") == EPERM
    change = cgroup.allow(old_container, [GPU0, CONTROL], ())
    assert change.skipped == ""
    assert opens(folder, nodes / "gpu0") == ENXIO
    assert opens(folder, nodes / "control") == ENXIO
    assert opens(folder, nodes / "gpu1") == EPERM
    assert opens(folder, nodes / "null") == 0
    assert makes(folder, nodes / "new", os.makedev(195, 0)) == EPERM
    change.undo()
    assert listed(folder) == before
    assert opens(folder, nodes / "gpu0") == EPERM


@pytest.mark.parametrize(
    "entry", ["c 195:0 r", "c 195:0 rwm", "c 195:* rw", "c 195:* r", "c *:* m"]
)
def test_v1_undo_takes_only_what_was_ours(
    old_container: DeviceCgroup, nodes: Path, entry: str
) -> None:
    Path(old_container.path, "devices.allow").write_text(entry)
    before = listed(old_container.path)
    change = cgroup.allow(old_container, [GPU0], ())
    assert opens(old_container.path, nodes / "gpu0") == ENXIO
    change.undo()
    assert listed(old_container.path) == before


def test_v1_a_container_that_may_use_everything_keeps_it(
    v1: None, group: Callable[..., Path], nodes: Path
) -> None:
    path = str(group(f"test-{os.getpid()}", ROOT / "devices"))
    change = cgroup.allow(DeviceCgroup("v1", path, path, ""), [GPU0], ())
    change.undo()
    assert listed(path) == "a *:* rwm\n"
    assert opens(path, nodes / "gpu0") == ENXIO


def test_v1_a_scope_and_its_sub_cgroup_are_both_opened(
    old_container: DeviceCgroup, nodes: Path
) -> None:
    leaf = Path(old_container.path, "container")
    leaf.mkdir()
    change = cgroup.allow(old_container._replace(path=str(leaf)), [GPU0], ())
    assert opens(leaf, nodes / "gpu0") == ENXIO
    change.undo()
    assert opens(leaf, nodes / "gpu0") == EPERM


def test_v1_what_the_cgroup_above_forbids_is_an_error_that_names_rule_and_file(
    old_container: DeviceCgroup,
) -> None:
    leaf = Path(old_container.path, "container")
    leaf.mkdir()
    lone = old_container._replace(path=str(leaf), top=str(leaf))
    with pytest.raises(OSError) as caught:
        cgroup.allow(lone, [DeviceRule("c", 1, 3, "rwm"), GPU0], ())
    assert str(caught.value) == (
        f"write 'c 195:0 rw' to {leaf}/devices.allow: Operation not permitted"
    )


# --- where a container is


def in_cgroup(folder: str | Path) -> int:
    """A process that sleeps in the cgroup; the `group` fixture ends it."""
    sleeper = subprocess.Popen(["sleep", "60"])
    Path(folder, "cgroup.procs").write_text(str(sleeper.pid))
    return sleeper.pid


@pytest.mark.parametrize(
    ("name", "top"),
    [
        (ID, ID),
        (f"libpod-{ID}.scope", f"libpod-{ID}.scope"),
        (f"libpod-{ID}.scope/container", f"libpod-{ID}.scope"),
        (f"crio-{ID}.scope/container/init", f"crio-{ID}.scope"),
        (f"{ID}/{ID}", f"{ID}/{ID}"),
        (f"x{ID}/leaf", f"x{ID}/leaf"),
        ("custom/leaf", "custom/leaf"),
    ],
)
def test_the_containers_own_cgroups_end_where_its_name_is(
    v2: None, group: Callable[..., Path], name: str, top: str
) -> None:
    slice_name = f"test-{os.getpid()}"
    found = cgroup.locate(in_cgroup(group(f"{slice_name}/{name}")), ID)
    assert found == ("v2", f"{ROOT}/{slice_name}/{name}", f"{ROOT}/{slice_name}/{top}", "")


def test_a_service_with_the_containers_name_is_not_the_containers(
    v2: None, group: Callable[..., Path]
) -> None:
    base = f"test-{os.getpid()}"
    found = cgroup.locate(in_cgroup(group(f"{base}/gpu.service/crun-gpu.scope/container")), "gpu")
    assert found.top == f"{ROOT}/{base}/gpu.service/crun-gpu.scope"
    found = cgroup.locate(in_cgroup(group(f"{base}/a/crun-a.scope/container")), "a")
    assert found.top == f"{ROOT}/{base}/a/crun-a.scope"


def test_v1_is_found_by_its_mount(v1: None, group: Callable[..., Path]) -> None:
    base = f"test-{os.getpid()}/{ID}"
    pid = in_cgroup(group(base, ROOT / "devices"))
    command("mkdir", str(ROOT / "elsewhere"))
    command("mount", "--move", str(ROOT / "devices"), str(ROOT / "elsewhere"))
    path = f"{ROOT}/elsewhere/{base}"
    assert cgroup.locate(pid, ID) == ("v1", path, path, "")
    command("mount", "--move", str(ROOT / "elsewhere"), str(ROOT / "devices"))


def test_a_mount_may_show_the_containers_own_cgroup_only(
    v2: None, group: Callable[..., Path]
) -> None:
    leaf = group(f"test-{os.getpid()}/libpod-{ID}.scope/container")
    pid = in_cgroup(leaf)
    command("mount", "--bind", str(leaf), str(ROOT))
    assert cgroup.locate(pid, ID) == ("v2", str(ROOT), str(ROOT), "")
    command("umount", str(ROOT))


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_mount_may_show_a_part_of_the_hierarchy(
    version: str, request: pytest.FixtureRequest, group: Callable[..., Path]
) -> None:
    request.getfixturevalue(version)
    hierarchy = ROOT / "devices" if version == "v1" else ROOT
    top = f"test-{os.getpid()}"
    pid = in_cgroup(group(f"{top}/outer/{ID}", hierarchy))
    command("mount", "--bind", str(hierarchy / top / "outer"), str(hierarchy))
    if version == "v1":  # the whole hierarchy is still in the table, hidden below the bind mount
        assert cgroup.locate(pid, ID).path == f"{hierarchy}/{ID}"
    else:
        assert cgroup.locate(pid, ID) == ("v2", f"{ROOT}/{ID}", f"{ROOT}/{ID}", "")
    command("umount", str(hierarchy))


def test_a_host_without_device_cgroups_is_said(own_mounts: None) -> None:
    none = cgroup.locate(in_no_devices_hierarchy(), ID)
    assert none.version == "" and none.path == ""
    assert cgroup.allow(none, [GPU0], SPEC_RULES).skipped == none.reason
    assert cgroup.expected() == none


def in_no_devices_hierarchy() -> int:
    """This process, whose /proc/PID/cgroup is covered by one without the devices hierarchy."""
    command("mount", "-t", "tmpfs", "none", str(ROOT))
    (ROOT / "empty").write_text("0::/\n")
    command("mount", "--bind", str(ROOT / "empty"), f"/proc/{os.getpid()}/cgroup")
    return os.getpid()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_container_without_a_cgroup_of_its_own_is_said(
    version: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(version)
    for container_id in (ID, ""):
        found = cgroup.locate(os.getpid(), container_id)
        assert found.version == ""
        assert found.reason.startswith("the container has no cgroup of its own, it is in /")


def test_a_cgroup_that_the_runtime_is_in_too_is_not_the_containers(
    v2: None, group: Callable[..., Path]
) -> None:
    folder = group(f"test-{os.getpid()}/service")
    in_root = in_cgroup(ROOT)
    code = (
        "import os, sys; open(sys.argv[1], 'w').write('0')\n"
        "from oci_gpu_hook.container import cgroup\n"
        "for pid in (os.getpid(), int(sys.argv[2])):\n"
        "    print(cgroup.locate(pid, 'some-id').reason)"
    )
    arguments = (f"{folder}/cgroup.procs", str(in_root))
    said = command(sys.executable, "-c", code, *arguments, cwd=REPOSITORY)
    os.kill(in_root, signal.SIGKILL)
    sentence = "the container has no cgroup of its own, it is in {} with others\n"
    assert said == sentence.format(f"/test-{os.getpid()}/service") + sentence.format("/")


def test_in_a_user_namespace_nothing_is_done_and_it_is_said(container: DeviceCgroup) -> None:
    before = attach(container.path, DENY_ALL)
    code = (
        "import os\nfrom oci_gpu_hook.container import cgroup\n"
        "found = cgroup.locate(os.getppid(), 'some-id')\n"
        "assert cgroup.expected() == found\n"
        "print(cgroup.allow(found, (), ()).skipped)"
    )
    user_namespace = ("unshare", "--user", "--map-root-user")
    said = command(*user_namespace, sys.executable, "-c", code, cwd=REPOSITORY)
    assert said == "the kernel lets nobody in a user namespace change a device cgroup\n"
    assert attached(container.path) == before


def test_a_cgroup_outside_our_cgroup_namespace_is_an_error(
    v2: None, group: Callable[..., Path]
) -> None:
    folder = group(f"test-{os.getpid()}/inside")
    pid = in_cgroup(group(f"test-{os.getpid()}/outside"))
    code = (
        "import sys\nfrom oci_gpu_hook.container import cgroup\n"
        "try:\n    cgroup.locate(int(sys.argv[1]), 'some-id')\n"
        "except OSError as err:\n    print(err)"
    )
    shell = 'echo 0 > "$1/cgroup.procs"; exec unshare --cgroup "$2" -c "$3" "$4"'
    said = command(
        "sh", "-c", shell, "sh", str(folder), sys.executable, code, str(pid), cwd=REPOSITORY
    )
    assert said == (
        "open cgroup /../outside, outside our cgroup namespace: No such file or directory\n"
    )


def test_a_process_that_is_gone_is_an_error(v2: None) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(OSError, match=f"/proc/{child.pid}/cgroup"):
        cgroup.locate(child.pid, ID)


# --- real runtimes


@pytest.fixture
def bundle(own_mounts: None, tmp_path: Path) -> Path:
    """A bundle of busybox with device nodes in its root."""
    busybox = shutil.which("busybox")
    if not busybox:
        pytest.fail("this test needs busybox, statically linked (busybox-static)")
    folder = tmp_path / "bundle"
    folder.mkdir()
    command("mount", "-t", "tmpfs", "-o", "mode=0755", "none", str(folder))
    (folder / "rootfs/bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "rootfs/bin/busybox")
    (folder / "rootfs/bin/sh").symlink_to("busybox")
    (folder / "rootfs/nodes").mkdir()
    make_nodes(folder / "rootfs/nodes")
    command("runc", "spec", cwd=folder)
    return folder


@pytest.fixture
def runtime(tmp_path: Path, own_mounts: None) -> Iterator[Callable[..., str]]:
    """Runs runc or crun; their state is below tmp_path, their containers are deleted afterwards."""
    started: list[tuple[str, ...]] = []

    def run(name: str, *arguments: str) -> str:
        environment = {**os.environ, "LD_PRELOAD": memlock_shim(tmp_path) if name == "crun" else ""}
        start = (name, "--root", str(tmp_path / "state"))
        if arguments[0] == "run":
            started.append((*start, "delete", "--force", arguments[-1]))
        return command(*start, *arguments, env=environment)

    yield run
    for arguments in started:
        subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def memlock_shim(folder: Path) -> str:
    """A setrlimit that does nothing: without CAP_SYS_RESOURCE crun gives up at RLIMIT_MEMLOCK."""
    shim = folder / "shim.so"
    if not shim.exists():
        (folder / "shim.c").write_text(
            "int setrlimit(int w, const void *l) { return 0; }\n"
            "int setrlimit64(int w, const void *l) { return 0; }\n"
        )
        command("cc", "-shared", "-fPIC", "-o", str(shim), str(folder / "shim.c"))
    return str(shim)


def configure(bundle: Path, arguments: list[str], hook: list[str] | None = None) -> None:
    path = bundle / "config.json"
    config = json.loads(path.read_text())
    config["process"]["terminal"] = False
    config["process"]["args"] = arguments
    if hook:
        config["hooks"] = {"createRuntime": [{"path": hook[0], "args": hook}]}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["runc", "crun"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_runtimes_container_is_found_opened_and_closed_again(
    version: str,
    name: str,
    request: pytest.FixtureRequest,
    bundle: Path,
    nodes: Path,
    runtime: Callable[..., str],
) -> None:
    request.getfixturevalue(version)
    container_id = f"test-{os.getpid()}-{name}"
    configure(bundle, ["/bin/busybox", "sleep", "60"])
    runtime(name, "run", "--detach", "--bundle", str(bundle), container_id)
    pid = json.loads(runtime(name, "state", container_id))["pid"]
    found = cgroup.locate(pid, container_id)
    assert (found.version, found.reason) == (version, "")
    assert cgroup.expected() == (version, "", "", "")
    assert str(pid) in Path(found.path, "cgroup.procs").read_text().split()
    assert opens(found.path, nodes / "gpu0") == EPERM
    change = cgroup.allow(found, [GPU0], SPEC_RULES)
    assert change.skipped == ""
    assert opens(found.path, nodes / "gpu0") == ENXIO
    assert opens(found.path, nodes / "gpu1") == EPERM
    assert opens(found.path, nodes / "null") == 0
    assert opens(found.path, nodes / "kmsg") == EPERM
    change.undo()
    assert opens(found.path, nodes / "gpu0") == EPERM
    assert opens(found.path, nodes / "null") == 0


HOOK = """
import json, sys
sys.path.insert(0, {repository!r})
from oci_gpu_hook.container import cgroup
from oci_gpu_hook.oci import DeviceRule
state = json.load(sys.stdin)
change = cgroup.allow(cgroup.locate(state["pid"], state["id"]), [DeviceRule("c", 195, 0, "rw")], ())
sys.exit(change.skipped or 0)
"""


@pytest.mark.parametrize("name", ["runc", "crun"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_a_hook_opens_is_open_when_the_container_starts(
    version: str,
    name: str,
    request: pytest.FixtureRequest,
    bundle: Path,
    runtime: Callable[..., str],
) -> None:
    request.getfixturevalue(version)
    probe = "for node in gpu0 gpu1 null kmsg; do (: <>/nodes/$node) 2>&1; echo $node $?; done"
    hook = [sys.executable, "-c", HOOK.format(repository=REPOSITORY)]
    configure(bundle, ["/bin/sh", "-c", probe], hook)
    said = runtime(name, "run", "--bundle", str(bundle), f"test-{os.getpid()}-{name}").splitlines()
    assert "/bin/sh: can't create /nodes/gpu0: No such device or address" in said
    assert "/bin/sh: can't create /nodes/gpu1: Operation not permitted" in said
    assert "null 0" in said
    assert "/bin/sh: can't create /nodes/kmsg: Operation not permitted" in said
