# SPDX-License-Identifier: Apache-2.0
"""What the administrator allows: one file of ``key = value`` lines.

Not TOML: Python 3.9 has no parser for it, and the one of later Pythons costs twice the interpreter's own start at
every container.  Read only once a GPU is requested, so that a mistake in the file stops no other container.

Must not look at the host beyond its one file.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError, quoted
from oci_gpu_hook.record import NamedTuple


class Config(NamedTuple):
    """The settings, each with the default that a missing file means."""

    # "auto": opened where there is one and we may; "on": a container without one is refused; "off": never touched
    device_cgroup: str = "auto"
    # whose /dev/shm and /dev/mqueue are given the right label: those of GPU containers, of all, of none
    ipc_labels: str = "gpu"
    # what happens to a GPU container whose /dev/shm was mounted with a wrong context=, which nobody can change
    ipc_context_mismatch: str = "refuse"


_CHOICES = {
    "device-cgroup": ("auto", "on", "off"),
    "ipc-labels": ("gpu", "all", "off"),
    "ipc-context-mismatch": ("refuse", "warn"),
}


def read(name: str, may_be_absent: bool) -> Config:
    """The settings in the file `name`."""
    try:
        fd = posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC)
    except FileNotFoundError as err:
        if may_be_absent:
            return Config()
        raise ConfigError(f"cannot open {name}: {err.strerror}") from err
    except OSError as err:
        raise ConfigError(f"cannot open {name}: {err.strerror}") from err
    try:
        text = posix.read(fd, 1 << 20).decode()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"cannot read {name}: {err}") from err
    finally:
        posix.close(fd)
    return parse(text, name)


def parse(text: str, name: str) -> Config:
    """The settings in `text`; errors name `name` and the line."""
    settings = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        where = f"{name}:{number}"
        if not equals:
            raise ConfigError(f"{where}: {quoted(line)} is no 'key = value' line")
        if key not in _CHOICES:
            raise ConfigError(
                f"{where}: unknown key {quoted(key)}, known are {', '.join(_CHOICES)}"
            )
        if value not in _CHOICES[key]:
            allowed = ", ".join(_CHOICES[key])
            raise ConfigError(f"{where}: {key} is {quoted(value)}, allowed is one of {allowed}")
        settings[key.replace("-", "_")] = value
    return Config(**settings)
