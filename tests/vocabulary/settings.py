# SPDX-License-Identifier: Apache-2.0
"""Rows of section 1.4: the keys of NVIDIA's config.toml, and what the manual says of each."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings
from tests.vocabulary.host import REFUSED, Row

MANUAL = Path(__file__).parents[2] / "packaging/man/oci-gpu-hook.conf.5.rst"
CLI, RUNTIME, HOOK = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime-hook"


@lru_cache(maxsize=1)
def told() -> dict[str, str]:
    """What the manual says of each key.  In a list of keys of one table only the first has the table's name."""
    section = MANUAL.read_text().partition("\nNVIDIA'S CONFIG.TOML\n")[2].partition("\nDIAGNOSTICS\n")[0]
    found = {}
    for terms, text in re.findall(r"^(\*\*.*\*\*)\n((?:    .*\n)+)", section, re.M):
        table = ""
        for key in re.findall(r"\*\*(.+?)\*\*", terms):
            table = key.rpartition(".")[0] or table
            found[key if "." in key or not table else f"{table}.{key}"] = " ".join(text.split())
    return found


def _becomes(key: str, line: str, value: object) -> bool:
    """Whether the manual names this setting for a key, and the line sets it to the value."""
    (setting,) = settingsfile.parse_text(line, "file")
    settings = Settings(**settingsfile.fields([setting], None, {}))
    return f"**{setting.field.replace('_', '-')}**" in told()[key] and getattr(settings, setting.field) == value


def _has_no_setting(table: str, keys: str) -> bool:
    """Whether the manual says of each of these keys why it needs no setting."""
    return all(told()[f"{table}.{key}"].endswith(".") for key in keys.split())


IN_SETTINGS = (
    *[
        Row("1.4", f"`{name}`",
            lambda key=key, line=line, value=value: _becomes(key, line, value))  # type: ignore[misc]
        for name, key, line, value in (
            *[
                (key, key, line, value)
                for key, line, value in (
                    ("disable-require", "disable-requirements = yes", True),
                    ("swarm-resource", "swarm-resources = A, B", ("A", "B")),
                    ("accept-nvidia-visible-devices-envvar-when-unprivileged", "accept-environment = privileged",
                     "privileged"),
                    ("accept-nvidia-visible-devices-as-volume-mounts", "accept-volume-mounts = yes", True),
                    ("supported-driver-capabilities", "allowed-capabilities = utility", ("utility",)),
                    ("modes.legacy.cuda-compat-mode", "cuda-forward-compatibility = no", False),
                )
            ],
            ("no-cgroups", f"{CLI}.no-cgroups", "device-cgroup = off", "off"),
            ("[features]", "features.ignore-imex-channel-requests", "ignore-imex-channels = yes", True),
        )
    ],
    Row("1.4", "`[nvidia-container-cli] root` / `path` / `environment` / `debug` / `ldcache`",
        lambda: _becomes(f"{CLI}.root", "driver-root = /run/nvidia/driver/", "/run/nvidia/driver")
        and _has_no_setting(CLI, "path environment debug ldcache")),
    # What these steer does not exist here: no program is started, nothing is loaded, there is one mode.
    *[
        Row("1.4", name, lambda table=table, keys=keys: _has_no_setting(table, keys), REFUSED)  # type: ignore[misc]
        for name, table, keys in (
            *[(f"`{key}`", CLI, key) for key in ("load-kmods", "no-pivot", "user", "ldconfig")],
            ("`[nvidia-container-runtime] debug / log-level / runtimes / mode`", RUNTIME,
             "debug log-level runtimes mode"),
            ("`modes.csv.mount-spec-path`", "modes.csv", "mount-spec-path"),
            ("`modes.cdi.default-kind / annotation-prefixes / spec-dirs`", "modes.cdi",
             "default-kind annotation-prefixes spec-dirs"),
            ("`modes.jit-cdi.nvcdi-feature-flags / nvcdi-disable-hooks`", "modes.jit-cdi",
             "nvcdi-feature-flags nvcdi-disable-hooks"),
            ("`[nvidia-container-runtime-hook] path / skip-mode-detection`", HOOK, "path skip-mode-detection"),
            ("`[nvidia-ctk] path`", "nvidia-ctk", "path"),
        )
    ],
)  # fmt: skip
