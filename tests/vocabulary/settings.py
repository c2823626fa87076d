# SPDX-License-Identifier: Apache-2.0
"""Rows of section 1.4: the keys of NVIDIA's config.toml."""

from __future__ import annotations

from oci_gpu_hook.node.setup import nvidiaconfig
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings
from tests.vocabulary.row import REFUSED, SERVED, Row

CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"


def _settings(text: str) -> Settings:
    return Settings(**settingsfile.fields(settingsfile.parse_text(text, "file"), None, {}))


def _is_answered(table: str, keys: dict[str, object]) -> bool:
    """Whether each key of NVIDIA's is answered with a sentence, and becomes none of our settings."""
    document: dict[str, object] = dict(keys)
    for name in reversed(table.split(".")):
        document = {name: document}
    rows = nvidiaconfig.answers(document, "file")
    sentences = [row.means for row in rows if row.answer != nvidiaconfig.SERVED]
    return len(sentences) == len(keys) and all(sentences)


IN_SETTINGS = (
    Row("1.4", "`disable-require`", SERVED, lambda: _settings("disable-requirements = yes").disable_requirements),
    Row("1.4", "`swarm-resource`", SERVED, lambda: _settings("swarm-resources = A, B").swarm_resources == ("A", "B")),
    Row("1.4", "`accept-nvidia-visible-devices-envvar-when-unprivileged`", SERVED,
        lambda: _settings("accept-environment = privileged").accept_environment == "privileged"),
    Row("1.4", "`accept-nvidia-visible-devices-as-volume-mounts`", SERVED,
        lambda: _settings("accept-volume-mounts = yes").accept_volume_mounts),
    Row("1.4", "`supported-driver-capabilities`", SERVED,
        lambda: _settings("allowed-capabilities = utility").allowed_capabilities == ("utility",)),
    Row("1.4", "`[nvidia-container-cli] root` / `path` / `environment` / `debug` / `ldcache`", SERVED,
        lambda: _settings("driver-root = /run/nvidia/driver/").driver_root == "/run/nvidia/driver"),
    Row("1.4", "`no-cgroups`", SERVED, lambda: _settings("device-cgroup = off").device_cgroup == "off"),
    Row("1.4", "`modes.legacy.cuda-compat-mode`", SERVED,
        lambda: not _settings("cuda-forward-compatibility = no").cuda_forward_compatibility),
    Row("1.4", "`[features]`", SERVED, lambda: _settings("ignore-imex-channels = yes").ignore_imex_channels),
    # What these steer does not exist here: no program is started, nothing is loaded, there is one mode.  `config
    # import` says of each what it means; tests/unit/test_nvidiaconfig.py goes through all of them.
    *[
        Row("1.4", name, REFUSED, lambda table=table, keys=keys: _is_answered(table, keys))  # type: ignore[misc]
        for name, table, keys in (
            ("`load-kmods`", CLI, {"load-kmods": True}),
            ("`no-pivot`", CLI, {"no-pivot": True}),
            ("`user`", CLI, {"user": "root:video"}),
            ("`ldconfig`", CLI, {"ldconfig": "/sbin/ldconfig"}),
            ("`[nvidia-container-runtime] debug / log-level / runtimes / mode`", RUNTIME,
             {"debug": "/x", "log-level": "debug", "runtimes": ["runc"], "mode": "csv"}),
            ("`modes.csv.mount-spec-path`", f"{RUNTIME}.modes.csv", {"mount-spec-path": "/x"}),
            ("`modes.cdi.default-kind / annotation-prefixes / spec-dirs`", f"{RUNTIME}.modes.cdi",
             {"default-kind": "x.com/y", "annotation-prefixes": ["x/"], "spec-dirs": ["/x"]}),
            ("`modes.jit-cdi.nvcdi-feature-flags / nvcdi-disable-hooks`", f"{RUNTIME}.modes.jit-cdi",
             {"nvcdi-feature-flags": ["x"], "nvcdi-disable-hooks": ["all"]}),
            ("`[nvidia-container-runtime-hook] path / skip-mode-detection`", f"{RUNTIME}-hook",
             {"path": "/x", "skip-mode-detection": True}),
            ("`[nvidia-ctk] path`", "nvidia-ctk", {"path": "/x"}),
        )
    ],
)  # fmt: skip
