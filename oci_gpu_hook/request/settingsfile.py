# SPDX-License-Identifier: Apache-2.0
"""Files of settings: ``key = value`` lines, read and written.

Below a heading, ``[namespace NAME]`` or ``[image PATTERN]``, lines hold for those containers only.  The form is not
TOML: a container start waits for it, and Python's parser of TOML costs twice as much as the interpreter's own start.
Must not read any file but those that it is given.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError, RequestError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.annotations import said
from oci_gpu_hook.request.words import ALL, CAPABILITIES, is_flag, items

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from typing import Any

    from oci_gpu_hook.request.state import Who

# Of all files together.
_LARGEST = 1 << 20
# Of an image or a namespace.
_LONGEST_NAME = 4096
_ENGINE = "the engine or the pod's author must fix it"

_BOOLEANS = {"yes": True, "no": False}
_WORDS = {
    "device-cgroup": ("auto", "on", "off"),
    "device-group": ("container", "host"),
    "ipc-labels": ("gpu", "all", "off"),
    "ipc-context-mismatch": ("refuse", "warn"),
    "accept-environment": ("always", "privileged"),
    "unaccepted-requests": ("ignore", "refuse"),
    "unmatched-sections": ("strictest", "refuse"),
    "accept-volume-mounts": tuple(_BOOLEANS),
    "disable-requirements": tuple(_BOOLEANS),
    "ignore-imex-channels": tuple(_BOOLEANS),
    "cuda-forward-compatibility": tuple(_BOOLEANS),
    "records": tuple(_BOOLEANS),
    "mig-strategy": ("none", "single", "mixed"),
    "count-watchers": tuple(_BOOLEANS),
    "unhealthy": ("refuse", "leave-out", "give"),
    "docker-count": ("first", "any"),
}
_FOLDERS = ("driver-root", "mps-pipe-folder")
# Each with what its name must end in.  What is empty names none.
_FILES = {"metrics": ".prom", "gpu-metrics": ".prom", "features": "", "runtime": "", "validation-folder": ""}
# The steps of a validation, each of which may have a file.
_STEPS = ("driver", "hook", "workload")
# Lists: what each word must be, and what the error says of one that is not.
_LISTED: dict[str, tuple[Callable[[str], bool], str]] = {
    "allowed-capabilities": (lambda word: word in (*CAPABILITIES, ALL), f"allowed are all, {', '.join(CAPABILITIES)}"),
    "allowed-vendors": (lambda word: word == ALL or is_flag(word), "which is no vendor's flag, such as OCI_AMD"),
    "swarm-resources": (lambda word: _names_variable(*word.rpartition("=")), "which is not a variable's name"),
    "validation-files": (lambda word: _names_step_file(*word.partition("=")), "which is no STEP=NAME"),
}
# Numbers: the largest, and what the error says of a value that is none.
_NUMBERS = {
    "mps-pipe-owner": (10**10 - 1, "which is no number of a user"),
    "gpu-holders": (1000, "allowed is 0 to 1000"),
}
_KEYS = (*_WORDS, *_FOLDERS, *_FILES, *_LISTED, *_NUMBERS)
# For everybody, and the kinds of sections; the later one has precedence.
SCOPES = ("", "image", "namespace")
# For each setting that sections may differ in, the strictest of its values; all the others are alike.  Of two, each
# restricts in its own way and none is the stricter: if both are possible, the container is refused.
STRICTEST: dict[str, tuple[object, ...]] = {
    "accept_environment": ("privileged",),
    "unaccepted_requests": ("refuse",),
    "accept_volume_mounts": (False,),
    "disable_requirements": (False,),
    "ignore_imex_channels": (True,),
    "ipc_context_mismatch": ("refuse",),
    "records": (True,),
    "device_group": ("host",),
    # "off" leaves devices closed, and "on" refuses a container that nothing would close them to.
    "device_cgroup": ("on", "off"),
    "count_watchers": (True,),
    # The smallest number, see `_strictest`.
    "gpu_holders": (),
    # No restriction, either way: what stands outside of such sections holds.
    "cuda_forward_compatibility": (),
}
# A list: what all of them allow.
LISTS = ("allowed_capabilities", "allowed_vendors")
# These say what the host is, or where a request may stand: they hold for all containers alike.
_HOST_WIDE = tuple([key for key in _KEYS if key.replace("-", "_") not in (*STRICTEST, *LISTS)])


class Setting(NamedTuple):
    """One line: its place, for whom it holds ("" is everybody), the field of `Settings` and its value."""

    where: str
    scope: str
    pattern: str
    field: str
    value: object


def read(names: Iterable[str]) -> list[Setting]:
    """Every line of these files, in order; ConfigError if they are too large together."""
    found: list[Setting] = []
    size = 0
    for name in names:
        text = _text(name)
        size += len(text)
        if size > _LARGEST:
            raise ConfigError(f"cannot read {name}: all settings together are larger than {_LARGEST >> 20} MiB")
        found += parse(text, name)
    return found


def fields(lines: list[Setting], who: Who | None, defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Settings` for a container; None: what stands in no section.

    If its engine does not say which sections are its own, any of them could be, or none: a restriction in one of them
    must not fail open, so the strictest values hold.
    """
    image, namespace, unsaid = said(who) if who is not None else ("", "", ())
    decided = decisive(lines, image, namespace)
    found = {**defaults, **{field: line.value for field, line in decided.items()}}
    scopes = {line.scope for line in lines}
    unmatched = [scope for scope in unsaid if scope in scopes]
    if unmatched:
        found.update(_of_unmatched(lines, unmatched, decided, found))
        found["unmatched"] = tuple(unmatched)
    return found


def decisive(lines: list[Setting], image: str, namespace: str) -> dict[str, Setting]:
    """The line that decides each field that the files set, for a container of this image in this namespace.

    Lines for everybody come first, then those for the image, then those for the namespace.
    """
    named = {"": "", "image": image, "namespace": namespace}
    found = {}
    for scope, name in named.items():
        # Each pattern is compared once, however many lines it has.
        patterns = {line.pattern for line in lines if line.scope == scope}
        if patterns and len(name) > _LONGEST_NAME:
            raise RequestError(f"the container's {scope} is {quoted(name)}, which is too long", _ENGINE)
        fitting = {pattern for pattern in patterns if not scope or (name and matches(pattern, name))}
        found.update({line.field: line for line in lines if line.scope == scope and line.pattern in fitting})
    return found


def _of_unmatched(
    lines: list[Setting], unmatched: Container[str], decided: dict[str, Setting], values: dict[str, object]
) -> dict[str, object]:
    """The fields that lines of the `unmatched` scopes could set, each with the strictest value.

    decided: the lines that decide, of those that are known to be the container's; values: their result.
    """
    possible: dict[str, dict[tuple[str, str], object]] = {}
    for line in lines:
        known = decided[line.field].scope if line.field in decided else ""
        if line.scope in unmatched and SCOPES.index(line.scope) > SCOPES.index(known):
            # Of two lines for the same containers the later one holds.
            possible.setdefault(line.field, {})[line.scope, line.pattern] = line.value
    found: dict[str, object] = {}
    for field, others in possible.items():
        chosen = _strictest(field, [values[field], *others.values()])
        if len(chosen) > 1:
            found["unmatched_sections"] = "refuse"
        found[field] = chosen[0]
    return found


def _strictest(field: str, values: list[object]) -> list[object]:
    """The strictest of these values, of which the first is certain; several if none is the strictest."""
    if field in LISTS:
        # "all" stands for every vendor; of capabilities it stands for a list of all.
        lists = [value for value in values if isinstance(value, tuple) and value != (ALL,)]
        first = lists[0] if lists else (ALL,)
        return [tuple([word for word in first if all([word in other for other in lists])])]
    if field == "gpu_holders":
        return [min([value for value in values if isinstance(value, int) and value], default=0)]
    return [value for value in STRICTEST[field] if value in values] or values[:1]


def parse(text: str, name: str) -> list[Setting]:
    """The lines of `text`; errors name `name` and the line."""
    found = []
    scope, pattern = "", ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{name}:{number}"
        if line.startswith("["):
            scope, pattern = _heading(line, where)
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals:
            raise ConfigError(f"{where}: {quoted(line)} is no 'key = value' line")
        if key not in _KEYS:
            raise ConfigError(f"{where}: unknown key {quoted(key)}{meant(key, _KEYS)}", f"known are {', '.join(_KEYS)}")
        if scope and key in _HOST_WIDE:
            raise ConfigError(f"{where}: {key} is for the whole host, not for one {scope}")
        found.append(Setting(where, scope, pattern, key.replace("-", "_"), _value(key, value, where)))
    return found


def written(value: object) -> str:
    """A field's value as a line of a file has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == CAPABILITIES:
        return ALL
    return ", ".join(value) if isinstance(value, tuple) else str(value)


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


def meant(key: str, among: Iterable[str]) -> str:
    """``, did you mean 'records'?`` if one of `among` is near enough; else ""."""
    import difflib

    near = difflib.get_close_matches(key[:64], [*among], 1)
    return f", did you mean {quoted(near[0])}?" if near else ""


def _value(key: str, value: str, where: str) -> object:
    found: object = value
    if key in _WORDS:
        fits, why = value in _WORDS[key], f"allowed is one of {', '.join(_WORDS[key])}"
        found = _BOOLEANS.get(value, value)
    elif key in _FOLDERS:
        fits, why = value.startswith("/") and "\0" not in value, "which is not an absolute path"
        found = value.rstrip("/") or "/"
    elif key in _NUMBERS:
        most, why = _NUMBERS[key]
        found = decimal(value, most)
        fits = found is not None
    elif key in _FILES:
        end = _FILES[key]
        fits = not value or (value.startswith("/") and value.endswith(end) and value.isprintable())
        why = f"which is not an absolute path{f' that ends in {end}' if end else ''}"
    else:
        return _list(key, tuple(items(value)), where)
    if not fits:
        raise ConfigError(f"{where}: {key} is {quoted(value)}, {why}")
    return found


def _list(key: str, words: tuple[str, ...], where: str) -> tuple[str, ...]:
    fits, why = _LISTED[key]
    if not words and key == "allowed-capabilities":
        raise ConfigError(f"{where}: {key} has empty, {why}")
    wrong = [word for word in words if not fits(word)]
    if wrong:
        hint = f"steps are {', '.join(_STEPS)}" if key == "validation-files" else ""
        raise ConfigError(f"{where}: {key} has {quoted(wrong[0])}, {why}", hint)
    if ALL in words and key.startswith("allowed-"):
        return CAPABILITIES if key == "allowed-capabilities" else (ALL,)
    return words


def _names_variable(flag: str, equals: str, variable: str) -> bool:
    return len(variable.split()) == 1 and "\0" not in variable and (not equals or is_flag(flag))


def _names_step_file(step: str, _: str, name: str) -> bool:
    return step in _STEPS and bool(name) and "/" not in name and name[0] != "."


def _heading(line: str, where: str) -> tuple[str, str]:
    """``[namespace NAME]`` or ``[image PATTERN]``."""
    scope, _, pattern = line[1:-1].strip().partition(" ")
    if not line.endswith("]") or scope not in SCOPES[1:] or not pattern.strip():
        raise ConfigError(f"{where}: {quoted(line)} is no heading, which are [namespace NAME] and [image PATTERN]")
    return scope, pattern.strip()


def _text(name: str) -> str:
    try:
        fd = posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
        try:
            text = posix.read(fd, _LARGEST + 1)
        finally:
            posix.close(fd)
    except OSError as err:
        raise ConfigError(f"cannot read {name}: {err.strerror}") from err
    if len(text) > _LARGEST:
        raise ConfigError(f"cannot read {name}: it is larger than {_LARGEST >> 20} MiB")
    try:
        return text.decode()
    except UnicodeDecodeError as err:
        raise ConfigError(f"cannot read {name}: it is not UTF-8 text") from err
