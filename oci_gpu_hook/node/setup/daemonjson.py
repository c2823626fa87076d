# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json with our runtime, and with this host's GPUs as generic resources of Docker Swarm.

Single values of it are exchanged, and every other byte stays: its text is cut and joined, never serialised.  Must not
read or write a file.
"""

from __future__ import annotations

import json
from typing import Any

from oci_gpu_hook.driver.inventory import DriverInventory
from oci_gpu_hook.errors import ConfigError, DriverError
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.node.engines.installed import PROGRAM, RESOURCES, is_ours
from oci_gpu_hook.node.setup.enginefile import FIX, Change, EngineFile, WantedRuntime, others
from oci_gpu_hook.request.settings import SETTINGS, Settings
from oci_gpu_hook.request.sources import SWARM_VARIABLE

_SPACE = " \t\n\r"
_INDENT = "    "


def with_runtime(host: HostRoot, file: EngineFile, asked: WantedRuntime) -> Change:
    values, text, entry = _values(file), file.text, {"path": asked.program}
    runtimes, features = _object(file, values, "runtimes"), _object(file, values, "features")
    default = values.get("default-runtime") or None
    rows: list[tuple[Any, ...]] = [(("runtimes", asked.name), entry, runtimes.get(asked.name))]
    if asked.default:
        # Another one of ours makes room.
        there = None if _is_ours(host, runtimes.get(str(default))) else default
        rows.append((("default-runtime",), asked.name, default if default == asked.name else there))
    if asked.cdi:
        rows.append((("features", "cdi"), True, features.get("cdi")))
    for path, value, found in rows:
        # By the link's name other tools know it.
        if found is None or (found == {"path": PROGRAM} and value == entry):
            text = with_value(text, path, value)
        elif found != value and not _is_ours(host, found):
            raise others(".".join(path), file.path)
    return Change(text)


def without_runtime(host: HostRoot, file: EngineFile, asked: WantedRuntime) -> Change:
    """daemon.json without our runtime, by every name if none was given, and without what makes it the default one."""
    values, text = _values(file), file.text
    runtimes, features = _object(file, values, "runtimes"), _object(file, values, "features")
    there = [name for name in runtimes if name == asked.name or not asked.is_named]
    # By a link to our runtime it is written as well.
    ours = [name for name in there if _is_ours(host, runtimes[name]) and [*runtimes[name]] == ["path"]]
    for name in there:
        # What it has beside its path is somebody else's.
        if name not in ours and (asked.is_named or _is_ours(host, runtimes[name])):
            raise others(f"runtimes.{name}", file.path)
    default = values.get("default-runtime")
    rows: list[tuple[Any, ...]] = [(("runtimes", name), runtimes[name]) for name in ours]
    rows += [(("default-runtime",), default)] if default in ours else []
    rows += [(("features", "cdi"), True)] if asked.cdi and features.get("cdi") is True else []
    for path, value in reversed(rows):
        text = without_value(text, path, value)
    told = [f"containers that were started by {', '.join(ours)} cannot be stopped once dockerd knows no such runtime"]
    if not asked.cdi and features.get("cdi") is True:  # by whom is not known
        told.append("features.cdi stays on: --remove with --cdi turns it off")
    return Change(text, tuple(told) if ours else ())


def _object(file: EngineFile, values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{key} in {file.path} is not an object", FIX)
    return found


def _is_ours(host: HostRoot, entry: object) -> bool:
    return isinstance(entry, dict) and is_ours(host, str(entry.get("path", "")))


def with_resources(
    host: HostRoot, file: EngineFile, change: Change, settings: Settings, name: str, named: list[str]
) -> Change:
    """daemon.json with these devices as resources of this name in the place of those that had it, and a sentence for
    what else Swarm's tasks need: our setting, and dockerd's runtime.  ConfigError for what is not a list.
    """
    values = _values(file._replace(text=change.text))
    old = values.get(RESOURCES) or []
    if not isinstance(old, list) or not all(isinstance(item, str) for item in old):
        raise ConfigError(f"{RESOURCES} in {file.path} is not a list of strings", "fix it first")
    ours, kinds = [f"{name}={device}" for device in named], [item.partition("=")[0].strip() for item in old]
    place = kinds.index(name) if name in kinds else len(old)
    kept = [item for item, kind in zip(old, kinds) if kind != name]
    wanted = [*kept[:place], *ours, *kept[place:]]
    text = change.text if values.get(RESOURCES) == wanted else with_value(change.text, (RESOURCES,), wanted)
    told, variable, listed = [*change.told], SWARM_VARIABLE + name.upper(), settings.swarm_resources
    if variable not in listed:
        told.append(f"set in {SETTINGS}: swarm-resources = {', '.join([*listed, variable])}")
    if not _is_ours(host, _object(file, values, "runtimes").get(str(values.get("default-runtime")))):
        told.append("a service can name no runtime, and the default one is not ours: --set-as-default makes it so")
    mine = {device[:40] for device in named}
    if twice := [item for item in kept if item.partition("=")[2][:40] in mine]:
        told.append(f"{twice[0]} is there too: Swarm would give that GPU away twice")
    return Change(text, tuple(told))


def devices(found: DriverInventory, shares: int | None) -> list[str]:
    """The names of all GPUs and MIG devices that a task can have; DriverError for one whose name is not known.  First
    come the first shares of all GPUs: Swarm gives them away in this order, until some have come back.
    """
    whole, parts = list[str](), list[str]()
    for gpu in found.gpus:
        migs = [device for device in found.mig_devices if device.gpu == gpu.nvml_index]
        uuids = [device.uuid for device in migs] or [gpu.uuid]
        if not all(uuids):
            why = "MIG devices without a UUID" if migs else "no UUID before its first use"
            raise DriverError(f"GPU {gpu.nvml_index} has {why}", "run 'oci-gpu-hook inventory refresh'")
        (parts if migs else whole).extend(map(str, uuids))
    if not whole and not parts:
        raise DriverError("the NVIDIA driver is loaded but drives no GPU", "look at the kernel's log")
    if shares is not None:
        whole = [f"{uuid}-{number}" for number in range(shares) for uuid in whole]
    return [*parts, *whole]


def _values(file: EngineFile) -> dict[str, Any]:
    """The object in the file, ConfigError if there is none; dockerd takes an empty file for an empty one."""
    try:
        found = jsontext.loads(file.text.encode(), unique=True) if file.text.strip(_SPACE) else {}
    except ValueError as err:
        raise ConfigError(f"{file.path} is not JSON: {err}", FIX) from err
    if not isinstance(found, dict):
        raise ConfigError(f"{file.path} is not a JSON object", FIX)
    return found


def with_value(text: str, path: tuple[str, ...], value: object) -> str:
    """A JSON object's text with this value at a path of keys, of which all but the last name objects, or nothing."""
    text = text if text.strip(_SPACE) else "{\n}\n"
    begin = text.index("{")
    step = _indent(text, begin, _INDENT) or _INDENT
    key, *deeper = path
    while (found := jsontext.place(text, begin, key)) and deeper:
        begin = found[0]
        key, *deeper = deeper
    indent = _indent(text, begin, step)
    if found:
        return text[: found[0]] + _written(value, indent, step) + text[found[1] :]
    added = _added((key, *deeper), value, indent, step)
    gap = None if indent is None else f"\n{indent}"
    members = jsontext.members(text, begin)
    if members:
        end = members[-1][-1]
        return f"{text[:end]},{' ' if gap is None else gap}{added}{text[end:]}"
    close = text.index("}", begin)
    end = close if gap is None else text.rindex("\n", begin, close)
    return f"{text[: begin + 1]}{gap or ''}{added}{text[end:]}"


def without_value(text: str, path: tuple[str, ...], value: object) -> str:
    """`text` without this value, which must be there; "" for no file at all, if nothing else was in it.  An object that
    it came with goes with it.  One that was there and empty stays, if its layout is not that of ours.
    """
    if text == with_value("", path, value):
        return ""
    begin = text.index("{")
    step = _indent(text, begin, _INDENT) or _INDENT
    while True:
        members = jsontext.members(text, begin)
        index = [name for name, *_ in members].index(path[0])
        _, at, first, end = members[index]
        if len(path) == 1 or text[at:end] == _added(path, value, _indent(text, begin, step), step):
            break
        begin, path = first, path[1:]
    if index:
        return text[: members[index - 1][3]] + text[end:]
    if len(members) > 1:
        return text[:at] + text[members[1][1] :]
    close = text.index("}", end)
    return text[: begin + 1] + (text[end:close].lstrip(" \t") if "\n" in text[end:close] else "") + text[close:]


def _indent(text: str, begin: int, step: str) -> str | None:
    """What stands ahead of each key of an object, as each is on a line of its own; None if all are in one line."""
    members = jsontext.members(text, begin)
    lead = text[begin + 1 : members[0][1] if members else text.index("}", begin)]
    return None if "\n" not in lead else lead.rpartition("\n")[2] + ("" if members else step)


def _added(path: tuple[str, ...], value: object, indent: str | None, step: str) -> str:
    """The first key of a path, with an object for each further one."""
    for name in reversed(path[1:]):
        value = {name: value}
    return f"{json.dumps(path[0])}: {_written(value, indent, step)}"


def _written(value: object, indent: str | None, step: str) -> str:
    """A value; indent: of its key, None for one line."""
    return json.dumps(value, indent=None if indent is None else step).replace("\n", f"\n{indent}")
