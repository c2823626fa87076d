# SPDX-License-Identifier: Apache-2.0
"""The linked modules: exactly those that each path of a start loads, in an order that works, and no need to have them.

Each module costs every start on every node; a change that adds one changes a list here and says why.
"""

from __future__ import annotations

import ast
import marshal
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oci_gpu_hook.driver import proc
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.vendors import folders
from tests.unit import hosts, starts
from tests.unit.containers import at_stage, write_bundle
from tests.unit.test_contracts import PACKAGE, imported, source

pytestmark = pytest.mark.pythons

ROOT = starts.ROOT
LINKER = runpy.run_path(str(ROOT / "packaging/link.py"))
GROUPS: dict[str, tuple[str, ...]] = LINKER["groups"](str(ROOT))
FILE = f"oci_gpu_hook/__linked__/modules.{sys.implementation.cache_tag}"

# The hook's start; and where each module came from, for a linked one has no file.
REPORT = f"""
import posix
def exit(status):
    ours = [name for name in sys.modules if name.split(".")[0] == "{PACKAGE}"]
    files = [name for name in ours if getattr(sys.modules[name], "__file__", None)]
    others = set(sys.modules) - set(ours)
    print(status, ",".join(ours), ",".join(files), ",".join(others), flush=True)
    leave(0)
leave, posix._exit = posix._exit, exit
{starts.MAIN}
"""


def link(library: Path, place: Path | None = None) -> None:
    """The package at `library`, linked as packaging/install.sh has it linked, for its place."""
    for file in (ROOT / PACKAGE).rglob("*.py"):
        hosts.plant(library, str(file.relative_to(ROOT)), file.read_bytes())
    words = [sys.executable, "-ISB", "-X", "no_debug_ranges", str(ROOT / "packaging/link.py")]
    subprocess.run([*words, str(library), str(place or library)], check=True)


class Run:
    """A stage: its exit code, our modules that were loaded, those of them with a file, and all others."""

    def __init__(self, library: Path, bundle: Path, *options: str) -> None:
        code, out, self.said = at_stage(starts.command(REPORT, "createRuntime", *options, library=library), bundle)
        assert code == 0, self.said
        status, *lists = out.rstrip("\n").split(" ")
        self.status = int(status)
        self.modules, self.files, self.others = [set(filter(None, names.split(","))) for names in lists]


def groups(*names: str) -> set[str]:
    return {LINKER["full_name"](module) for name in names for module in GROUPS[name]}


def linked_run(program: str, *words: str, library: Path) -> str:
    """What a program prints for which the package at `library` serves."""
    command = starts.command(program, *words, library=library)
    ran = subprocess.run(command, capture_output=True, text=True, env={})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# The budget of imports.

FOR_STATE_AND_CONFIG = {"_json", "_collections", "gc", "linked"}
FOR_A_GPU = FOR_STATE_AND_CONFIG | {"_ctypes"}
GPU = ("state", "start", "gpu", "apply", "record", "provision")
# This GPU is not there: it is refused when plan and apply are loaded already.
ABSENT = "NVIDIA_VISIBLE_DEVICES=7"
UNKNOWN = "unknown device '7'"
A_VENDOR = '{"activation_flag": "OCI_A", "requires": {"modules": ["acme"]}, "inventory": {"a": {}}}'


def remembered(host: Path) -> None:
    """As an earlier start saves what is known of the vendor."""
    root = HostRoot(str(host), remember=True)
    for vendor in folders.known(root):
        folders.vendor_inventory(root, vendor.flag, vendor.file)


class Budget(NamedTuple):
    """A start on a host whose saved inventory is true: its request, what it says, and what it may load.

    Every request here is refused when all is known and nothing has been done: the machine is not touched.
    """

    said: str
    groups: tuple[str, ...]
    env: str = ABSENT
    others: set[str] = FOR_A_GPU
    options: tuple[str, ...] = ()
    config: dict[str, Any] = {}  # noqa: RUF012  read only
    plant: tuple[str, str] = ("unused", "")
    spoil: Callable[[Path], object] = str


BUDGETS = {
    # And only where the entry script has left it to Python at all.
    "no request": Budget("", ("state", "start"), env="A=1", others=FOR_STATE_AND_CONFIG),
    "GPU": Budget(UNKNOWN, GPU),
    "labels": Budget(UNKNOWN, (*GPU, "labels"), plant=("sys/fs/selinux/enforce", "1")),
    "requirements": Budget(
        "the image requires 'cuda>=99.0'",
        (*GPU, "requirements"),
        config={"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"]}},
    ),
    "CDI": Budget(
        "the image requires 'cuda>=99.0'",
        (*GPU, "requirements", "cdi"),
        env="NVIDIA_REQUIRE_CUDA=cuda>=99.0",
        options=("--cdi", "compute,utility"),
        config={"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c"}]}},
    ),
    "another vendor's, by CDI": Budget(
        "requires what this host lacks",
        (*GPU, "vendors", "platform", "cdi"),
        env="A=1",
        options=("--cdi-vendor", "OCI_A"),
        plant=("etc/oci-gpu-hook/vendors/a.json", A_VENDOR),
        spoil=remembered,
    ),
    # They are in force: only `swarm-resources` says that the request may stand where it stands; and dockerd's record,
    # whether that is Swarm's.
    "settings": Budget(
        UNKNOWN,
        (*GPU, "settings", "docker"),
        env="MY_GPUS=7",
        options=("--config", "FOLDER/host/settings"),
        plant=("settings", "swarm-resources = MY_GPUS\nipc-labels = all\n"),
    ),
    # dockerd's record says whether its user has asked.
    "a request that is not accepted": Budget(
        "the request in NVIDIA_VISIBLE_DEVICES is not accepted",
        ("state", "start", "gpu", "apply", "record", "settings", "docker"),
        options=("--config", "FOLDER/host/settings"),
        plant=("settings", "accept-environment = privileged\nunaccepted-requests = refuse\n"),
    ),
    # So that it is known what a cold start pays for.
    "no saved inventory": Budget(
        UNKNOWN,
        (*GPU, "survey"),
        others=FOR_A_GPU | {"struct", "_struct"},
        plant=(proc.LD_SO_CACHE, ""),
        spoil=lambda host: hosts.plant(host, "proc/sys/kernel/random/boot_id", "another\n"),
    ),
}


@pytest.fixture(scope="session")
def shared_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("linked") / "library"
    link(path)
    return path


@pytest.fixture(scope="session")
def at_start() -> set[str]:
    words = [*starts.command("")[:-1], "import sys; print(*sys.modules)"]
    return set(subprocess.run(words, capture_output=True, check=True, env={}).stdout.decode().split())


@pytest.mark.parametrize("name", BUDGETS)
def test_a_start_loads_exactly_this(shared_library: Path, tmp_path: Path, at_start: set[str], name: str) -> None:
    budget = BUDGETS[name]
    host = tmp_path / "host"
    hosts.plant(host, *budget.plant)
    hosts.saved(hosts.host(host))
    budget.spoil(host)
    bundle = write_bundle(tmp_path, budget.env, **budget.config)
    options = [word.replace("FOLDER", str(tmp_path)) for word in budget.options]
    found = Run(shared_library, bundle, "--host-root", str(host), *options)
    assert budget.said in found.said and bool(budget.said) == bool(found.status)
    # Of a start that fails crun is told, too.
    told = ("crun",) if budget.said else ()
    assert found.modules == groups(*budget.groups, *told) and not found.files
    assert found.others - at_start == budget.others


# The order of the modules.


def test_every_module_stands_behind_what_it_imports() -> None:
    """Else an import at the top of a file would load its group a second time."""
    before: set[str] = set()
    for module in [module for group in GROUPS.values() for module in group]:
        name = LINKER["full_name"](module)
        top = [node for node in source(name).body if isinstance(node, ast.ImportFrom)]
        assert {need for node in top for need in imported(node, for_types=False)} <= before, name
        before.add(name)


def test_whatever_a_linked_module_imports_is_linked() -> None:
    """Also in its functions, where imports wait until they are needed; but for the command line."""
    everywhere = groups(*GROUPS)
    found = {(name, need) for name in everywhere for need in imported(source(name), for_types=False)}
    assert {(name, need) for name, need in found if need not in everywhere} == {
        ("oci_gpu_hook.__main__", "oci_gpu_hook.cli"),
        ("oci_gpu_hook.__main__", "oci_gpu_hook.node.gpus.driverlist"),
    }


EACH_ALONE = """
import posix
linked.find_linked(sys.argv[1])
for name in sys.argv[2:]:
    pid = posix.fork()
    if not pid:
        __import__(name)
        posix._exit(hasattr(sys.modules[name], "__file__"))
    if posix.waitpid(pid, 0)[1]:
        sys.exit(name)
"""


def test_each_linked_module_can_be_the_first(shared_library: Path) -> None:
    """A process that begins with a module of a later group gets what that group needs."""
    linked_run(EACH_ALONE, str(shared_library), *sorted(groups(*GROUPS)), library=shared_library)


def test_no_group_is_larger_than_what_malloc_keeps(shared_library: Path) -> None:
    data = (shared_library / FILE).read_bytes()
    index = marshal.loads(data[8 : 8 + int.from_bytes(data[4:8], "little")])
    assert max(place[1] for place in index.values() if not isinstance(place, str)) < 120 << 10


SEARCHED = """
linked.prepare()
import _ctypes, _json
print(_json.make_scanner and _ctypes.dlopen and [path for path in sys.path_importer_cache if "dynload" in path])
"""


@pytest.mark.parametrize(("damage", "searched"), [(b"", 0), (b"/gone/", 1)])
def test_extension_modules_are_searched_for_where_they_have_gone(library: Path, damage: bytes, searched: int) -> None:
    place = LINKER["extensions"]().get("_json", "").encode()
    if not place:
        pytest.skip("this Python has them built in")
    data = (library / FILE).read_bytes()
    assert place in data
    (library / FILE).write_bytes(data.replace(place, place[: -len(damage)] + damage if damage else place))
    assert len(ast.literal_eval(linked_run(SEARCHED, library=library))) == searched


# Without the linked file, or with a damaged one.


@pytest.fixture()
def library(tmp_path: Path, shared_library: Path) -> Path:
    return Path(shutil.copytree(shared_library, tmp_path / "library"))


def refused(library: Path, folder: Path) -> Run:
    """A start on a host without a driver: everything that a GPU container needs is loaded by then."""
    (folder / "host").mkdir()
    run = Run(library, write_bundle(folder, ABSENT), "--host-root", str(folder / "host"))
    assert run.status == 6, run.said
    return run


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "other", "no index", "another bytecode"])
def test_without_the_linked_file_the_package_serves(library: Path, tmp_path: Path, damage: str) -> None:
    file = library / FILE
    content = {"cut": file.read_bytes()[:900], "other": b"\xff" * 99}
    content["no index"] = MAGIC_NUMBER + (5).to_bytes(4, "little") + marshal.dumps(1)
    # As a Python before a release has under the same cache tag.
    content["another bytecode"] = b"\x00" + file.read_bytes()[1:]
    file.write_bytes(content.get(damage, b""))
    if damage == "missing":
        file.unlink()
    assert groups("state", "start", "gpu", "apply") <= refused(library, tmp_path).files


def test_where_a_group_is_damaged_the_package_serves_in_its_place(library: Path, tmp_path: Path) -> None:
    data = bytearray((library / FILE).read_bytes())
    size = int.from_bytes(data[4:8], "little")
    first, length = marshal.loads(data[8 : 8 + size])["oci_gpu_hook.apply"]
    at = 8 + size + first
    data[at : at + length] = b"\xff" * length
    (library / FILE).write_bytes(data)
    run = refused(library, tmp_path)
    assert groups("apply") <= run.files
    assert not run.files & groups("state", "start", "gpu")


def test_a_start_that_an_upgrade_overtakes_has_modules_of_one_version(library: Path) -> None:
    """rpm puts file after file into place: modules of two versions may not know each other."""
    other = library / "other"
    other.write_bytes(b"\xff" * 99)
    for module in ("kernel/__init__.py", "kernel/syscalls.py"):
        (library / PACKAGE / module).write_text("raise ImportError('of another version')\n")
    main = f"""
linked.find_linked({str(library)!r})
import os
os.replace({str(other)!r}, {str(library / FILE)!r})
from oci_gpu_hook.kernel import syscalls
print(syscalls.openat2)
"""
    linked_run(main, library=library)


def test_linking_twice_gives_the_same_bytes(shared_library: Path, tmp_path: Path) -> None:
    """Also beside a folder that an older release has left, with what Python has compiled there: it is no module.

    The place is part of them, as tracebacks name it.
    """
    left = tmp_path / "library" / PACKAGE / "operations/__pycache__"
    left.mkdir(parents=True)
    (left / "__init__.cpython-39.pyc").write_bytes(b"")
    link(tmp_path / "library", shared_library)
    assert (tmp_path / "library" / FILE).read_bytes() == (shared_library / FILE).read_bytes()
