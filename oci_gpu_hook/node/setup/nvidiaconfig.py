# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's ``config.toml``, key by key: our setting for it, why it needs none, or why it is refused.  Pure.

A value that no setting of ours can express is never dropped silently: the table says what is lost, and what there is
instead.  Must not parse TOML or read a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.settingsfile import matches, meant
from oci_gpu_hook.request.words import ALL, CAPABILITIES, items

# The beginning of an imported file: only such a file may be replaced.
MARK = "# Written by 'oci-gpu-hook config import'"

SERVED, NEEDLESS, REFUSED = "served", "needless", "refused"

BOOLEAN, STRING, STRINGS = "a boolean", "a string", "an array of strings"
_KINDS = {bool: BOOLEAN, str: STRING, list: "an array", dict: "a table"}
_SHOWN_LENGTH = 200


class Key(NamedTuple):
    """setting: the setting of ours that it becomes, "" for none; words: its possible values, each with our value or
    with None if it becomes no setting; without words, any value is possible; why: why it needs no setting; harmless:
    patterns for strings and for each item of an array: any other value is refused, for the same reason and what `more`
    adds to it; None if any value is harmless.
    """

    name: str
    kind: str
    setting: str = ""
    words: Mapping[Any, str | None] | None = None
    why: str = ""
    harmless: tuple[object, ...] | None = None
    more: str = ""


class KeyMeaning(NamedTuple):
    """What became of one key of a file: `means` is a line of our settings where it is served, else a sentence."""

    key: str
    value: str
    answer: str
    means: str


_NO_FILE = ("", "/dev/null")
_YES_NO = {True: "yes", False: "no"}
_NO_PROGRAM = "no program of NVIDIA's is started"
_NO_LOG = "the hook writes no log"
_PLAN = ": the engine shows its one sentence, and 'oci-gpu-hook plan' shows the rest"
_NO_LDCONFIG = "no ldconfig is run: the container's ld.so.cache is computed"
_NOTHING_OF_THE_IMAGE = ", and nothing of the image is run"
_CSV_FOLDER = "/etc/nvidia-container-runtime/host-files-for-container.d"
_CLI, _RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"
_MODES, _HOOK = f"{_RUNTIME}.modes", f"{_RUNTIME}-hook"

KEYS = (
    Key("disable-require", BOOLEAN, "disable-requirements", _YES_NO),
    Key("swarm-resource", STRING, "swarm-resources"),
    Key("accept-nvidia-visible-devices-envvar-when-unprivileged", BOOLEAN, "accept-environment",
        {True: "always", False: "privileged"}),
    Key("accept-nvidia-visible-devices-as-volume-mounts", BOOLEAN, "accept-volume-mounts", _YES_NO),
    Key("supported-driver-capabilities", STRING, "allowed-capabilities"),
    Key(f"{_CLI}.root", STRING, "driver-root"),
    Key(f"{_CLI}.path", STRING, why=_NO_PROGRAM),
    Key(f"{_CLI}.environment", STRINGS, harmless=(),
        why=_NO_PROGRAM, more=", so nothing would have these variables"),
    Key(f"{_CLI}.debug", STRING, harmless=_NO_FILE, why=_NO_LOG, more=_PLAN),
    Key(f"{_CLI}.ldcache", STRING, harmless=("", "/etc/ld.so.cache"),
        why="libraries are looked for below driver-root, by its own ld.so.cache and in its usual folders",
        more=": set nvidia-container-cli.root to where they lie"),
    Key(f"{_CLI}.load-kmods", BOOLEAN, harmless=(False,), why="the hook loads no kernel modules",
        more=": the administrator must load nvidia and nvidia-uvm at boot"),
    Key(f"{_CLI}.no-cgroups", BOOLEAN, "device-cgroup", {True: "off", False: "auto"}),
    Key(f"{_CLI}.no-pivot", BOOLEAN, why="nothing is run in the container's root"),
    Key(f"{_CLI}.user", STRING, why=f"{_NO_PROGRAM} that could change its user"),
    Key(f"{_CLI}.ldconfig", STRING, harmless=("", "@*"), why=_NO_LDCONFIG, more=_NOTHING_OF_THE_IMAGE),
    Key(f"{_RUNTIME}.debug", STRING, harmless=_NO_FILE, why=_NO_LOG, more=_PLAN),
    Key(f"{_RUNTIME}.log-level", STRING, why=f"{_NO_LOG} that could be detailed: it says its outcome in one sentence"),
    Key(f"{_RUNTIME}.runtimes", STRINGS, why="the engine starts its runtime itself: the hook replaces no runtime"),
    Key(f"{_RUNTIME}.mode", STRING, words=dict.fromkeys(("auto", "legacy", "jit-cdi", "cdi", "csv")),
        harmless=("auto", "legacy", "jit-cdi"), why="there is one mode, which serves the same requests",
        more=": let the engine resolve CDI devices, for which 'oci-gpu-hook cdi generate' writes a spec;"
        " on a Jetson its lists are read without a setting"),
    Key(f"{_MODES}.csv.mount-spec-path", STRING, harmless=("", _CSV_FOLDER),
        why=f"a Jetson's lists are read in {_CSV_FOLDER}", more=" only"),
    Key(f"{_MODES}.cdi.default-kind", STRING, harmless=("", "nvidia.com/gpu"),
        why="names without a kind mean nvidia.com/gpu", more=": let the engine resolve devices of other kinds"),
    Key(f"{_MODES}.cdi.annotation-prefixes", STRINGS, harmless=("cdi.k8s.io/",),
        why="annotations that begin with cdi.k8s.io/ are read",
        more=", and no others; with accept-environment = privileged only those of containers with CAP_SYS_ADMIN"),
    Key(f"{_MODES}.cdi.spec-dirs", STRINGS, why="the hook reads no CDI specs, engines do, from their own folders"),
    Key(f"{_MODES}.jit-cdi.nvcdi-feature-flags", STRINGS, harmless=(),
        why="no CDI spec is made while a container starts", more=", so there is nothing that these could change"),
    Key(f"{_MODES}.jit-cdi.nvcdi-disable-hooks", STRINGS, harmless=(),
        why="none of NVIDIA's CDI hooks is started", more=", and of what they do nothing can be left out but forward"
        " compatibility: set cuda-forward-compatibility = no for enable-cuda-compat"),
    # Whichever way NVIDIA's stack does it: here the libraries are named in the loader's cache and never mounted.
    Key(f"{_MODES}.legacy.cuda-compat-mode", STRING, "cuda-forward-compatibility",
        {"ldconfig": "yes", "mount": "yes", "hook": "yes", "disabled": "no"}),
    Key(f"{_HOOK}.path", STRING, why=_NO_PROGRAM),
    Key(f"{_HOOK}.skip-mode-detection", BOOLEAN, why="there is one mode, and nothing to detect"),
    Key("nvidia-ctk.path", STRING, why=_NO_PROGRAM),
    Key("features.allow-cuda-compat-libs-from-container", BOOLEAN, harmless=(False,),
        why="nothing is ever mounted from an image",
        more=": cuda-forward-compatibility names its newer libraries in the loader's cache"),
    Key("features.allow-ldconfig-from-container", BOOLEAN, harmless=(False,),
        why=f"{_NO_LDCONFIG}{_NOTHING_OF_THE_IMAGE}"),
    Key("features.allow-unknown-oci-spec-fields", BOOLEAN,
        why="fields of config.json that are not known are never looked at, and never written"),
    # It comes after cuda-compat-mode, so that either of the two turns it off.
    Key("features.disable-cuda-compat-lib-hook", BOOLEAN, "cuda-forward-compatibility", {True: "no", False: None},
        why="modes.legacy.cuda-compat-mode alone decides then"),
    Key("features.disable-imex-channel-creation", BOOLEAN,
        why="no IMEX channel is ever made on the host, only the container's own node of it"),
    Key("features.ignore-imex-channel-requests", BOOLEAN, "ignore-imex-channels", _YES_NO),
    Key("features.no-additional-gids-for-device-nodes", BOOLEAN, harmless=(True,), why="no groups are added",
        more=": give a container's user the group of a device node by the engine's --group-add"),
)  # fmt: skip
# As paths, because a name may have a dot in it: "a.b" = 1 is not [a] b = 1.
_PATHS = {tuple(key.name.split(".")) for key in KEYS}
_TABLES = {path[:length] for path in _PATHS for length in range(1, len(path))}


def answers(document: Mapping[str, object], file: str) -> list[KeyMeaning]:
    """What each key of a parsed file means, in the order of `KEYS`; ConfigError names `file` and the key."""
    found = dict(_leaves(document, file, ()))
    return [_answer(key, found[key.name], file) for key in KEYS if key.name in found]


def as_settings(rows: list[KeyMeaning], file: str) -> str:
    """Our settings for the same, with a comment on what became of each key."""
    lines = [f"{MARK} from {quoted(file)}."]
    for row in rows:
        lines += ["", f"# {row.key} = {row.value}"]
        lines.append(row.means if row.answer == SERVED else f"#   {row.answer}: {row.means}")
    return "\n".join(lines) + "\n"


def _leaves(table: Mapping[str, object], file: str, above: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The keys of `KEYS` with their values.  It goes no deeper than their tables."""
    for name, value in table.items():
        path = (*above, name)
        dotted = ".".join(path)
        if path in _PATHS:
            yield dotted, value
        elif path not in _TABLES:
            near = meant(dotted, [key.name for key in KEYS])
            raise ConfigError(f"{file}: unknown key {quoted(dotted)}{near}")
        elif isinstance(value, dict):
            yield from _leaves(value, file, path)
        else:
            raise ConfigError(f"{file}: {dotted} must be a table, not {_kind(value)}")


def _answer(key: Key, value: object, file: str) -> KeyMeaning:
    where = f"{file}: {key.name}"
    if _kind(value) != key.kind and not (key.kind == STRINGS and value == []):
        raise ConfigError(f"{where} must be {key.kind}, not {_kind(value)}")
    shown = _shown(value)
    if key.words is not None and value not in key.words:
        allowed = ", ".join([str(word) for word in key.words])
        raise ConfigError(f"{where} is {shown}, allowed is one of {allowed}")
    if key.setting:
        ours = key.words[value] if key.words is not None else _ours(key.setting, str(value), where)
        if ours is not None:
            return KeyMeaning(key.name, shown, SERVED, f"{key.setting} = {ours}".rstrip())
    if key.harmless is not None and not _is_harmless(value, key.harmless):
        return KeyMeaning(key.name, shown, REFUSED, f"{key.why}{key.more}")
    return KeyMeaning(key.name, shown, NEEDLESS, key.why)


def _is_harmless(value: object, harmless: tuple[object, ...]) -> bool:
    if isinstance(value, list):
        # An empty array turns off what the harmless values name.
        return set(value) <= set(harmless) if value else not harmless
    return any([value == it or (isinstance(value, str) and matches(str(it), value)) for it in harmless])


def _ours(setting: str, value: str, where: str) -> str:
    """Our value for one that is not from a list of words.  It must stay on one line of our settings."""
    if setting == "driver-root":
        if not value:
            return "/"
        if not value.startswith("/") or not value.isprintable() or value != value.strip():
            raise ConfigError(f"{where} is {quoted(value)}, which is not an absolute path")
        return value
    words = dict.fromkeys(items(value))
    if setting == "swarm-resources":
        for word in words:
            if not word.isprintable() or "=" in word or " " in word:
                raise ConfigError(f"{where} has {quoted(word)}, which is not a variable's name")
        return ", ".join(words)
    for word in words:
        if word not in CAPABILITIES and word != ALL:
            raise ConfigError(f"{where} has {quoted(word)}, allowed are {ALL}, {', '.join(CAPABILITIES)}")
    if not words:
        raise ConfigError(f"{where} is empty, which would refuse every container")
    everything = ALL in words or len(words) == len(CAPABILITIES)
    return ALL if everything else ", ".join(words)


def _kind(value: object) -> str:
    if isinstance(value, list) and value and all([isinstance(item, str) for item in value]):
        return STRINGS
    return _KINDS.get(type(value), "a number or a date")


def _shown(value: object) -> str:
    """A boolean, string or array of strings in TOML's form, on one line of printable ASCII."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, list):
        return quoted(value)
    text = f"[{', '.join([quoted(item) for item in value])}]"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 4]}...]"
