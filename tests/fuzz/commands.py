# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed of root's commands: what users, containers, processes and the journal say to them.

The rule is that of a start's inputs: a value or one of our own errors, in steps and memory that grow no faster than the
input; and what is printed of it begins no line of its own and has nothing that a terminal obeys.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

from hypothesis import strategies as st

from oci_gpu_hook.cli import denials, log
from oci_gpu_hook.errors import LONGEST_LIST, plain
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.diagnosis import dockercheck, remedy
from oci_gpu_hook.node.engines import containerdevices, containers, installed
from oci_gpu_hook.node.engines.containerdevices import HostsNodes, Wanted
from oci_gpu_hook.node.machine import foreignfile, processes
from oci_gpu_hook.node.machine.foreignfile import Mounts
from tests.fuzz import targets
from tests.fuzz.targets import _ANNOTATIONS, _NUMBERS, _TEXTS, SCRATCH, Target, _object, _several, _spoilt, _written
from tests.unit import hosts

_BUNDLES = st.sampled_from(["/run/b/overlay-containers/x/userdata", "/srv/b", "/"]) | _TEXTS
_STATES = _object(
    init_process_pid=st.just(7) | _NUMBERS,
    init_process_start=_NUMBERS,
    config=_object(labels=_several(st.builds("bundle={}".format, _BUNDLES))),
    pid=st.just(7) | _NUMBERS,
    bundle=_BUNDLES,
)
_LISTS = _several(_object(id=_TEXTS, names=_several(_TEXTS), metadata=st.just('{"pod-id": "x"}') | _TEXTS))
_STAT = "7 (x) S 1 7 7 0 -1 4194304" + " 0" * 12 + " 500" + " 0" * 30
_PARTS = [
    *("1", "2", "0:5", "0:6", "/", "/nvidia0", "/dev", "/dev/nvidia0", "/x\\040y", "rw", "-"),
    *("devtmpfs", "fuse", "overlay", "shared:1", "\\0", "\\777", "//deleted", "\n", "\n", ""),
]
_MOUNTS = st.lists(st.sampled_from(_PARTS) | st.text(max_size=5), max_size=60).map(" ".join)
_CGROUP = st.sampled_from(["0::/a/b", "0::/docker-" + "a" * 64 + ".scope", "4:devices:/c", ":::", "\n"])
_CGROUPS = st.lists(_CGROUP | st.text(max_size=20), max_size=8).map("".join)
_FIELDS = (
    "MESSAGE __REALTIME_TIMESTAMP OCI_GPU_HOOK_CONTAINER OCI_GPU_HOOK_DEVICE OCI_GPU_HOOK_NOTE OCI_GPU_HOOK_OUTCOME "
    "OCI_GPU_HOOK_EXIT_CODE OCI_GPU_HOOK_READ_USEC OCI_GPU_HOOK_TIME"
)
_WORTH = (
    *(_TEXTS, st.sampled_from(["started", "1500", "9" * 18]), _several(_TEXTS)),
    *(st.lists(st.integers(-1, 300), max_size=9), _NUMBERS, st.none()),
)
_ENTRY = st.dictionaries(st.sampled_from(_FIELDS.split()) | _TEXTS, st.one_of(*_WORTH), max_size=6)
_ENTRIES = st.lists(_ENTRY, max_size=5).map(lambda rows: "".join([json.dumps(row) + "\n" for row in rows]).encode())
_DENIED = (
    *("avc:", " denied ", "{ read }", "{", "}", "for", 'comm="x"', "name=2F78", "\n", "dev="),
    *("scontext=u:r:nvidia_container_t:s0:c1,c2", "scontext=x", "tclass=chr_file", 'name="'),
    *("tcontext=u:object_r:device_t:s0", "tcontext=u:object_r:container_file_t:s0", "comm=zz"),
)
_DENIALS = st.lists(st.sampled_from(_DENIED) | st.text(max_size=9), max_size=40).map(" ".join)
_DAEMONS = _object(
    runtimes=st.dictionaries(_TEXTS, _object(path=_TEXTS), max_size=3),
    **{"default-runtime": _TEXTS, "data-root": _TEXTS, "features": _object(cdi=st.booleans())},
)
_REGISTRATIONS = _object(
    version=_TEXTS,
    hook=_object(path=_TEXTS, args=_several(_TEXTS), env=_several(_TEXTS)),
    when=_object(always=st.booleans(), commands=_several(_TEXTS), annotations=_ANNOTATIONS),
    stages=_several(_TEXTS),
)


def _host(files: dict[str, bytes | str]) -> HostRoot:
    folder = SCRATCH / "commands"
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in {"proc/7/stat": _STAT, **files}.items():
        hosts.plant(folder, path, content)
    return targets.root_at(folder)


def _runtimes_state(data: bytes) -> None:
    root = _host({"run/runc/a/state.json": data, "run/crun/b/status": data})
    for item in containers.KnownContainers(root).containers:
        _shown(item.shown, item.id, item.bundle)


def _engines_list(data: bytes) -> None:
    path = "var/lib/containers/storage/overlay-containers/containers.json"
    root = _host({path: data, "srv/config.json": data})
    files = foreignfile.Files(root, foreignfile.our_mounts())
    for item in containers.names(files, ["/srv/x/userdata"]).values():
        _shown(item.shown, item.full)
    _shown(containers.by_config(files, "/srv").shown)


def _shown(*texts: str) -> None:
    """What a name becomes in a line, and in a command."""
    for text in texts:
        assert plain(text, LONGEST_LIST).isprintable()
        assert not remedy.is_name(text) or remedy.command("x", text) == f"x {text}"


def _mount_lines(text: str) -> None:
    data = text.encode(errors="surrogatepass")
    ours = Mounts(data, is_ours=True)
    foreignfile.root_of(data)
    for path in ("/", "/dev/nvidia0", text[:9]):
        ours.is_local(path)
        ours.shown(path)
    root = _host({"dev/nvidia0": ""})
    HostsNodes(root, ours, Wanted((195,), (), ())).shown_by(Mounts(data))
    containerdevices._bound(ours, Wanted((195,), (("/dev/nvidia0", 195, 0),), ()))


def _process_files(text: str) -> None:
    """What a user says of a process in what the kernel writes: its name, its cgroups, its mounts, its words."""
    data = text.encode(errors="surrogatepass")
    name = data[:15].replace(b"\n", b"")
    stat = b"7 (%s) S 1 7 7 0 -1 4194304" % name + b" 0" * 12 + b" 500" + b" 0" * 30
    status = b"Name:\t%s\nUid:\t0 0 0 0\nGid:\t0 0 0 0\nCapEff:\tff\n" % name
    theirs = {f"proc/7/{file}": data for file in ("cgroup", "mountinfo", "cmdline")}
    root = _host({"proc/7/stat": stat, "proc/7/status": status, **theirs})
    os.symlink("/usr/bin/conmon", Path(root.path) / "proc/7/exe")
    for look in (
        *(processes.started, processes.other_thread, processes.parent),
        *(processes.program, processes.command_line, processes.is_kernels, processes.makes_nodes),
    ):
        look(root, 7)
    for version in ("v1", "v2"):
        processes.trusted_cgroup(root, 7, version, 0)
    containers.KnownContainers(root).of_process(7)


def _journal(entries: bytes) -> None:
    for entry in log._entries(io.BytesIO(entries)):
        assert all([line.isprintable() for line in log._lines(log.as_record(entry))])


def _denied(text: str) -> None:
    for item in denials.explain(denials.parse_denials(text)):
        assert item.remedy


def _settings_of_daemons(data: bytes) -> None:
    programs = {"usr/bin/dockerd": "", "usr/bin/containerd": ""}
    root = _host({"etc/docker/daemon.json": data, "etc/containerd/config.toml": data, **programs})
    dockercheck.find_docker(root)
    installed.shims(root, installed.installed(root))
    installed.unread(root)


# The parser of TOML is imported at its first use.
_settings_of_daemons(b"{}")

COMMANDS: dict[str, Target] = {
    "runtimes-states": Target(_written(_STATES), _runtimes_state),
    "engines-lists": Target(_written(_LISTS | _object(annotations=_ANNOTATIONS)), _engines_list),
    "mountinfo": Target(_MOUNTS, _mount_lines),
    "processes": Target(_CGROUPS, _process_files),
    "journal": Target(_spoilt(_ENTRIES), _journal),
    "denials": Target(_DENIALS, _denied),
    "daemons": Target(_written(_DAEMONS), _settings_of_daemons),
    "registrations": Target(
        _written(_REGISTRATIONS), lambda it: installed.of_engines(_host({"etc/containers/oci/hooks.d/x.json": it}), ())
    ),
}
