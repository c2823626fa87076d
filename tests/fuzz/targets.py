# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: each input of a start, with values that look like it, and what a start does with it.

A target must give a value or one of the hook's own errors, in steps and memory that grow with the input and no faster.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import shutil
import struct
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

import yaml  # noqa: F401  -- else its import, which compiles patterns, counts as the first step
from hypothesis import strategies as st

from oci_gpu_hook.container import compat, devicecgroup
from oci_gpu_hook.driver import elf, inventory, nodes, proc, survey
from oci_gpu_hook.errors import HookError, plain
from oci_gpu_hook.formats import contexts, devicefilter, ldcache, scopeunit
from oci_gpu_hook.formats.ldcache import Entry, paths_of
from oci_gpu_hook.host import docker, podman, statefile
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.kernel import mountinfo, procfile
from oci_gpu_hook.node.engines import cdispecs
from oci_gpu_hook.planning import compatibility, labels, requirements
from oci_gpu_hook.planning.plan import Share
from oci_gpu_hook.request import cdirequest, containercli, settingsfile, sources
from oci_gpu_hook.request.annotations import read_engine
from oci_gpu_hook.request.bundle import Bundle, read_bundle
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import State, read_state
from oci_gpu_hook.runtime import create
from oci_gpu_hook.vendors import folders, vendorfile, vendorrules
from tests.unit import hosts, libcudas
from tests.unit.bounded import MIB, peak, steps
from tests.unit.test_ldcache import cache, parse
from tests.unit.test_request_properties import CONFIGS, INPUTS, ITEMS, VALUES
from tests.vocabulary.host import everything

# Steps for an empty input, and for each byte of one; bytes of memory likewise.
_STEPS, _STEPS_OF_BYTE = 60_000, 600
_MEMORY, _MEMORY_OF_BYTE = 2 * MIB, 400

HOOK = '{"path": "/usr/libexec/oci/hooks.d/oci-gpu-hook"}'
SCRATCH = Path(tempfile.mkdtemp(prefix="oci-gpu-hook-fuzz-"))
atexit.register(shutil.rmtree, SCRATCH)
_OPEN = ExitStack()


def root_at(path: Path) -> HostRoot:
    """One at a time: a run has thousands of examples."""
    _OPEN.close()
    return _OPEN.enter_context(HostRoot(str(path)))


class Target(NamedTuple):
    """One input: values for it, and what is done with one."""

    values: st.SearchStrategy[Any]
    act: Callable[[Any], object]


def check(target: Target, value: Any) -> None:
    """One example: nothing but the hook's own errors, with a plain sentence, within bounds."""
    size = len(value) if isinstance(value, (bytes, str)) else len(repr(value))

    def act() -> None:
        try:
            target.act(value)
        except HookError as err:
            assert str(err).isprintable() and len(str(err)) < 20_000

    assert peak(lambda: steps(act, _STEPS + _STEPS_OF_BYTE * size)) < _MEMORY + _MEMORY_OF_BYTE * size


# --- JSON: the state and config.json

_NUMBERS = st.integers() | st.sampled_from([-1, 0, 2**31, 2**32, 2**64, 10**30, True, 1.5, 1e308])
_ODD = ("/", "/b", "/dev/nvidia0", "bind", "\0", "\ud800", "..", "u:r:t:s0:c1.c9", "rwm", "c")
_TEXTS = st.text(max_size=30) | ITEMS | st.sampled_from(_ODD)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


def _object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields; now and then a field, or all of it, is of another shape."""
    odd = {name: st.one_of(value, value, value, _VALUES) for name, value in fields.items()}
    return st.one_of(*[st.fixed_dictionaries({}, optional=odd)] * 5, _VALUES)


def _several(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=4)


_RULES = _object(
    allow=st.booleans(), type=st.sampled_from(["a", "b", "c", "u", "p"]), major=_NUMBERS, minor=_NUMBERS, access=_TEXTS
)
_MOUNTS = _object(destination=_TEXTS, source=_TEXTS, type=_TEXTS, options=_several(_TEXTS))
_KNOWN = "cdi.k8s.io/a io.kubernetes.cri-o.ImageName io.kubernetes.pod.namespace io.kubernetes.cri-o.ContainerID"
_ANNOTATIONS = st.dictionaries(st.sampled_from(_KNOWN.split()) | _TEXTS, _TEXTS, max_size=4)
_HOOKS = _object(path=st.sampled_from(["/usr/bin/other", "/x/oci-gpu-hook"]) | _TEXTS, args=_several(_TEXTS))
_ENV = st.builds("{}={}".format, st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "A"]), VALUES)
_CONFIGS = _object(
    process=_object(
        env=_several(_ENV),
        capabilities=_object(bounding=_several(st.sampled_from(["CAP_SYS_ADMIN", "CAP_MKNOD"]))),
        selinuxLabel=_TEXTS,
    ),
    root=_object(path=_TEXTS),
    hooks=_object(prestart=_several(_HOOKS), createRuntime=_several(_HOOKS)),
    mounts=_several(_MOUNTS),
    annotations=_ANNOTATIONS,
    linux=_object(
        devices=_several(_object(path=_TEXTS)),
        mountLabel=_TEXTS,
        namespaces=_several(_object(type=_TEXTS)),
        resources=_object(devices=_several(_RULES)),
    ),
)
_STATES = _object(id=_TEXTS, pid=_NUMBERS, bundle=_TEXTS, bundlePath=_TEXTS, annotations=_ANNOTATIONS)


def _spoilt(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes as they are, cut off, with some changed, or many times over."""

    def spoil(whole: bytes, how: int, at: int, byte: int) -> bytes:
        at %= len(whole) + 1
        if how == 1:
            return whole[:at]
        if how == 2:
            return whole[:at] + bytes([byte]) + whole[at + 1 :]
        return whole * (byte % 40) if how == 3 else whole

    return st.builds(
        spoil, data, st.sampled_from([0, 0, 0, 0, 1, 2, 2, 3]), st.integers(0, 1 << 16), st.integers(0, 255)
    )


def _written(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    ways = st.booleans()
    return _spoilt(
        st.builds(lambda it, way: json.dumps(it, ensure_ascii=way).encode(errors="surrogatepass"), values, ways)
    )


def _state(data: bytes) -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(data)
        file.seek(0)
        read_state(file.fileno(), b"")


def _config(data: bytes) -> None:
    (SCRATCH / "config.json").write_bytes(data)
    bundle = read_bundle(str(SCRATCH))
    parts = (_request, _labels, _devices, Bundle.rootfs, Bundle.tmpfs, Bundle.has_user_namespace)
    for part in (*parts, lambda it: it.hooks("prestart")):
        try:
            part(bundle)
        except HookError as err:
            assert str(err).isprintable()


def _runtime(data: bytes) -> None:
    """What is valid stays as it was but for our hook; anything else stays untouched."""
    path = SCRATCH / "config.json"
    path.write_bytes(data)
    try:
        create.add_hook(str(path), HOOK)
    except HookError:
        assert path.read_bytes() == data
        raise
    before, after = json.loads(data), json.loads(path.read_bytes())
    theirs, ours = before.pop("hooks", None), after.pop("hooks")
    if theirs != ours:
        assert ours["createRuntime"][:-1] == ((theirs or {}).get("createRuntime") or [])
    assert before == after


def _request(bundle: Bundle) -> None:
    inputs = sources.inputs_of(bundle, bundle.annotations())
    sources.may_ask(inputs)
    parse_request(inputs, Settings(accept_volume_mounts=True))
    cdirequest.of_nodes(inputs, Settings(), tuple([path for path, *_ in bundle.devices()]), ("compute",))


_REQUESTS = _object(Driver=st.sampled_from(["", "nvidia", "cdi"]), Count=_NUMBERS, DeviceIDs=_several(_TEXTS))
_RECORDS = _object(DeviceRequests=_several(_REQUESTS))
_DOCKERS = Bundle("/run/c", {"mounts": [{"source": "/containers/c/hosts", "destination": "/etc/hosts"}]})


_TASKS = _object(
    Managed=st.booleans(),
    Image=st.just("a:b") | _TEXTS,
    Driver=st.just("c") | _TEXTS,
    ImageManifest=st.none() | _object(digest=_TEXTS),
    config=_object(Env=_several(_TEXTS), digest=_TEXTS),
)


def _planted(data: bytes, folder: str, *paths: str) -> HostRoot:
    for path in paths:
        hosts.plant(SCRATCH / folder, path, data)
    return root_at(SCRATCH / folder)


def _task(data: bytes) -> None:
    """The record, and the image's configuration to which it leads."""
    root = _planted(data, "docker", "containers/c/config.v2.json", "image/c/imagedb/content/a/b")
    docker.from_image(root, _DOCKERS, {"A": "1"})


def _record(data: bytes) -> None:
    docker.value(docker.requests_of(_planted(data, "docker", "containers/c/hostconfig.json"), _DOCKERS))


_STORED = st.lists(_object(id=st.sampled_from(["c", "d"]), metadata=_TEXTS | st.just('{"image-name":"a"}')), max_size=3)


def _stored(data: bytes) -> None:
    podman.image(_planted(data, "podman", "a-containers/containers.json"), "/a-containers/c/userdata", "c")


def _labels(bundle: Bundle) -> None:
    labels.context_for(bundle.mount_label(), bundle.process_label())
    bundle.mount_source("/dev/shm")


def _devices(bundle: Bundle) -> None:
    rules = bundle.device_rules()
    devicefilter.program((*rules, *devicefilter.runtime_defaults()))


# --- what is asked

_FACTORS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["cuda", "driver", "arch", "brand", "", "x"]),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "", "=="]),
    st.from_regex(r"[0-9.]{0,6}", fullmatch=True) | st.sampled_from(["tesla", "9" * 40, "١"]) | st.text(max_size=4),
)
_FACTS = ("580.65.06", "13.0", (("9.0", "Tesla"), ("", "")))
_EXPRESSIONS = st.lists(_FACTORS | st.sampled_from([" ", ",", "\n"]), max_size=60).map("".join)


_OPTIONS = (
    "configure list info --user --user=0:0 -u -d --device=all --device --pid=7 --compute --utility -cuv "
    "--require=cuda>=1 --debug=/x --csv --mig-config=all -- /r"
)
_WORDS = st.lists(st.sampled_from(_OPTIONS.split()) | ITEMS | _TEXTS, max_size=12)


def _words(words: list[str]) -> None:
    call = containercli.parse_call(words)
    call.pid()
    parse_request(call.inputs(), Settings())


def _injected(values: tuple[sources.Inputs, Settings, list[str], list[str], str]) -> None:
    inputs, allowed, paths, capabilities, spec = values
    cdirequest.of_nodes(inputs, allowed, tuple(paths), tuple(capabilities))
    found = cdispecs._spec("/etc/cdi/x.yaml", spec)
    if found is not None:
        cdispecs.words_of(found.document)


_KINDS = st.sampled_from(["", "cdi/", "imex/", "cdi/nvidia.com/gpu/"])
_LISTS = st.lists(st.tuples(st.sampled_from(["/dev/null", "/x"]), ITEMS | _TEXTS, _KINDS), max_size=40)


def _device_list(rows: list[tuple[str, str, str]]) -> None:
    mounts = tuple([(source, f"{sources.LIST_FOLDER}/{kind}{name}") for source, name, kind in rows])
    parse_request(sources.Inputs({}, mounts), Settings(accept_volume_mounts=True))


# --- ld.so.cache


_OFFSETS = st.integers(0, 60) | st.sampled_from([0, 0, 4095, 2**31])
_PARTS = (b"lib", b"1a", b"\x1f", b"9" * 40, b".so.1", b"/", b"\0", b"\xff", b"libcuda.so.1\0", b"a" * 4095)
_STRINGS = st.lists(st.sampled_from(_PARTS), max_size=30).map(b"".join)
_EXTENSIONS = st.builds(
    lambda tag, offset, size, rest: struct.pack("<6I", 0xEAA42174, 1, tag, 0, offset, size) + rest,
    st.integers(0, 2),
    st.integers(0, 2000),
    st.integers(0, 60) | st.just(2**32 - 1),
    st.just(b"ldconfig (GNU libc) 2.36") | st.binary(max_size=30),
)
_FLAGS, _HWCAPS = st.sampled_from([0x303, 3, 0xFFFFFFFF]), st.sampled_from([0, 1 << 62, 7])
_FEW = st.lists(st.tuples(_OFFSETS, _OFFSETS, _FLAGS, _HWCAPS), max_size=20)
_SMALL = st.tuples(st.integers(0, 9), st.integers(0, 9), st.just(0x303), st.just(0))
_CACHES = _spoilt(
    st.builds(
        lambda rows, strings, extension, more: cache(rows, strings + b"\0", extension, more=more),
        _FEW | st.lists(_SMALL, min_size=128, max_size=300),
        _STRINGS,
        st.just(b"") | _EXTENSIONS,
        st.tuples(st.sampled_from([0, 0, 0, 1, -1, 2**30]), st.sampled_from([0, 0, 0, 1, -1, 2**31])),
    )
    | st.binary(max_size=200).map(lambda rest: b"ld.so-1.7.0\0" + rest)
)
_TAGS = st.lists(st.tuples(st.sampled_from([1, 5, 14]), st.sampled_from([0, 1, 0x11000]) | st.integers(0, 2**32 - 1)))
_ELVES = _spoilt(
    st.builds(
        lambda tags, bits, order: hosts.elf_file(b"\0libcuda.so.1\0", bits=bits, order=order, tags=tuple(tags)),
        *(_TAGS, st.sampled_from([32, 64]), st.sampled_from("<>")),
    )
)
_OURS = [Entry(b"lib%d.so.1" % number, b"/usr/lib64/lib%d.so.1" % number, 0x303) for number in range(9)]


def _ld_so_cache(data: bytes) -> None:
    """What is no cache to one is none to the other; a merge keeps what was there."""

    def read(act: Callable[..., Any], *more: Any) -> Any:
        try:
            return act(data, *more)
        except ldcache.MalformedCache:
            return None

    read(paths_of, (b"libcuda.so.1", b"lib"))
    theirs, merged = read(parse), read(ldcache.merge, _OURS)
    assert not data or (theirs is None) == (merged is None)
    if theirs and merged:
        ours = {tuple(it[:3]) for it in _OURS}
        assert {it[:3] for it in parse(merged).entries} == {it[:3] for it in theirs.entries} | ours


def _elf(data: bytes) -> None:
    (SCRATCH / "elf").write_bytes(data)
    found = elf.identity_of(root_at(Path("/")), str(SCRATCH / "elf"))
    assert found is None or found[0][1] in (32, 64)


_CUDA = SCRATCH / "cuda" / "opt"
_CUDA.mkdir(parents=True)


def _libcuda(value: tuple[bytes, int, bytes]) -> None:
    """A library of a damaged image: what a start finds out of it, and does with that."""
    data, at, change = value
    at %= len(data) or 1
    (_CUDA / "libcuda.so.999.1").write_bytes(data[:at] + change + data[at + len(change) :])
    root = os.open(_CUDA.parent, os.O_PATH)
    try:
        found = compat.compat_of(root, "/opt", ("libcuda.so.1", "libcuda.so.999.1"))
    finally:
        os.close(root)
    if found is not None:
        share = Share("", "/usr/local/nvidia", (), (), ())
        compatibility.with_newer(share, found, ("535.1.1", "12.2"), (), everything().libraries)


_NOTES = _object(
    **{
        "CUDA version": st.sampled_from(["12.9", "13.2", "1.", "9" * 60]) | _TEXTS,
        "driver": _several(st.integers(0, 999)),
        "device": _several(st.integers(0, 20)),
    }
).map(libcudas.said) | st.binary(max_size=60)
_LIBCUDAS = st.tuples(
    st.builds(
        lambda content, type, flags, size: libcudas.library(content, type=type, flags=flags, size=size),
        _NOTES,
        st.sampled_from([7, 7, 7, 1]),
        st.sampled_from([0, 0, 0x800]),
        st.sampled_from([-1, -1, 1 << 16, 1 << 30]),
    ),
    st.integers(0, 400),
    st.binary(max_size=8),
)


# --- the host


class _Proc(HostRoot):
    """A host's root whose files all have this text, and whose folders all have these names."""

    def __init__(self, text: bytes, names: list[str]) -> None:
        self.data, self.listed, self.path = text, names, "/"

    def read(self, path: str) -> bytes | None:
        return self.data

    def names(self, path: str) -> list[str]:
        return self.listed

    def inodes(self, path: str) -> list[tuple[str, int]]:
        return [(name, 1) for name in self.listed]

    def stat(self, path: str) -> os.stat_result | None:
        return None


_KERNELS = (
    *("NVRM version: NVIDIA  580.65.06 x", "Model: \t H100", "Device Minor: \t 0", "Device Minor: ²"),
    *("GPU UUID: GPU-?", "DeviceFileMinor: 3", "Character devices:", "195 nvidia", "505 nvidia-uvm"),
    *("² nvidia-caps", "Block devices:"),
    *("0::/a.scope/c1", "4:devices:/c", "1 2 0:3 / / rw - cgroup2 c rw", "7 -", "7 1 2"),
    *("7 2 0:3 / /sys shared:1 - cgroup c rw,devices", "DeviceAllow=/dev/null rw", "DeviceAllow="),
    "DevicePolicy=strict",
)
_LINES = st.lists(st.sampled_from(_KERNELS) | st.text(max_size=20), max_size=12).map("\n".join)
_FOUND = "0000:07:00.0 gpu0 gi1 ci0 channel7 channel² card0 renderD128 gi² x"
_NAMES = st.lists(st.sampled_from(_FOUND.split()) | st.text(max_size=8), max_size=5)


def _proc_files(value: tuple[str, list[str]]) -> None:
    text, names = value
    root = _Proc(text.encode(errors="surrogatepass"), names)
    survey.driver_version(root)
    gpus = survey.list_gpus(root)
    survey.mig_devices(root, gpus)
    found = nodes.devices(root, gpus) + nodes.of_families(root, nodes.FAMILIES, gpus, (1,), ("7",))
    nodes.links(found, gpus)
    proc.stamp(root, "/")
    proc.capability_minor(root, "mig/config")
    scopeunit.parse_scope("a.scope", text)
    folder = SCRATCH / "proc"
    folder.mkdir(exist_ok=True)
    (folder / "mountinfo").write_bytes(root.data + b"\n")
    pieces = [*procfile.pieces(str(folder / "mountinfo"))]
    for number in (1, 7):
        mountinfo.mount(pieces, number)
        mountinfo.mounted(pieces, [f"0:{number}"])
    assert len([*mountinfo.mounts(pieces)]) <= root.data.count(b"\n") + 1
    for controller in ("devices", ""):
        devicecgroup.path_in(root.data, controller)


def _label(text: str) -> None:
    with suppress(ValueError):
        str(contexts.parse_context(text))


_CATEGORIES = st.sampled_from(["s0", "c0", ":", ",", ".", "-", "c65535", "c0.c1023", "u:r:t:", "c99999"])
_LEVELS = st.lists(_CATEGORIES | st.text(max_size=3), max_size=60).map("".join)


# --- what was saved

_WORTHS = st.text(max_size=9) | st.binary(max_size=9) | st.sampled_from(["stat", "read", "names", "Mount", "/etc"])
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORTHS,
    lambda inner: st.lists(inner, max_size=5).map(tuple) | st.lists(inner, max_size=3),
    max_leaves=30,
)


_HOST = hosts.host(SCRATCH / "host")
hosts.saved(_HOST)
_NOW = proc.stamp(_HOST, "/")
_SAVED = (SCRATCH / "host" / statefile.FOLDER[1:] / inventory.FILE).read_bytes()
_BEGIN = len(inventory.HEADING) + statefile.LENGTH_BYTES
_ROWS = marshal.loads(_SAVED[_BEGIN:])[1]


def _replaced(place: int, value: Any) -> Any:
    rows = list(_ROWS)
    rows[place % len(rows)] = value
    return tuple(rows)


def _inventory(rows: Any) -> None:
    content = marshal.dumps((tuple(_NOW), rows), 2)
    length = len(content).to_bytes(statefile.LENGTH_BYTES, "little")
    statefile.write(_HOST, inventory.FILE, inventory.HEADING + length + content)
    inventory.read_saved(_HOST, _NOW)


# --- what the administrator writes

_SETTING = st.builds(
    "{}{}{}".format,
    st.sampled_from([*settingsfile.KINDS, "[namespace", "[image", "#", "", "x"]) | st.text(max_size=6),
    st.sampled_from([" = ", "=", " ", ""]),
    st.sampled_from(["yes", "no", "all", "on", "/x", "a*b]", "*]", "utility, compute", "/a.prom"])
    | st.text(max_size=12),
)
_SETTINGS = st.lists(_SETTING, max_size=12).map("\n".join)


def _settings(value: tuple[str, dict[str, str]]) -> None:
    text, named = value
    id = named.get("io.kubernetes.cri-o.ContainerID", "")
    state = State(id, 1, "/x-containers/a/userdata", named)
    found = settingsfile.fields(settingsfile.parse_text(text, "/etc/oci-gpu-hook.conf"), state, Settings()._asdict())
    assert isinstance(Settings(**found), Settings)
    read_engine(state)


_PIECES = (
    *("/usr/lib64", "/opt", "/etc", "/run", "/dev/", "/", "..", "*", "?", "[a-z]", "[!", "]", "-"),
    *("{version}", "{", "}", "sd", "nvme", "dri/renderD", "xcard", "0", "lib.so", "\0", "\ud800", "é"),
)
_NAMED = st.lists(st.sampled_from(_PIECES), max_size=6).map("".join) | _TEXTS
_ITEMS_NAMED = _several(_NAMED | _object(path=_NAMED, target=_NAMED, required=st.booleans()))
_DEVICES_NAMED = _several(
    _NAMED
    | _object(
        path=_NAMED,
        major=st.sampled_from(["xcard", "sg", "/dev/tty"]) | _TEXTS,
        pci=st.sampled_from(["1002", "1D0F:7064", ["1002"], []]) | _TEXTS,
        udev=st.dictionaries(_TEXTS, _TEXTS, max_size=2),
        each=st.booleans(),
        name=_TEXTS,
        required=st.booleans(),
    )
)
_GROUPS = st.dictionaries(
    st.sampled_from(["compute", "utility", ""]) | _TEXTS,
    _object(devices=_DEVICES_NAMED, **dict.fromkeys((*vendorfile._ITEM_LISTS, "sockets"), _ITEMS_NAMED)),
    max_size=3,
)
_VENDORS = _object(
    inventory=_GROUPS,
    driver_feature=_several(st.sampled_from(["compute", "utility"]) | _TEXTS),
    version=st.sampled_from(["1.0", {"module": "x"}, {"file": "/sys/x"}]) | _TEXTS,
    kind=st.sampled_from(["x.com/card", "nvidia.com/gpu"]) | _TEXTS,
    environment=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
    requires=_object(kernel=st.sampled_from(["5.14", "6"]) | _TEXTS, modules=_several(_TEXTS)),
    selinux=_object(type=_TEXTS, boolean=_TEXTS),
    description=_TEXTS,
).map(lambda value: {"activation_flag": "OCI_X", "inventory": {}, **value} if isinstance(value, dict) else value)


def _vendor(data: bytes) -> None:
    """A right one means the same once more, and says whose each device is; what is wrong is said of the file."""
    try:
        found = vendorfile.parse_vendor(data, "/x.json")
    except HookError as err:
        assert err.message.startswith("/x.json: ") and err.hint
        raise
    assert found == vendorfile.parse_vendor(data, "/x.json") and not folders.collisions([found])
    for device in [device for group in found.groups for device in group.devices]:
        assert device.major or vendorrules.known_node(device.path), device


TARGETS: dict[str, Target] = {
    "state": Target(_written(_STATES), _state),
    "config.json": Target(_written(_CONFIGS), _config),
    "runtime": Target(_written(_CONFIGS), _runtime),
    "hostconfig.json": Target(_written(_RECORDS), _record),
    "containers.json": Target(_written(_STORED), _stored),
    "config.v2.json": Target(_written(_TASKS), _task),
    "words": Target(_WORDS, _words),
    "environment": Target(st.tuples(INPUTS, CONFIGS), lambda asked: parse_request(*asked)),
    "requirements": Target(_EXPRESSIONS, lambda it: requirements.check((it,), *_FACTS)),
    "device-lists": Target(_LISTS, _device_list),
    "elf": Target(_ELVES, _elf),
    "ld.so.cache": Target(_CACHES, _ld_so_cache),
    "libcuda": Target(_LIBCUDAS, _libcuda),
    "proc-files": Target(st.tuples(_LINES, _NAMES), _proc_files),
    "labels": Target(_LEVELS, _label),
    "saved-inventory": Target(st.builds(_replaced, st.integers(0, 99), _PLAIN) | _PLAIN, _inventory),
    "settings": Target(st.tuples(_SETTINGS, _ANNOTATIONS), _settings),
    "vendors": Target(_written(_VENDORS), _vendor),
    "CDI": Target(st.tuples(INPUTS, CONFIGS, _several(_TEXTS), _several(ITEMS), _TEXTS), _injected),
    "sentences": Target(st.text(), plain),
}
