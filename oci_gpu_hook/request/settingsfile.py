# SPDX-License-Identifier: Apache-2.0
"""Files of settings: ``key = value`` lines; below a heading, such as ``[namespace NAME]``, for those containers only.

Not TOML, whose parser costs twice as much as the interpreter's own start.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.kernel.descriptors import closing
from oci_gpu_hook.kernel.filetypes import is_fifo
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.annotations import read_engine
from oci_gpu_hook.request.memory import SHARE, ceiling
from oci_gpu_hook.request.state import State
from oci_gpu_hook.request.words import ALL, CAPABILITIES, CONTAINER_CLI, is_flag, items

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LARGEST = 1 << 20  # of all files together
_LONGEST_NAME = 4096  # of an image or a namespace
_ENGINE = "the engine or the pod's author must fix it"

# For everybody, and the kinds of sections; the later one has precedence.
SCOPES = ("", "image", "namespace", "caller")


class Kind(NamedTuple):
    """The values of one setting.  read: what a text, or each word of a list, stands for; None if it is wrong, and `why`
    says so; strictest: of the values in which sections may differ, or () if none is; None for a setting of the whole
    host.  If there are two, none is the stricter: if both are possible, the container is refused.
    """

    read: Callable[[str], object]
    why: str
    strictest: tuple[object, ...] | None = None
    words: tuple[str, ...] = ()
    is_list: bool = False


def _one_of(*words: str, strictest: tuple[object, ...] | None = None) -> Kind:
    values = {word: {"yes": True, "no": False}.get(word, word) for word in words}
    return Kind(values.get, f"allowed is one of {', '.join(words)}", strictest, words)


def _fitting(fits: Callable[[str], bool], why: str, strictest: tuple[object, ...] | None = None) -> Kind:
    return Kind(lambda text: text if fits(text) else None, why, strictest)


def _file(end: str = "") -> Kind:
    why = f"which is not an absolute path{f' that ends in {end}' if end else ''}"
    return _fitting(lambda it: not it or (it.startswith("/") and it.endswith(end) and it.isprintable()), why)


def _list(fits: Callable[[str], bool], why: str, strictest: tuple[object, ...] | None = None) -> Kind:
    return _fitting(fits, why, strictest)._replace(is_list=True)


def _folder(text: str) -> str | None:
    return (text.rstrip("/") or "/") if text.startswith("/") and "\0" not in text else None


def _names_variable(word: str) -> bool:
    flag, equals, variable = word.rpartition("=")
    return len(variable.split()) == 1 and "\0" not in variable and (not equals or is_flag(flag))


# What says what the host is, or where a request may stand, is for the whole host.
KINDS = {
    # "off" leaves devices closed, and "on" refuses a container that nothing would close them to.
    "device-cgroup": _one_of("auto", "on", "off", strictest=("on", "off")),
    "device-group": _one_of("container", "host", strictest=("host",)),
    "ipc-labels": _one_of("gpu", "all", "off"),
    "ipc-context-mismatch": _one_of("refuse", "warn", strictest=("refuse",)),
    "accept-environment": _one_of("always", "privileged", strictest=("privileged",)),
    "unaccepted-requests": _one_of("ignore", "refuse", strictest=("refuse",)),
    "unmatched-sections": _one_of("strictest", "refuse"),
    "accept-volume-mounts": _one_of("yes", "no", strictest=(False,)),
    "disable-requirements": _one_of("yes", "no", strictest=(False,)),
    "ignore-imex-channels": _one_of("yes", "no", strictest=(True,)),
    "mig-monitor": _one_of("privileged", "always", strictest=("privileged",)),
    # No restriction, either way: what stands outside of such sections holds.
    "cuda-forward-compatibility": _one_of("yes", "no", strictest=()),
    "records": _one_of("yes", "no", strictest=(True,)),
    "count-watchers": _one_of("yes", "no", strictest=(True,)),
    "gpu-memory-by": _one_of("dmem", "nvml"),
    "unhealthy": _one_of("refuse", "leave-out", "give"),
    "docker-count": _one_of("first", "any"),
    "driver-root": Kind(_folder, "which is not an absolute path"),
    "mps-pipe-folder": Kind(_folder, "which is not an absolute path"),
    "mps-pipe-owner": Kind(lambda text: decimal(text, 10**10 - 1), "which is not a user's number"),
    "metrics": _file(".prom"),
    "gpu-metrics": _file(".prom"),
    "features": _file(),
    "runtime": _file(),
    "validation-folder": _file(),
    "swarm-resources": _list(_names_variable, "which is not a variable's name"),
    # Of lists, what all of them allow; of numbers, the smallest: see `_strictest`.
    "allowed-capabilities": _list((*CAPABILITIES, ALL).__contains__, f"allowed are all, {', '.join(CAPABILITIES)}", ()),
    "allowed-vendors": _list(lambda it: it == ALL or is_flag(it), "which is not a vendor's flag, such as OCI_AMD", ()),
    "gpu-memory": _fitting(lambda it: ceiling(it) is not None, "allowed are off, share, sizes such as 512M or 4G", ()),
    "gpu-holders": Kind(lambda text: decimal(text, 1000), "allowed is 0 to 1000", ()),
}


class Setting(NamedTuple):
    """One line: its place, for whom it holds ("" is everybody), the field of `Settings` and its value."""

    where: str
    scope: str
    pattern: str
    field: str
    value: object


def read_files(names: list[str]) -> list[Setting]:
    """Every line of these files, in order; ConfigError if they are too large together."""
    found: list[Setting] = []
    size = 0
    for name in names:
        try:
            with closing(posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)) as fd:
                data = None if is_fifo(posix.fstat(fd)) else posix.read(fd, _LARGEST + 1)
            if data is None:
                raise ConfigError(f"cannot read {name}: it is a FIFO")
            size += len(data)
            if size > _LARGEST:
                raise ConfigError(f"cannot read {name}: all settings together are larger than {_LARGEST >> 20} MiB")
            found += parse_text(data.decode(), name)
        except OSError as err:
            raise ConfigError(f"cannot read {name}: {err.strerror}") from err
        except UnicodeDecodeError as err:
            raise ConfigError(f"cannot read {name}: it is not UTF-8 text") from err
    return found


def fields(lines: list[Setting], state: State | None, defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Settings` for a container; None: what stands in no section.  If its engine does not say which
    sections are its own, no restriction may fail open: the strictest values hold.
    """
    (image, namespace, *_), unsaid = read_engine(state) if state else (("", ""), ())
    decided = decisive(lines, image, namespace, state.caller if state else "")
    found = {**defaults, **{field: line.value for field, line in decided.items()}}
    scopes = {line.scope for line in lines}
    if unmatched := tuple([scope for scope in unsaid if scope in scopes]):
        found |= {**_of_unmatched(lines, unmatched, decided, found), "unmatched": unmatched}
    return found


def decisive(lines: list[Setting], image: str = "", namespace: str = "", caller: str = "") -> dict[str, Setting]:
    """The line that decides each field that the files set, for a container of which these are said."""
    found = {}
    for scope, name in zip(SCOPES, ("", image, namespace, caller)):
        # Each pattern is compared once, however many lines it has.
        patterns = {line.pattern for line in lines if line.scope == scope}
        if patterns and len(name) > _LONGEST_NAME:
            raise RequestError(f"the container's {scope} is {quoted(name)}, which is too long", _ENGINE)
        fitting = {pattern for pattern in patterns if not scope or (name and matches(pattern, name))}
        found.update({line.field: line for line in lines if line.scope == scope and line.pattern in fitting})
    return found


def _of_unmatched(
    lines: list[Setting], unmatched: tuple[str, ...], decided: dict[str, Setting], values: dict[str, object]
) -> dict[str, object]:
    """The strictest value of each field that lines of the `unmatched` scopes could set; values: of `decided`."""
    possible: dict[str, dict[tuple[str, str], object]] = {}
    for line in lines:
        known = decided[line.field].scope if line.field in decided else ""
        if line.scope in unmatched and SCOPES.index(line.scope) > SCOPES.index(known):
            # Of two lines for the same containers the later one holds.
            possible.setdefault(line.field, {})[line.scope, line.pattern] = line.value
    chosen = {field: _strictest(field, [values[field], *others.values()]) for field, others in possible.items()}
    found = {field: some[0] for field, some in chosen.items()}
    # Of fewer holders each has a larger share: none of the two is the stricter.
    counts = {values["gpu_holders"], *possible.get("gpu_holders", {}).values()}
    differs = len(counts) > 1 and "share" in (found.get("gpu_memory"), values["gpu_memory"])
    if differs or any([len(some) > 1 for some in chosen.values()]):
        found["unmatched_sections"] = "refuse"
    return found


def _strictest(field: str, values: list[object]) -> list[object]:
    """The strictest of these values, of which the first is certain; several if none is the strictest."""
    kind = KINDS[field.replace("_", "-")]
    if kind.is_list:
        # "all" stands for every vendor; of capabilities it stands for a list of all.
        first, *others = [it for it in values if isinstance(it, tuple) and it != (ALL,)] or [(ALL,)]
        return [tuple([word for word in first if all([word in other for other in others])])]
    if field == "gpu_holders":
        return [min([value for value in values if isinstance(value, int) and value], default=0)]
    if field == "gpu_memory":
        # A share is neither more nor less than a size.
        sizes = {size: text for text in values if (size := ceiling(str(text))) and size != SHARE}
        return [*{"share"}.intersection(values), *[sizes[size] for size in sorted(sizes)[:1]]] or ["off"]
    return [value for value in kind.strictest or () if value in values] or values[:1]


def parse_text(text: str, name: str) -> list[Setting]:
    found, scope, pattern = [], "", ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line, where = raw.strip(), f"{name}:{number}"
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            scope, _, pattern = [part.strip() for part in line[1:-1].strip().partition(" ")]
            is_known = scope in SCOPES[1:] and pattern and (scope != "caller" or matches(pattern, CONTAINER_CLI))
            if not line.endswith("]") or not is_known:
                forms = "[namespace NAME], [image PATTERN] and [caller nvidia-container-cli]"
                raise ConfigError(f"{where}: {quoted(line)} is not a heading, which are {forms}")
            continue
        key, equals, value = [part.strip() for part in line.partition("=")]
        if not equals:
            raise ConfigError(f"{where}: {quoted(line)} is not a 'key = value' line")
        if key not in KINDS:
            import difflib

            unknown, near = f"{where}: unknown key {quoted(key)}", difflib.get_close_matches(key[:64], KINDS, 1)
            if near:
                raise ConfigError(f"{unknown}, did you mean {quoted(near[0])}?")
            raise ConfigError(unknown, f"known are {', '.join(KINDS)}")
        if scope and KINDS[key].strictest is None:
            raise ConfigError(f"{where}: {key} is for the whole host, not for one {scope}")
        found.append(Setting(where, scope, pattern, key.replace("-", "_"), _value(key, value, where)))
    return found


def matches(pattern: str, text: str) -> bool:
    """Whether `text` fits `pattern`, in which ``*`` stands for any text.  Takes time linear in `text`."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return at <= end


def _value(key: str, text: str, where: str) -> object:
    kind = KINDS[key]
    words = items(text) if kind.is_list else [text]
    values = [kind.read(word) for word in words]
    if not words and key == "allowed-capabilities":
        words, values = [""], [None]
    if None in values:
        wrong = quoted(words[values.index(None)])
        raise ConfigError(f"{where}: {key} {'has' if kind.is_list else 'is'} {wrong}, {kind.why}")
    if ALL in words and key.startswith("allowed-"):
        return CAPABILITIES if key == "allowed-capabilities" else (ALL,)
    return tuple(words) if kind.is_list else values[0]
