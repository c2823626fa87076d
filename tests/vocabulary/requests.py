# SPDX-License-Identifier: Apache-2.0
"""Rows of section 1: what a container can ask for, and where."""

from __future__ import annotations

import os

from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.planning import requirements
from oci_gpu_hook.request import sources
from oci_gpu_hook.request.cdirequest import of_nodes
from oci_gpu_hook.request.selectors import Request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.state import read_state
from oci_gpu_hook.request.words import CAPABILITIES
from tests.vocabulary.host import MIG_UUID, REFUSED, UUID, Row, ask, brings, devices, noted, refused, targets

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIST = "/var/run/nvidia-container-devices"


def _request(environment: dict[str, str], **inputs: object) -> Request:
    found = ask(environment, **inputs)  # type: ignore[arg-type]
    assert found is not None
    return found


def _gpu(**environment: str) -> Request:
    return _request({VISIBLE: "0", **environment})


def _says_nothing(names: str) -> bool:
    """Whether a container that sets these variables asks for what it asks for without them."""
    variables = dict.fromkeys([name.strip("`") for name in names.split(", ")], "/x")
    return _gpu(**variables) == _gpu() and ask(variables) is None


def _meets(expression: str, *, gpus: tuple[tuple[str, str], ...] = (("8.0", "Tesla"),)) -> bool:
    try:
        requirements.check((expression,), "550.54.15", "12.4", gpus)
    except RequestError:
        return False
    return True


def refused_expression(expression: str) -> bool:
    """Whether an expression is malformed."""
    try:
        requirements.parse_requirement(expression)
    except RequestError:
        return True
    return False


def _injected_by_the_engine(*capabilities: str) -> Request:
    """The request of a container that an engine has given a GPU, by a CDI spec for these capabilities."""
    inputs = sources.Inputs({VISIBLE: "void", "NVIDIA_REQUIRE_CUDA": "cuda>=99"})
    found, _ = of_nodes(inputs, Settings(), ("/dev/nvidia0",), capabilities)
    assert found is not None
    return found


def _bundle_of(state: bytes) -> str:
    with open(os.devnull) as stdin:
        return read_state(stdin.fileno(), state).bundle


LISTED = (("/dev/null", f"{LIST}/{UUID}"), ("/dev/null", f"{LIST}/imex/3"))

IN_REQUEST = (
    Row("1.1", "`NVIDIA_VISIBLE_DEVICES`", lambda: devices(" 1 ,, 0,1") == ("1", "0")),
    Row("1.1", 'unset, non-legacy image / `""` / only commas / `void`',
        lambda: ask({}) is None and not any(devices(value) for value in ("", ",,", "void", "0,void"))),
    Row("1.1", "unset, legacy image", lambda: _request({"CUDA_VERSION": "9.2"}).devices == ("all",)),
    Row("1.1", "`none`", lambda: devices("none") == ("none",) and "/dev/nvidia1" not in targets("none")),
    Row("1.1", "`all`", lambda: {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap31"} <= targets("ALL")),
    Row("1.1", "index", lambda: "/dev/nvidia0" in targets("1") and "/dev/nvidia1" not in targets("1")),
    Row("1.1", "GPU UUID",
        lambda: "/dev/nvidia1" in targets(UUID.upper()) and refused({VISIBLE: UUID[:12]}, "unknown")),
    Row("1.1", "PCI id", lambda: "/dev/nvidia1" in targets("0:7:0.0")),
    Row("1.1", "MIG index", lambda: {"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30"} <= targets("0:0")),
    Row("1.1", "MIG UUID",
        lambda: all("/dev/nvidia-caps/nvidia-cap31" in targets(name) for name in (MIG_UUID, f"MIG-{UUID}/1/0"))),
    Row("1.1", "CDI name", lambda: devices("nvidia.com/gpu=0") == ("0",) and refused({VISIBLE: "x.com/y=0"}, "CDI")),
    Row("1.1", "anything else", lambda: refused({VISIBLE: "gpu0"}, "unknown device 'gpu0'"), REFUSED),
    Row("1.1", "`<swarm-resource list>`",
        lambda: _request({VISIBLE: "1", "DOCKER_RESOURCE_GPU": f"{UUID}-2,{UUID}-3"},
                config=Settings(swarm_resources=("DOCKER_RESOURCE_GPU",))).devices == (UUID,)),
    Row("1.1", "`NVIDIA_DRIVER_CAPABILITIES`",
        lambda: _gpu().capabilities == ("utility", "compute")
            and _gpu(NVIDIA_DRIVER_CAPABILITIES="all").capabilities == CAPABILITIES
            and refused({VISIBLE: "0", "NVIDIA_DRIVER_CAPABILITIES": "none"}, "unknown capability")),
    Row("1.1", "implications", lambda: brings("video", "libcuda") and brings("display", "libGLX_nvidia")),
    # A spec is made before any container: its maker names the capabilities that it is for.
    Row("1.1", "CDI mode",
        lambda: _injected_by_the_engine("graphics", "compute").capabilities == ("compute", "graphics")),
    Row("1.1", "`CUDA_VERSION`",
        lambda: _gpu(CUDA_VERSION="10.1.243").requirements == ("cuda>=10.1",)
            and refused({VISIBLE: "0", "CUDA_VERSION": "ten"}, "not a version")),
    Row("1.1", "`NVIDIA_REQUIRE_*`",
        lambda: _gpu(NVIDIA_REQUIRE_X="driver>1", NVIDIA_REQUIRE_Y="cuda>1").requirements == ("driver>1", "cuda>1")),
    Row("1.1", "`NVIDIA_REQUIRE_JETPACK`",
        lambda: _gpu(NVIDIA_REQUIRE_JETPACK="csv-mounts=all") == _gpu()._replace(jetpack_all=True)
            and _gpu(NVIDIA_REQUIRE_JETPACK="base-only") == _gpu()),
    Row("1.1", "`NVIDIA_DISABLE_REQUIRE`",
        lambda: not _gpu(NVIDIA_REQUIRE_CUDA="cuda>=99", NVIDIA_DISABLE_REQUIRE="True").requirements
            and bool(_gpu(NVIDIA_REQUIRE_CUDA="cuda>=99", NVIDIA_DISABLE_REQUIRE="yes").requirements)),
    Row("1.1", "`NVIDIA_MIG_CONFIG_DEVICES`, `NVIDIA_MIG_MONITOR_DEVICES`",
        lambda: "/dev/nvidia-caps/nvidia-cap1" in targets("1", NVIDIA_MIG_CONFIG_DEVICES="all")
            and "/dev/nvidia-caps/nvidia-cap2" in targets("1", NVIDIA_MIG_MONITOR_DEVICES="all")
            and refused({VISIBLE: "0", "NVIDIA_MIG_CONFIG_DEVICES": "all"}, "CAP_SYS_ADMIN")),
    Row("1.1", "`NVIDIA_IMEX_CHANNELS`",
        lambda: _gpu(NVIDIA_IMEX_CHANNELS="channel3, 7").imex_channels == ("3", "7")
            and refused({VISIBLE: "0", "NVIDIA_IMEX_CHANNELS": "1048576"}, "not an IMEX channel")),
    Row("1.1", "`NVIDIA_GDS`, `NVIDIA_MOFED`, `NVIDIA_GDRCOPY`, `NVIDIA_NVSWITCH`",
        lambda: _gpu(NVIDIA_GDS="enabled", NVIDIA_NVSWITCH="enabled").features == ("gds", "nvswitch")
            and noted({VISIBLE: "0", "NVIDIA_MOFED": "1"}, "only 'enabled'")),
    # These are read from the environment of NVIDIA's own programs.  Ours is started with an environment of its own,
    # which no container and no administrator's shell reaches; settings stand in one file.
    *[
        Row("1.1", name, lambda name=name: _says_nothing(name), REFUSED)  # type: ignore[misc]
        for name in (
            "`NVIDIA_CTK_CONFIG_FILE_PATH`, `XDG_CONFIG_HOME`",
            "`NVIDIA_CTK_DEBUG`",
            "`NVIDIA_CTK_LIBCUDA_DIR`",
            "`CUDA_MPS_PIPE_DIRECTORY`",
            "`NVC_DEBUG_FILE`, `NVC_INSECURE_MODE`",
        )
    ],
    Row("1.2", "Structure", lambda: _meets("cuda>=99 driver>=550,cuda>=12") and not _meets("cuda>=12,driver>=999")),
    Row("1.2", "Factor",
        lambda: all(_meets(f"cuda{op}") for op in ("=12.4", "!=12", "<13", "<=12.4", ">12", ">=12.4"))),
    Row("1.2", "Properties", lambda: _meets("cuda=12.4,driver=550.54.15,arch=8,brand=tesla")),
    Row("1.2", "Version compare", lambda: _meets("cuda=12.4.0") and refused_expression("cuda>=12..4")),
    Row("1.2", "brand",
        lambda: _meets("brand=TESLA") and not _meets("brand!=tesla") and refused_expression("brand>tesla")),
    Row("1.2", "Unknown property", lambda: refused_expression("memory>=40"), REFUSED),
    Row("1.2", "Evaluation set",
        lambda: not _meets("arch>=8", gpus=(("8.0", "Tesla"), ("7.0", "Tesla")))
            and _meets("arch>=99,brand=none", gpus=())),
    Row("1.2", "Where enforced", lambda: _injected_by_the_engine("compute").requirements == ("cuda>=99",)),
    Row("1.3", "Device list as mounts",
        lambda: _request({VISIBLE: "1"}, config=Settings(accept_volume_mounts=True), mounts=LISTED)
            == Request("mounts", (UUID,), ("utility", "compute"), imex_channels=("3",))),
    Row("1.3", "Annotations",
        lambda: _request({}, annotations={"cdi.k8s.io/x": "nvidia.com/gpu=1,other.com/nic=a"}).devices == ("1",)),
    # A plugin of the engine's that adds CDI devices by itself; what it adds is an engine's CDI injection to us.
    Row("1.3", "NRI plugin",
        lambda: ask({}, annotations={"nvidia.cdi.k8s.io/x": "management.nvidia.com/gpu=all"}) is None, REFUSED),
    Row("1.3", "Privileged",
        lambda: _request({VISIBLE: "0"}, config=Settings(accept_environment="privileged"), privileged=True).devices
                == ("0",)),
    Row("1.3", "`accept-nvidia-visible-devices-envvar-when-unprivileged`",
        lambda: noted({VISIBLE: "0"}, "is not accepted", Settings(accept_environment="privileged"))),
    Row("1.3", "State on stdin", lambda: _bundle_of(b'{"pid": 1, "bundlePath": "/b"}') == "/b"),
)  # fmt: skip
