# SPDX-License-Identifier: Apache-2.0
"""install-node.sh on a scratch host: installs, upgrades, removes, and what stands in its way.

The host's root is laid out as on an image-based system, /usr/local a link into /var, with this machine's own programs
mounted into it, in a mount namespace of each run's own.  Nothing of the machine is touched.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.engines import UNSHARED, printed, until
from tests.integration.test_install import tree
from tests.selinux.files import write

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "packaging/openshift/install-node.sh"
PROGRAMS = ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "lib64", "proc", "dev")
LOCAL = "var/usrlocal"
LIBRARY = f"{LOCAL}/lib/oci-gpu-hook"
ENTRY = f"{LOCAL}/libexec/oci/hooks.d/oci-gpu-hook"
COMMAND = f"{LOCAL}/bin/oci-gpu-hook"
HOOKS = "etc/containers/oci/hooks.d"
REGISTRATION = f"{HOOKS}/oci-gpu-hook.json"
DROP_IN = "etc/containerd/conf.d/99-oci-gpu-hook.toml"
RUN_REGISTRATION = "run/containers/oci/hooks.d/oci-gpu-hook.json"
STATE = {"ociVersion": "1.0.2", "id": "c", "status": "created", "pid": 1, "bundle": "/bundle"}


class Node:
    """A scratch host's root, and what can be done to it."""

    def __init__(self, root: Path, payload: Path) -> None:
        self.root, self.payload = root, payload
        for folder in (*PROGRAMS, LOCAL, "run", "tmp", "etc/crio/crio.conf.d"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        # As on RHEL CoreOS: seen from outside, this link leads out of the node's root.
        (root / "usr/local").symlink_to("../../var/usrlocal")
        for name in ("bin", "sbin", "lib"):
            (root / name).symlink_to(f"usr/{name}")
        self.configure("/etc/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d")

    def configure(self, *folders: str) -> None:
        (self.root / "etc/crio/crio.conf.d/00-default").write_text(
            f"[crio.runtime]\nhooks_dir = {json.dumps(folders)}\n"
        )

    def argv(self, command: str, *mounts: str) -> list[str]:
        lines = [f"[ ! -d /{path} ] || mount --rbind /{path} '{self.root}/{path}'" for path in PROGRAMS]
        script = "\n".join(["set -e", *lines, *mounts, command])
        return [*UNSHARED, "sh", "-c", script]

    def environment(self, **variables: str) -> dict[str, str]:
        places = {"HOST": str(self.root), "PAYLOAD": str(self.payload)}
        return {"PATH": os.environ["PATH"], "GRACE": "0", **places, **variables}

    def do(self, action: str, *mounts: str, **variables: str) -> subprocess.CompletedProcess[str]:
        line = self.argv(f"exec sh {SCRIPT} {action}", *mounts)
        return subprocess.run(line, env=self.environment(**variables), capture_output=True, text=True)

    def boot(self, unit: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """What oci-gpu-hook-ready.service does, on the node itself, at a boot: /run is empty then."""
        shutil.rmtree(self.root / "run")
        (self.root / "run").mkdir()
        lines = unit["contents"].splitlines()
        (settings,) = [line.partition("=")[2] for line in lines if line.startswith("Environment=")]
        (start,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
        line = self.argv(f"exec env -i PATH=/usr/sbin:/usr/bin {settings} chroot '{self.root}' {start}")
        return subprocess.run(line, capture_output=True, text=True)

    def must(self, action: str, *mounts: str, **variables: str) -> str:
        ran = self.do(action, *mounts, **variables)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    def refuses(self, action: str, *mounts: str, **variables: str) -> str:
        """Fails with one sentence of ours, which it gives."""
        ran = self.do(action, *mounts, **variables)
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stdout + ran.stderr
        assert ran.stderr.startswith("install-node.sh: "), ran.stderr
        return ran.stderr

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """All there is; programs are only there while one runs."""
        return tree(self.root)

    def versions(self) -> list[str]:
        return sorted(path.name for path in (self.root / LIBRARY).iterdir() if path.is_dir())

    def works(self, registration: str = REGISTRATION) -> None:
        """As an engine does: the registered program, with the state of a container that asks for no GPU."""
        hook = json.loads((self.root / registration).read_text())["hook"]
        bundle = self.root / "bundle"
        bundle.mkdir()
        (bundle / "config.json").write_text('{"process": {"env": ["PATH=/bin"]}, "root": {"path": "rootfs"}}')
        command = f"exec chroot '{self.root}' {hook['path']} {hook['args'][1]}"
        ran = subprocess.run(self.argv(command), input=json.dumps(STATE), capture_output=True, text=True)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
        shutil.rmtree(bundle)


def deliver(config: dict[str, Any], root: Path, local: str = "usr/local") -> None:
    """What the Machine Config Operator does: its files, each in its place; local: where /usr/local leads."""
    for file in config["storage"]["files"]:
        path = root / file["path"].lstrip("/").replace("usr/local", local)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.decompress(base64.b64decode(file["contents"]["source"].partition(",")[2])))
        path.chmod(file["mode"])


def generated(folder: Path) -> dict[str, Any]:
    """The config of the MachineConfig that is made in a folder."""
    printed(sys.executable, ROOT / "packaging/openshift/generate.py", folder)
    config: dict[str, Any] = yaml.safe_load((folder / "machineconfig.yaml").read_text())["spec"]["config"]
    return config


def make_payload(folder: Path) -> Path:
    """What the Containerfile makes, without the packages that are for people."""
    words = ("make", "install", f"DESTDIR={folder}", "PREFIX=/usr/local")
    printed(*words, cwd=ROOT, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    return folder


@pytest.fixture(scope="session")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_payload(tmp_path_factory.mktemp("payload"))


@pytest.fixture
def newer(payload: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "newer"
    printed("cp", "-R", payload, folder)
    with open(folder / "usr/local/lib/oci-gpu-hook/oci_gpu_hook/errors.py", "a") as file:
        file.write("# newer\n")
    return folder


@pytest.fixture
def node(payload: Path, tmp_path: Path) -> Node:
    return Node(tmp_path / "host", payload)


@pytest.fixture
def served(node: Node) -> Node:
    node.must("install")
    return node


@pytest.fixture
def systemctl(node: Node, tmp_path: Path) -> str:
    """The mount of a systemctl that notes its words in /run/told, and renews containerd's socket at a restart, while
    there is no /run/silent.
    """
    (node.root / "run/systemd/system").mkdir(parents=True)
    program = tmp_path / "systemctl"
    lines = ["#!/bin/sh", "[ ! -e /run/silent ] || exit 1", 'echo "$*" >>/run/told']
    lines.append('case "$*" in *"restart containerd") touch /run/containerd/containerd.sock ;; esac')
    write(program, "\n".join(lines), 0o755)
    return f"mount --bind '{program}' '{node.root}/usr/bin/systemctl'"


def test_a_systemd_that_does_not_answer_is_told_by_the_next_start(node: Node, systemctl: str) -> None:
    """Nothing of it fails the installation; and each unit is enabled once."""
    (node.root / "run/silent").touch()
    silent = node.do("install", systemctl)
    assert silent.returncode == 0 and "was not told: systemctl enable oci-gpu-hook-" in silent.stderr, silent
    (node.root / "run/silent").unlink()
    for _ in range(2):
        assert node.do("install", systemctl).returncode == 0
    told = (node.root / "run/told").read_text().splitlines()
    enabled = [line for line in told if " enable " in line]
    assert enabled and len(enabled) == len({*enabled}), told
    node.works()


@pytest.fixture
def pods(node: Node) -> Node:
    """A node whose pods containerd runs, with settings of CRI-O's left."""
    (node.root / "etc/containerd/conf.d").mkdir(parents=True)
    write(node.root / "etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    write(node.root / "run/containerd/containerd.sock", "")
    (node.root / LOCAL / "bin").mkdir()
    return node


def test_with_containerd_the_runtime_is_its_default_until_it_is_removed(pods: Node, systemctl: str) -> None:
    """containerd is restarted where it has not read the settings; what pods need that ours has made stays."""
    before, told, runtime = pods.tree(), pods.root / "run/told", pods.root / LOCAL / "bin/oci-gpu-runtime"
    for _ in range(2):
        assert pods.must("install", systemctl).endswith(f"registered in /{DROP_IN}\n")
    assert told.read_text().count("restart containerd\n") == 1
    default = printed(*pods.argv(f"chroot '{pods.root}' containerd config dump"))
    assert 'default_runtime_name = "oci-gpu-runtime"' in default and "/usr/local/bin/oci-gpu-runtime" in default
    bundle = pods.root / "run/containerd/io.containerd.runtime.v2.task/k8s.io/0123456789abcdef"
    write(bundle / "options.json", '{"BinaryName": "/usr/local/bin/oci-gpu-runtime"}')
    removed = pods.do("remove", systemctl)
    assert removed.returncode == 0 and "run by /usr/local/bin/oci-gpu-runtime" in removed.stderr
    assert told.read_text().count("restart containerd\n") == 2
    ended = printed(*pods.argv(f"chroot '{pods.root}' /usr/local/bin/oci-gpu-runtime --version"))
    assert ended.startswith("runc version") and not (pods.root / LIBRARY).exists()
    shutil.rmtree(bundle.parents[1])
    pods.must("install", systemctl)
    pods.must("remove", systemctl)
    assert not runtime.exists()
    told.unlink()
    assert pods.tree() == before


def test_containerd_is_restarted_where_it_has_not_read_its_settings(pods: Node, systemctl: str) -> None:
    """What an installation or a removal that was killed has left to do, and what others have changed."""
    told, main, drop_in = pods.root / "run/told", pods.root / "etc/containerd/config.toml", pods.root / DROP_IN
    runtime = pods.root / LOCAL / "bin/oci-gpu-runtime"

    def restarts(action: str) -> int:
        pods.must(action, systemctl)
        return told.read_text().count("restart containerd\n")

    assert restarts("install") == 1
    drop_in.touch()
    assert [restarts("install"), restarts("install")] == [2, 2]
    drop_in.unlink()
    assert restarts("install") == 3
    text = main.read_text()
    main.write_text("version = 2\nimports = []\n")
    assert "has this line in the place of its own: imports = " in pods.refuses("install", systemctl)
    assert drop_in.exists() and runtime.exists()
    main.write_text(text)
    assert restarts("install") == 4
    drop_in.unlink()
    assert restarts("remove") == 5 and not runtime.exists()
    assert restarts("install") == 6
    # A runtime that an earlier engine's pods need follows an upgrade.
    (pods.root / "run/crio").mkdir()
    runtime.write_text("# oci-gpu-hook, of an earlier version\n")
    assert restarts("install") == 6 and runtime.read_text().startswith("#!/bin/bash")
    (pods.root / "run/crio").rmdir()
    write(pods.root / "etc/oci-gpu-hook.conf", "runtime = /usr/bin/crun\r")
    write(pods.root / "etc/oci-gpu-hook.conf.d/mine.conf", "# mine")
    removed = pods.do("remove", systemctl, f"touch '{pods.root}/run/silent'")
    assert removed.returncode == 0 and "containerd was not restarted, and starts pods by it" in removed.stderr
    assert not drop_in.exists() and "\nexec '/usr/bin/crun' " in runtime.read_text()


SETTINGS = "{0}/etc/containerd/config.toml"
CRI = '[plugins.\\"io.containerd.grpc.v1.cri\\"]'
# The shell lines ahead of it, and what is said.
CONTAINERDS_WAYS = {
    "no drop-ins": (f"echo version = 2 >{SETTINGS}", "has this line ahead of its tables: imports = "),
    "no pods": (f"echo 'disabled_plugins = [\"io.containerd.grpc.v1.cri\"]' >>{SETTINGS}", "CRI plugin is off"),
    "settings of its own": (f'echo "{CRI}\nstats_collect_period = 9" >>{SETTINGS}', "containerd 1 would lose"),
    "a fault in them": (f"echo 'oom_score = \"\"' >>{SETTINGS}", "the node's 'containerd config dump' fails: "),
    "no runtime": ("mount --bind /dev/null {0}/usr/sbin/runc; mount --bind /dev/null {0}/usr/bin/crun", "neither runc"),
    "a package's drop-in": ("echo '# theirs' >{0}/" + DROP_IN, "is there and is not ours: move it away first"),
    "a silent systemd": ("touch {0}/run/silent", "could not be restarted"),
}


@pytest.mark.parametrize("name", CONTAINERDS_WAYS)
def test_a_containerd_that_would_start_no_pod_by_it_is_left_as_it_was(pods: Node, systemctl: str, name: str) -> None:
    line, said = CONTAINERDS_WAYS[name]
    before = pods.tree().keys()
    ran = pods.do("install", systemctl, line.format(pods.root))
    assert ran.returncode == 1 and said in ran.stderr, ran
    assert pods.tree().keys() - before <= {"run/silent", "run/told", DROP_IN if "package" in name else ""}
    told = pods.root / "run/told"
    assert not told.exists() or "restart" not in told.read_text()


def test_what_is_installed_works_and_removed_leaves_what_was_there(node: Node) -> None:
    write(node.root / LOCAL / "libexec/oci/hooks.d/other", "another's\n")
    (node.root / "etc/oci-gpu-hook.conf").write_text("accept-volume-mounts = yes\n")
    before = node.tree()
    node.must("remove")
    assert node.tree() == before
    said = node.must("install")
    (version,) = node.versions()
    assert said == f"installed version {version}, registered in /{HOOKS}\n"
    node.works()
    package = node.root / LIBRARY / version / "oci_gpu_hook"
    sources = {path.name for path in package.glob("*.py")}
    compiled = {path.name.partition(".")[0] + ".py" for path in package.glob("__pycache__/*.pyc")}
    assert compiled == sources
    whole = node.tree()
    node.must("install")
    assert node.tree() == whole
    node.must("remove")
    assert node.tree() == before


# What the Containerfile's last image, a minimal one, lacks of what this machine has; the node has it.
LACKING = ("find", "xargs", "awk", "cmp", "diff", "tar", "gzip", "ps", "perl", "which", "hostname")


def test_an_upgrade_from_a_minimal_image_leaves_the_new_version_alone(node: Node, newer: Path) -> None:
    hidden = [f"[ ! -e /usr/bin/{name} ] || mount --bind /dev/null /usr/bin/{name}" for name in LACKING]
    before = node.tree()
    node.must("install", *hidden)
    (old,) = node.versions()
    node.must("install", *hidden, PAYLOAD=str(newer))
    (new,) = node.versions()
    assert new != old
    assert new in (node.root / ENTRY).read_text()
    assert new in (node.root / COMMAND).read_text()
    node.works()
    node.must("remove", *hidden)
    assert node.tree() == before


def test_while_an_upgrade_waits_both_versions_are_whole(served: Node, newer: Path) -> None:
    """A hook that the old entry script started may read its modules until it ends."""
    node = served
    (old,) = node.versions()
    line, environment = node.argv(f"exec sh {SCRIPT} install"), node.environment(PAYLOAD=str(newer), GRACE="2")
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE) as upgrading:
        until(lambda: old not in (node.root / ENTRY).read_text())
        assert upgrading.stdout is not None and upgrading.stdout.readline().startswith(b"installed version ")
        assert len(node.versions()) == 2
        node.works()
        assert upgrading.wait(60) == 0
    assert old not in node.versions()


def test_a_half_finished_installation_is_finished(served: Node) -> None:
    """Killed at any place: what is there afterwards is what an undisturbed one makes."""
    node, whole = served, served.tree()
    (version,) = node.versions()
    (node.root / LIBRARY / version).rename(node.root / LIBRARY / ".new")
    (node.root / REGISTRATION).unlink()
    (node.root / f"{ENTRY}.new").write_text("half")
    (node.root / COMMAND).unlink()
    node.must("install")
    assert node.tree() == whole
    node.must("remove")
    (node.root / LIBRARY / ".new").mkdir(parents=True)
    (node.root / LIBRARY / "installed-folders.new").write_text("")
    node.must("install")
    node.works()


@pytest.mark.parametrize("place", [ENTRY, COMMAND, REGISTRATION, f"{LIBRARY}/theirs"])
@pytest.mark.parametrize("action", ["install", "remove"])
def test_a_foreign_file_is_left_alone_and_named(node: Node, place: str, action: str) -> None:
    path = node.root / place
    write(path, "somebody else's\n")
    before = node.tree()
    said = node.refuses(action)
    assert "is there and is not ours: move it away first" in said
    assert str(path if "theirs" not in place else path.parent) in said
    assert node.tree() == before


def full(node: Node, look: str, *mounts: str, **variables: str) -> list[str]:
    """Install on a full disk, and what a look at it says, before it goes with its namespace."""
    line = node.argv(f"sh {SCRIPT} install || : ; {look}", *mounts)
    ran = subprocess.run(line, env=node.environment(**variables), capture_output=True, text=True)
    assert "No space left on device" in ran.stderr
    assert ran.stderr.count("\n") == 1
    return ran.stdout.split()


def test_a_full_disk_is_left_as_it_was(node: Node) -> None:
    before = node.tree()
    small = f"mount -t tmpfs -o size=96k,nr_inodes=80 tmpfs '{node.root}/{LOCAL}'"
    assert full(node, f"find '{node.root}/{LOCAL}' -mindepth 1", small) == []
    assert node.tree() == before


def test_a_full_disk_leaves_the_version_that_works(served: Node, newer: Path) -> None:
    node = served
    (old,) = node.versions()
    local, kept = node.root / LOCAL, node.root / "tmp/kept"
    found = full(
        node,
        f"grep -o '{old}' '{node.root / ENTRY}'; ls -A '{node.root / LIBRARY}'",
        f"cp -R '{local}' '{kept}'",
        f"mount -t tmpfs -o size=7m tmpfs '{local}'",
        f"cp -R '{kept}/.' '{local}/'",
        f"head -c 9m /dev/zero >'{local}/filler' 2>/dev/null || :",
        PAYLOAD=str(newer),
    )
    assert found == [old, old, "installed-files", "installed-folders", "installed-hooks"]


def test_a_file_that_cannot_be_written_is_no_installation(node: Node) -> None:
    for folder in ("share/oci-gpu-hook/vendors", "lib/udev/rules.d"):
        place = f"'{node.root}/{LOCAL}/{folder}'"
        assert "Read-only" in node.refuses("install", f"mkdir -p {place}", f"mount -t tmpfs -o ro none {place}")
        assert not (node.root / REGISTRATION).exists() and not (node.root / LIBRARY).exists()


def test_an_upgrade_that_stops_takes_no_file_of_the_old_version(served: Node, newer: Path) -> None:
    """Where it stops at the rules, the vendors' files and the units are there; the next one drops what is no more."""
    vendors, before = f"{LOCAL}/share/oci-gpu-hook/vendors", served.tree()
    payloads = newer / "usr/local/share/oci-gpu-hook/vendors"
    (payloads / "amd.json").rename(payloads / "new.json")
    stopped = [line.format(served.root) for line in read_only(f"{LOCAL}/lib/udev/rules.d")]
    assert "Read-only" in served.refuses("install", *stopped, PAYLOAD=str(newer))
    assert before.keys() <= served.tree().keys()
    served.works()
    names = (served.root / LIBRARY / "installed-files").read_text()
    assert "vendors/amd.json" in names and "vendors/new.json" in names
    served.must("install", PAYLOAD=str(newer))
    found = served.tree().keys()
    assert f"{vendors}/new.json" in found and f"{vendors}/amd.json" not in found
    assert "amd.json" not in (served.root / LIBRARY / "installed-files").read_text()


@pytest.mark.parametrize("over", ["node", "served"], ids=["nothing", "another version"])
def test_what_does_not_start_is_not_registered(request: pytest.FixtureRequest, newer: Path, over: str) -> None:
    node: Node = request.getfixturevalue(over)
    with open(newer / "usr/local/lib/oci-gpu-hook/oci_gpu_hook/hook.py", "a") as file:
        file.write("raise ImportError('broken on purpose')\n")
    before = node.tree()
    said = node.refuses("install", PAYLOAD=str(newer))
    assert "the hook does not start on this node, so it was not registered" in said
    assert node.tree() == before
    if over == "served":
        node.works()


def test_the_last_folder_that_crio_is_told_to_look_into_is_used(node: Node) -> None:
    (node.root / "etc/crio/crio.conf.d/99-last.conf").write_text(
        '[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d"]\n'
    )
    before = node.tree()
    assert node.must("install").endswith("registered in /usr/share/containers/oci/hooks.d\n")
    assert not (node.root / REGISTRATION).exists()
    node.must("remove")
    assert node.tree() == before


def test_a_registration_is_found_where_crio_looked_before(served: Node, newer: Path) -> None:
    """Wherever it looks now: an upgrade that fails leaves it, one that works moves it, and it goes with the rest."""
    usr = REGISTRATION.replace("etc/", "usr/share/")
    setting = served.root / "etc/crio/crio.conf.d/99-last.conf"
    setting.write_text('[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d"]\n')
    hook = newer / "usr/local/lib/oci-gpu-hook/oci_gpu_hook/hook.py"
    text = hook.read_text()
    hook.write_text(f"{text}raise ImportError('broken on purpose')\n")
    assert "does not start" in served.refuses("install", PAYLOAD=str(newer))
    served.works()
    hook.write_text(text)
    assert served.must("install", PAYLOAD=str(newer)).endswith("registered in /usr/share/containers/oci/hooks.d\n")
    assert not (served.root / REGISTRATION).exists()
    served.works(usr)
    assert served.must("install", HOOKS_DIR="/usr/share/containers//oci/hooks.d/").startswith("installed")
    served.works(usr)
    setting.unlink()
    # An earlier version has left no list.
    (served.root / LIBRARY / "installed-hooks").unlink()
    served.must("remove")
    assert not (served.root / usr).exists() and not (served.root / LIBRARY).exists()


def read_only(place: str) -> tuple[str, ...]:
    """The shell lines by which a folder of {0}, the node's root, is."""
    return f"mount --bind {{0}}/{place} {{0}}/{place}", f"mount -o remount,bind,ro {{0}}/{place}"


# The shell lines ahead of it, and what is said.
IN_THE_WAY = {
    "a read-only /usr/local": (read_only(LOCAL), "it is read-only or full"),
    "a read-only /etc": (read_only("etc"), "it is read-only or full"),
    "hooks in /usr alone": (
        ("echo 'hooks_dir = [\"/usr/share/containers/oci/hooks.d\"]' >{0}/etc/crio/crio.conf.d/00-default",)
        + ("mkdir {0}/usr/share", *read_only("usr/share")),
        'add "/etc/containers/oci/hooks.d" to hooks_dir',
    ),
    "no engine": (
        ("rm -r {0}/etc/crio",),
        "the node runs neither CRI-O nor a containerd that has /etc/containerd/config.toml",
    ),
    "no Python": (("mount --bind /dev/null {0}/usr/bin/python3",), "no Python 3.9 or later"),
    "no node": (("mount -t tmpfs none {0}",), "is not a node's root"),
    "a MachineConfig": ((f"mkdir -p {{0}}/{LOCAL}/libexec/oci-gpu-hook",), "a MachineConfig serves this node already"),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_is_in_the_way_is_said_and_the_host_is_left_as_it_was(node: Node, name: str) -> None:
    lines, said = IN_THE_WAY[name]
    before = node.tree().keys()
    assert said in node.refuses("install", *[line.format(node.root) for line in lines])
    # What the lines have made.
    assert node.tree().keys() - before <= {"usr/share", f"{LOCAL}/libexec", f"{LOCAL}/libexec/oci-gpu-hook"}


def test_its_words_are_its_own(node: Node) -> None:
    before = node.tree()
    assert "knows run, install, remove and ready only, not 'upgrade'" in node.refuses("upgrade")
    assert node.tree() == before


@pytest.mark.parametrize("asked", ["yes", "no"])
def test_the_end_of_the_pod_removes_only_if_that_was_asked(node: Node, asked: str) -> None:
    before = node.tree()
    line, environment = node.argv(f"exec sh {SCRIPT} run"), node.environment(REMOVE_ON_TERM=asked)
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as pod:
        assert pod.stdout is not None
        for said in pod.stdout:
            if said.startswith("waiting"):
                break
        node.works()
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(60) == 0
    assert (node.tree() == before) is (asked == "yes")


@pytest.fixture(scope="module")
def machine_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return generated(tmp_path_factory.mktemp("machineconfig"))


def test_a_node_of_the_machineconfig_is_ready_at_each_boot(node: Node, machine_config: dict[str, Any]) -> None:
    """What does not start is registered no more: containers then start without it, rather than not at all."""
    unit, *_ = machine_config["systemd"]["units"]
    deliver(machine_config, node.root, LOCAL)
    for _ in range(2):
        ran = node.boot(unit)
        assert (ran.returncode, ran.stderr) == (0, "")
        node.works(RUN_REGISTRATION)
    # A file that was lost or changed is made again.
    (hook,) = (node.root / LIBRARY).rglob("hook.py")
    hook.write_text("raise ImportError\n")
    (node.root / ENTRY).write_text("#!/bin/bash\n# oci-gpu-hook\nfi\n")
    assert node.boot(unit).returncode == 0
    node.works(RUN_REGISTRATION)
    assert [path.name for path in node.root.glob("run/oci-gpu-hook-payload*")] == []
    assert len(list((node.root / LIBRARY).rglob("hook.*.pyc"))) == 1
    # A new MachineConfig that cannot start.
    archive = node.root / LOCAL / "libexec/oci-gpu-hook/payload.tar.xz"
    broken = node.root / "tmp/payload"
    shutil.unpack_archive(archive, broken, "xztar")
    with open(broken / "usr/local/lib/oci-gpu-hook/oci_gpu_hook/hook.py", "a") as file:
        file.write("raise ImportError('this is the new one')\n")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(broken / "usr", "usr")
    ran = node.boot(unit)
    assert ran.returncode == 1
    assert "the hook does not start on this node, so it was not registered: ImportError: this is the new" in ran.stderr
    assert not (node.root / RUN_REGISTRATION).exists()
    archive.write_bytes(b"half")
    ran = node.boot(unit)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert "cannot unpack what the MachineConfig has put there" in ran.stderr
    deliver(machine_config, node.root, LOCAL)
    assert node.boot(unit).returncode == 0
