# SPDX-License-Identifier: Apache-2.0
"""Every row of the vocabulary of NVIDIA's stack, whether it is served or refused, and the check that shows it.

A row's section and name are those of the project's reference to that stack (its inputs, section 1, and what it injects,
section 2).  REFUSED: a sentence says so, or there is nothing that could be asked for, and the reason stands beside it.
Must not hold a row without a check.
"""

from __future__ import annotations

import os
import platform
from typing import Callable, NamedTuple

from oci_gpu_hook import config, nvidiaconfig, oci, request, requirements, sources
from oci_gpu_hook.config import Config
from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.host import catalogue
from oci_gpu_hook.ldmerge import entries_of
from oci_gpu_hook.operations import LdCache, Mount, Tmpfs
from tests.unit import hosts
from tests.vocabulary.host import (
    CONTAINER,
    FOLDER,
    MIG_UUID,
    OTHER_VERSION,
    TWIN,
    UUID,
    ask,
    brings,
    devices,
    everything,
    noted,
    planned,
    refused,
    targets,
)

SERVED, REFUSED = "served", "refused"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIST = "/var/run/nvidia-container-devices"
CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"


class Row(NamedTuple):
    """One row: `holds` is True where the answer is as the row says."""

    section: str
    name: str
    answer: str
    holds: Callable[[], bool]


def _asked(environment: dict[str, str], **inputs: object) -> request.Request:
    found = ask(environment, **inputs)  # type: ignore[arg-type]
    assert found is not None
    return found


def _gpu(**environment: str) -> request.Request:
    return _asked({VISIBLE: "0", **environment})


def _says_nothing(names: str) -> bool:
    """Whether a container that sets these variables asks for what it asks for without them."""
    variables = dict.fromkeys([name.strip("`") for name in names.split(", ")], "/x")
    return _gpu(**variables) == _gpu() and ask(variables) is None


NO_GPU: tuple[tuple[str, str], ...] = ()


def _meets(expression: str, *, gpus: tuple[tuple[str, str], ...] = (("8.0", "Tesla"),)) -> bool:
    facts = requirements.HostFacts("550.54.15", "12.4", gpus)
    try:
        requirements.check((expression,), facts)
    except RequestError:
        return False
    return True


def _options(path: str, capabilities: str = "utility") -> tuple[str, ...]:
    for operation in planned("1", capabilities).operations:
        if isinstance(operation, Mount) and operation.target == path:
            return operation.options
    return ()


def _tmpfs(path: str, capabilities: str = "utility") -> Tmpfs:
    (found,) = [
        operation
        for operation in planned("1", capabilities).operations
        if isinstance(operation, Tmpfs) and operation.path == path
    ]
    return found


def _settings(text: str) -> Config:
    return config.effective(config.parse(text, "file"), {})


def _newer_cuda_comes_first() -> bool:
    container = CONTAINER._replace(compat_names=("libcuda.so.1", "libcuda.so.999.1.1"))
    operations = planned("1", "compute", container).operations
    (cache,) = [operation for operation in operations if isinstance(operation, LdCache)]
    sources = {operation.source for operation in operations if isinstance(operation, Mount)}
    named = entries_of(cache.additions)[0].path == b"/usr/local/cuda/compat/libcuda.so.1"
    return named and not any("compat" in source for source in sources)


def _injected_by_the_engine() -> request.Request:
    inputs = sources.Inputs({VISIBLE: "void", "NVIDIA_REQUIRE_CUDA": "cuda>=99"})
    found, _ = request.of_nodes(inputs, Config(), ("/dev/nvidia0",), ("compute",))
    assert found is not None
    return found


def _bundle_of(state: str) -> str:
    read_end, write_end = os.pipe()
    os.write(write_end, state.encode())
    os.close(write_end)
    try:
        return oci.read_state(read_end).bundle
    finally:
        os.close(read_end)


IN_REQUEST = (
    Row("1.1", "`NVIDIA_VISIBLE_DEVICES`", SERVED, lambda: devices(" 1 ,, 0,1") == ("1", "0")),
    Row(
        "1.1",
        'unset, non-legacy image / `""` / only commas / `void`',
        SERVED,
        lambda: (
            ask({}) is None and not any(devices(value) for value in ("", ",,", "void", "0,void"))
        ),
    ),
    Row(
        "1.1",
        "unset, legacy image",
        SERVED,
        lambda: _asked({"CUDA_VERSION": "9.2"}).devices == ("all",),
    ),
    Row(
        "1.1",
        "`none`",
        SERVED,
        lambda: devices("none") == ("none",) and "/dev/nvidia1" not in targets("none"),
    ),
    Row(
        "1.1",
        "`all`",
        SERVED,
        lambda: {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap31"} <= targets("ALL"),
    ),
    Row(
        "1.1",
        "index",
        SERVED,
        lambda: "/dev/nvidia0" in targets("1") and "/dev/nvidia1" not in targets("1"),
    ),
    Row(
        "1.1",
        "GPU UUID",
        SERVED,
        lambda: (
            "/dev/nvidia1" in targets(UUID.upper()) and refused({VISIBLE: UUID[:12]}, "unknown")
        ),
    ),
    Row("1.1", "PCI id", SERVED, lambda: "/dev/nvidia1" in targets("0:7:0.0")),
    Row(
        "1.1",
        "MIG index",
        SERVED,
        lambda: {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30"} <= targets("0:0"),
    ),
    Row(
        "1.1",
        "MIG UUID",
        SERVED,
        lambda: all(
            "/dev/nvidia-caps/nvidia-cap31" in targets(name)
            for name in (MIG_UUID, f"MIG-{UUID}/1/0")
        ),
    ),
    Row(
        "1.1",
        "CDI name",
        SERVED,
        lambda: devices("nvidia.com/gpu=0") == ("0",) and refused({VISIBLE: "x.com/y=0"}, "CDI"),
    ),
    Row(
        "1.1", "anything else", REFUSED, lambda: refused({VISIBLE: "gpu0"}, "unknown device 'gpu0'")
    ),
    Row(
        "1.1",
        "`<swarm-resource list>`",
        SERVED,
        lambda: (
            _asked(
                {VISIBLE: "1", "DOCKER_RESOURCE_GPU": f"{UUID}-2,{UUID}-3"},
                config=Config(swarm_resources=("DOCKER_RESOURCE_GPU",)),
            ).devices
            == (UUID,)
        ),
    ),
    Row(
        "1.1",
        "`NVIDIA_DRIVER_CAPABILITIES`",
        SERVED,
        lambda: (
            _gpu().capabilities == ("utility", "compute")
            and _gpu(NVIDIA_DRIVER_CAPABILITIES="all").capabilities == request.CAPABILITIES
            and refused({VISIBLE: "0", "NVIDIA_DRIVER_CAPABILITIES": "none"}, "unknown capability")
        ),
    ),
    Row(
        "1.1",
        "implications",
        SERVED,
        lambda: brings("video", "libcuda") and brings("display", "libGLX_nvidia"),
    ),
    # A spec is made before any container: which capabilities it is for is said when it is made.
    Row(
        "1.1",
        "CDI mode",
        SERVED,
        lambda: request.granted("compute, utility") == ("utility", "compute"),
    ),
    Row(
        "1.1",
        "`CUDA_VERSION`",
        SERVED,
        lambda: (
            _gpu(CUDA_VERSION="10.1.243").requirements == ("cuda>=10.1",)
            and refused({VISIBLE: "0", "CUDA_VERSION": "ten"}, "no version")
        ),
    ),
    Row(
        "1.1",
        "`NVIDIA_REQUIRE_*`",
        SERVED,
        lambda: (
            _gpu(NVIDIA_REQUIRE_X="driver>1", NVIDIA_REQUIRE_Y="cuda>1").requirements
            == ("driver>1", "cuda>1")
        ),
    ),
    Row(
        "1.1",
        "`NVIDIA_REQUIRE_JETPACK`",
        REFUSED,
        lambda: noted({VISIBLE: "0", "NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}, "Tegra"),
    ),
    Row(
        "1.1",
        "`NVIDIA_DISABLE_REQUIRE`",
        SERVED,
        lambda: (
            not _gpu(NVIDIA_REQUIRE_CUDA="cuda>=99", NVIDIA_DISABLE_REQUIRE="True").requirements
            and bool(
                _gpu(NVIDIA_REQUIRE_CUDA="cuda>=99", NVIDIA_DISABLE_REQUIRE="yes").requirements
            )
        ),
    ),
    Row(
        "1.1",
        "`NVIDIA_MIG_CONFIG_DEVICES`, `NVIDIA_MIG_MONITOR_DEVICES`",
        SERVED,
        lambda: (
            "/dev/nvidia-caps/nvidia-cap1" in targets("1", NVIDIA_MIG_CONFIG_DEVICES="all")
            and "/dev/nvidia-caps/nvidia-cap2" in targets("1", NVIDIA_MIG_MONITOR_DEVICES="all")
            and refused({VISIBLE: "0", "NVIDIA_MIG_CONFIG_DEVICES": "all"}, "CAP_SYS_ADMIN")
        ),
    ),
    Row(
        "1.1",
        "`NVIDIA_IMEX_CHANNELS`",
        SERVED,
        lambda: (
            _gpu(NVIDIA_IMEX_CHANNELS="channel3, 7").imex_channels == ("3", "7")
            and refused({VISIBLE: "0", "NVIDIA_IMEX_CHANNELS": "1048576"}, "no IMEX channel")
        ),
    ),
    Row(
        "1.1",
        "`NVIDIA_GDS`, `NVIDIA_MOFED`, `NVIDIA_GDRCOPY`, `NVIDIA_NVSWITCH`",
        SERVED,
        lambda: (
            _gpu(NVIDIA_GDS="enabled", NVIDIA_NVSWITCH="enabled").features == ("gds", "nvswitch")
            and noted({VISIBLE: "0", "NVIDIA_MOFED": "1"}, "only 'enabled'")
        ),
    ),
    # These are read from the environment of NVIDIA's own programs.  Ours is started with an environment of its own,
    # which no container and no administrator's shell reaches; settings stand in one file.
    *[
        Row(
            "1.1",
            name,
            REFUSED,
            lambda name=name: _says_nothing(name),  # type: ignore[misc]
        )
        for name in (
            "`NVIDIA_CTK_CONFIG_FILE_PATH`, `XDG_CONFIG_HOME`",
            "`NVIDIA_CTK_DEBUG`",
            "`NVIDIA_CTK_LIBCUDA_DIR`",
            "`CUDA_MPS_PIPE_DIRECTORY`",
            "`NVC_DEBUG_FILE`, `NVC_INSECURE_MODE`",
        )
    ],
    Row(
        "1.2",
        "Structure",
        SERVED,
        lambda: _meets("cuda>=99 driver>=550,cuda>=12") and not _meets("cuda>=12,driver>=999"),
    ),
    Row(
        "1.2",
        "Factor",
        SERVED,
        lambda: all(
            _meets(f"cuda{op}") for op in ("=12.4", "!=12", "<13", "<=12.4", ">12", ">=12.4")
        ),
    ),
    Row(
        "1.2", "Properties", SERVED, lambda: _meets("cuda=12.4,driver=550.54.15,arch=8,brand=tesla")
    ),
    Row(
        "1.2",
        "Version compare",
        SERVED,
        lambda: _meets("cuda=12.4.0") and refused_expression("cuda>=12..4"),
    ),
    Row(
        "1.2",
        "brand",
        SERVED,
        lambda: (
            _meets("brand=TESLA")
            and not _meets("brand!=tesla")
            and refused_expression("brand>tesla")
        ),
    ),
    Row("1.2", "Unknown property", REFUSED, lambda: refused_expression("memory>=40")),
    Row(
        "1.2",
        "Evaluation set",
        SERVED,
        lambda: (
            not _meets("arch>=8", gpus=(("8.0", "Tesla"), ("7.0", "Tesla")))
            and _meets("arch>=99,brand=none", gpus=NO_GPU)
        ),
    ),
    Row(
        "1.2",
        "Where enforced",
        SERVED,
        lambda: _injected_by_the_engine().requirements == ("cuda>=99",),
    ),
    Row(
        "1.3",
        "Device list as mounts",
        SERVED,
        lambda: (
            _asked(
                {VISIBLE: "1"},
                config=Config(accept_volume_mounts=True),
                mounts=(("/dev/null", f"{LIST}/{UUID}"), ("/dev/null", f"{LIST}/imex/3")),
            )
            == request.Request("mounts", (UUID,), ("utility", "compute"), imex_channels=("3",))
        ),
    ),
    Row(
        "1.3",
        "Annotations",
        SERVED,
        lambda: (
            _asked({}, annotations={"cdi.k8s.io/x": "nvidia.com/gpu=1,other.com/nic=a"}).devices
            == ("1",)
        ),
    ),
    # A plugin of the engine's that adds CDI devices by itself; what it adds is an engine's CDI injection to us.
    Row(
        "1.3",
        "NRI plugin",
        REFUSED,
        lambda: (
            ask({}, annotations={"nvidia.cdi.k8s.io/x": "management.nvidia.com/gpu=all"}) is None
        ),
    ),
    Row(
        "1.3",
        "Privileged",
        SERVED,
        lambda: (
            _asked(
                {VISIBLE: "0"}, config=Config(accept_environment="privileged"), privileged=True
            ).devices
            == ("0",)
        ),
    ),
    Row(
        "1.3",
        "`accept-nvidia-visible-devices-envvar-when-unprivileged`",
        SERVED,
        lambda: noted({VISIBLE: "0"}, "is not accepted", Config(accept_environment="privileged")),
    ),
    Row(
        "1.3",
        "State on stdin",
        SERVED,
        lambda: _bundle_of('{"pid": 1, "bundlePath": "/b"}') == "/b",
    ),
)


def refused_expression(expression: str) -> bool:
    """Whether an expression is malformed."""
    try:
        requirements.parse(expression)
    except RequestError:
        return True
    return False


IN_SETTINGS = (
    Row(
        "1.4",
        "`disable-require`",
        SERVED,
        lambda: _settings("disable-requirements = yes").disable_requirements,
    ),
    Row(
        "1.4",
        "`swarm-resource`",
        SERVED,
        lambda: _settings("swarm-resources = A, B").swarm_resources == ("A", "B"),
    ),
    Row(
        "1.4",
        "`accept-nvidia-visible-devices-envvar-when-unprivileged`",
        SERVED,
        lambda: _settings("accept-environment = privileged").accept_environment == "privileged",
    ),
    Row(
        "1.4",
        "`accept-nvidia-visible-devices-as-volume-mounts`",
        SERVED,
        lambda: _settings("accept-volume-mounts = yes").accept_volume_mounts,
    ),
    Row(
        "1.4",
        "`supported-driver-capabilities`",
        SERVED,
        lambda: _settings("allowed-capabilities = utility").allowed_capabilities == ("utility",),
    ),
    Row(
        "1.4",
        "`[nvidia-container-cli] root` / `path` / `environment` / `debug` / `ldcache`",
        SERVED,
        lambda: _settings("driver-root = /run/nvidia/driver/").driver_root == "/run/nvidia/driver",
    ),
    Row(
        "1.4",
        "`no-cgroups`",
        SERVED,
        lambda: _settings("device-cgroup = off").device_cgroup == "off",
    ),
    Row(
        "1.4",
        "`modes.legacy.cuda-compat-mode`",
        SERVED,
        lambda: not _settings("cuda-forward-compatibility = no").cuda_forward_compatibility,
    ),
    Row(
        "1.4",
        "`[features]`",
        SERVED,
        lambda: _settings("ignore-imex-channels = yes").ignore_imex_channels,
    ),
    # What these steer does not exist here: no program is started, nothing is loaded, there is one mode.  `config
    # import` says of each what it means; tests/unit/test_cli_config.py goes through all of them.
    *[
        Row(
            "1.4",
            name,
            REFUSED,
            lambda table=table, keys=keys: _is_answered(table, keys),  # type: ignore[misc]
        )
        for name, table, keys in (
            ("`load-kmods`", CLI, {"load-kmods": True}),
            ("`no-pivot`", CLI, {"no-pivot": True}),
            ("`user`", CLI, {"user": "root:video"}),
            ("`ldconfig`", CLI, {"ldconfig": "/sbin/ldconfig"}),
            (
                "`[nvidia-container-runtime] debug / log-level / runtimes / mode`",
                RUNTIME,
                {"debug": "/x", "log-level": "debug", "runtimes": ["runc"], "mode": "csv"},
            ),
            ("`modes.csv.mount-spec-path`", f"{RUNTIME}.modes.csv", {"mount-spec-path": "/x"}),
            (
                "`modes.cdi.default-kind / annotation-prefixes / spec-dirs`",
                f"{RUNTIME}.modes.cdi",
                {"default-kind": "x.com/y", "annotation-prefixes": ["x/"], "spec-dirs": ["/x"]},
            ),
            (
                "`modes.jit-cdi.nvcdi-feature-flags / nvcdi-disable-hooks`",
                f"{RUNTIME}.modes.jit-cdi",
                {"nvcdi-feature-flags": ["x"], "nvcdi-disable-hooks": ["all"]},
            ),
            (
                "`[nvidia-container-runtime-hook] path / skip-mode-detection`",
                f"{RUNTIME}-hook",
                {"path": "/x", "skip-mode-detection": True},
            ),
            ("`[nvidia-ctk] path`", "nvidia-ctk", {"path": "/x"}),
        )
    ],
)


def _is_answered(table: str, keys: dict[str, object]) -> bool:
    """Whether each key of NVIDIA's is answered with a sentence, and becomes none of our settings."""
    document: dict[str, object] = dict(keys)
    for name in reversed(table.split(".")):
        document = {name: document}
    rows = nvidiaconfig.answers(document, "file")
    sentences = [row.means for row in rows if row.answer != nvidiaconfig.SERVED]
    return len(sentences) == len(keys) and all(sentences)


INJECTED = (
    Row(
        "2.1",
        "utility",
        SERVED,
        lambda: brings("utility", "libnvidia-ml libnvidia-cfg libnvidia-nscq"),
    ),
    Row(
        "2.1",
        "compute (also with video)",
        SERVED,
        lambda: all(
            brings(
                capability,
                "libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp libnvidia-ptxjitcompiler "
                "libnvidia-fatbinaryloader libnvidia-allocator libnvidia-compiler libnvidia-pkcs11 "
                "libnvidia-pkcs11-openssl3 libnvidia-nvvm libnvidia-tileiras",
            )
            for capability in ("compute", "video")
        ),
    ),
    Row(
        "2.1",
        "video",
        SERVED,
        lambda: brings(
            "video", "libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid"
        ),
    ),
    Row(
        "2.1",
        "graphics / display",
        SERVED,
        lambda: all(
            brings(
                capability,
                "libnvidia-eglcore libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-ifr "
                "libnvidia-rtcore libnvoptix libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia "
                "libnvidia-glvkspirv libnvidia-cbl",
            )
            for capability in ("graphics", "display")
        ),
    ),
    Row(
        "2.1",
        "graphics extras",
        SERVED,
        lambda: (
            {
                f"{FOLDER}/libnvidia-egl-gbm.so.1.1.2",
                f"{FOLDER}/xorg/modules/drivers/nvidia_drv.so",
                f"{FOLDER}/libnvidia-vulkan-producer.so",
                "/usr/bin/nvidia-xconfig",
            }
            <= targets("1", "graphics")
        ),
    ),
    Row("2.1", "ngx", SERVED, lambda: brings("ngx", "libnvidia-ngx")),
    # By what its ELF header says, and only where the machine runs such programs.
    Row(
        "2.1",
        "compat32",
        SERVED,
        lambda: (
            (TWIN in targets("1", "compute,compat32")) == (platform.machine() == "x86_64")
            and not {TWIN} & (targets("1", "compute") | targets("1", "utility,compat32"))
        ),
    ),
    # Windows' kernel has no device nodes of NVIDIA's and no device cgroup to open.
    Row(
        "2.1",
        "always on WSL",
        REFUSED,
        lambda: not any("dxcore" in name for name, _ in catalogue.LIBRARIES),
    ),
    Row(
        "2.1",
        "selection rule",
        SERVED,
        lambda: (
            f"{FOLDER}/libnvidia-encode.so.{hosts.VERSION}" in targets("1", "video")
            and not any(OTHER_VERSION in path for path in targets("1", "all"))
        ),
    ),
    # Everything of the driver's version wherever it lies is not what was asked for: the catalogue names each.
    Row(
        "2.1",
        "CDI rule",
        REFUSED,
        lambda: not any("libnvidia-api" in path for path in targets("1", "all")),
    ),
    Row("2.1", "host search paths", SERVED, lambda: everything().library_folder == FOLDER),
    Row(
        "2.2",
        "Binaries: utility",
        SERVED,
        lambda: (
            {
                f"/usr/bin/{name}"
                for name in (
                    "nvidia-smi",
                    "nvidia-debugdump",
                    "nvidia-persistenced",
                    "nv-fabricmanager",
                )
            }
            <= targets("1", "utility")
            and _options("/usr/bin/nvidia-smi") == ("ro", "nosuid", "nodev")
        ),
    ),
    Row(
        "2.2",
        "Binaries: compute",
        SERVED,
        lambda: (
            {"/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"}
            <= targets("1", "compute") - targets("1", "utility")
        ),
    ),
    Row(
        "2.2",
        "Binaries: imex",
        SERVED,
        lambda: {"/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex-ctl"} <= targets("1", "utility"),
    ),
    Row(
        "2.2",
        "IPC: persistenced, fabricmanager",
        SERVED,
        lambda: (
            {f"/var/run/nvidia-{name}/socket" for name in ("persistenced", "fabricmanager")}
            <= targets("1", "utility")
            and _options("/var/run/nvidia-persistenced/socket") == ("nosuid", "nodev", "noexec")
        ),
    ),
    Row(
        "2.2",
        "IPC: MPS",
        SERVED,
        lambda: "/tmp/nvidia-mps" in targets("1", "compute") - targets("1", "utility"),
    ),
    Row(
        "2.2",
        "IPC: CDI",
        SERVED,
        lambda: "ro" not in _options("/var/run/nvidia-fabricmanager/socket"),
    ),
    Row(
        "2.2",
        "Firmware",
        SERVED,
        lambda: f"/lib/firmware/nvidia/{hosts.VERSION}/gsp_ga10x.bin" in targets("1", "utility"),
    ),
    Row(
        "2.2",
        "procfs overlay",
        SERVED,
        lambda: any(
            "ModifyDeviceFiles: 0" in file.content for file in _tmpfs("/proc/driver/nvidia").files
        ),
    ),
    Row(
        "2.2",
        "per GPU procfs",
        SERVED,
        lambda: "/proc/driver/nvidia/gpus/0000:08:00.0" in targets("1"),
    ),
    Row(
        "2.2",
        "MIG procfs",
        SERVED,
        lambda: (
            {
                f"/proc/driver/nvidia/capabilities/gpu1/mig/gi1/{name}"
                for name in ("access", "ci0/access")
            }
            <= targets("0:0")
            and "/proc/driver/nvidia/capabilities" in targets("1", NVIDIA_MIG_CONFIG_DEVICES="all")
        ),
    ),
    Row(
        "2.2",
        "App profile",
        SERVED,
        lambda: (
            '"EGLVisibleDGPUDevices", 0x1]'
            in _tmpfs("/etc/nvidia/nvidia-application-profiles-rc.d", "graphics").files[0].content
        ),
    ),
    Row("2.2", "CUDA forward-compat", SERVED, _newer_cuda_comes_first),
    Row("2.3", "`/dev/nvidiactl`", SERVED, lambda: "/dev/nvidiactl" in targets("none")),
    Row("2.3", "`/dev/nvidia<minor>`", SERVED, lambda: "/dev/nvidia1" in targets("0")),
    Row(
        "2.3",
        "`/dev/nvidia-modeset`",
        SERVED,
        lambda: "/dev/nvidia-modeset" in targets("1", "display") - targets("1", "graphics"),
    ),
    Row(
        "2.3",
        "`/dev/nvidia-uvm`, `/dev/nvidia-uvm-tools`",
        SERVED,
        lambda: (
            {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
            <= targets("1", "compute") - targets("1", "utility")
        ),
    ),
    Row(
        "2.3",
        "`/dev/nvidia-caps/nvidia-cap<N>`",
        SERVED,
        lambda: (
            {"/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"}
            <= targets("0:0") - targets("1")
        ),
    ),
    Row(
        "2.3",
        "`/dev/nvidia-nvswitchctl`, `/dev/nvidia-nvswitch*`",
        SERVED,
        lambda: (
            {"/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"}
            <= targets("1", NVIDIA_NVSWITCH="enabled") - targets("1")
        ),
    ),
    Row(
        "2.3",
        "`/dev/nvidia-fs*` + `/run/udev`, `/etc/cufile.json`",
        SERVED,
        lambda: (
            {"/dev/nvidia-fs0", "/etc/cufile.json"}
            <= targets("1", NVIDIA_GDS="enabled") - targets("1")
            and any(path == "/run/udev" for path, _ in catalogue.AS_THEY_ARE)
        ),
    ),
    Row(
        "2.3",
        "`/dev/infiniband/uverbs*`, `/dev/infiniband/rdma_cm`",
        SERVED,
        lambda: (
            {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}
            <= targets("1", NVIDIA_MOFED="enabled") - targets("1")
        ),
    ),
    Row(
        "2.3",
        "`/dev/gdrdrv`",
        SERVED,
        lambda: "/dev/gdrdrv" in targets("1", NVIDIA_GDRCOPY="enabled") - targets("1"),
    ),
    Row(
        "2.3",
        "`/dev/nvidia-caps-imex-channels/channel<N>`",
        SERVED,
        lambda: (
            "/dev/nvidia-caps-imex-channels/channel7"
            in targets("1", NVIDIA_IMEX_CHANNELS="7") - targets("1")
        ),
    ),
    Row(
        "2.3",
        "`/dev/dri/card*`, `/dev/dri/renderD*`, by-path links",
        SERVED,
        lambda: (
            {"/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/by-path/pci-0000:08:00.0-card"}
            <= targets("1", "graphics")
            and "/dev/dri/card2" not in targets("1", "graphics")
        ),
    ),
    # As above: there is no such device on a Linux host.
    Row(
        "2.3",
        "`/dev/dxg`",
        REFUSED,
        lambda: not any(node.path == "/dev/dxg" for node in everything().devices),
    ),
    Row(
        "2.4",
        "glvnd, EGL, nvoptix, X11 files",
        SERVED,
        lambda: (
            {
                f"/usr/share/{name}"
                for name in (
                    "glvnd/egl_vendor.d/10_nvidia.json",
                    "egl/egl_external_platform.d/15_nvidia_gbm.json",
                    "egl/egl_external_platform.d/10_nvidia_wayland.json",
                    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
                    "egl/egl_external_platform.d/20_nvidia_xcb.json",
                    "egl/egl_external_platform.d/20_nvidia_xlib.json",
                    "nvidia/nvoptix.bin",
                    "X11/xorg.conf.d/10-nvidia.conf",
                    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
                )
            }
            <= targets("1", "graphics") - targets("1", "compute")
        ),
    ),
    Row(
        "2.4",
        "vulkan files",
        SERVED,
        lambda: (
            {
                f"/etc/vulkan/{name}"
                for name in (
                    "icd.d/nvidia_icd.json",
                    "icd.d/nvidia_layers.json",
                    "implicit_layer.d/nvidia_layers.json",
                    f"icd.d/nvidia_icd.{platform.machine()}.json",
                )
            }
            <= targets("1", "display") - targets("1", "compute")
        ),
    ),
    Row(
        "2.4",
        "OpenCL/vendors/nvidia.icd",
        SERVED,
        lambda: "/etc/OpenCL/vendors/nvidia.icd" in targets("1", "compute"),
    ),
    Row(
        "2.4",
        "Symlinks legacy",
        SERVED,
        lambda: (
            {
                f"{FOLDER}/{name}"
                for name in ("libcuda.so", "libGLX_indirect.so.0", "libnvidia-opticalflow.so")
            }
            <= targets("1", "all")
        ),
    ),
    Row(
        "2.4",
        "Symlinks CDI",
        SERVED,
        lambda: (
            {f"{FOLDER}/gbm/nvidia-drm_gbm.so", f"{FOLDER}/libnvidia-ml.so.1"}
            <= targets("1", "all")
        ),
    ),
    Row(
        "2.4",
        "Legacy hook alone does not inject ICD files",
        SERVED,
        lambda: "/usr/share/glvnd/egl_vendor.d/10_nvidia.json" in targets("1", "graphics"),
    ),
)

ROWS = (*IN_REQUEST, *IN_SETTINGS, *INJECTED)
