# SPDX-License-Identifier: Apache-2.0
"""Denials are read from any log and explained in our terms, with a remedy that keeps the container confined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook import avc

CONTAINER = "system_u:system_r:container_t:s0:c1,c2"
GPU_CONTAINER = "system_u:system_r:nvidia_container_t:s0:c1,c2"
ENGINE = "system_u:system_r:container_runtime_t:s0"
HOOK = "system_u:system_r:oci_gpu_hook_t:s0"
NODE = "system_u:object_r:xserver_misc_device_t:s0"
FILE = "system_u:object_r:container_file_t:s0"


def line(permissions: str, more: str, source: str, target: str, tclass: str) -> str:
    return (
        f"type=AVC msg=audit(1.2:3): avc:  denied  {{ {permissions} }} for  pid=7 {more} "
        f"scontext={source} tcontext={target} tclass={tclass} permissive=0"
    )


ROWS = [
    (
        line("search", 'comm="python3" name="/" dev="tmpfs" ino=1', CONTAINER, FILE + ":c3,c4", "dir"),
        "/dev/shm has the level s0:c3,c4, the container runs at s0:c1,c2",
        "ipc-labels",
    ),
    (
        line("search", 'name="/" dev="mqueue"', CONTAINER, FILE + ":c3,c4", "dir"),
        "/dev/mqueue has the level s0:c3,c4",
        "ipc-labels",
    ),
    (
        line("write", 'name="/" dev="tmpfs"', CONTAINER, "u:object_r:container_engine_tmpfs_t:s0", "dir"),
        "/dev/shm has the engine's type container_engine_tmpfs_t",
        "ipc-labels",
    ),
    (
        line("write", 'name="/" dev="tmpfs"', CONTAINER, "u:object_r:container_runtime_tmpfs_t:s0", "dir"),
        "/dev/shm has the engine's type container_runtime_tmpfs_t",
        "ipc-labels",
    ),
    (
        line("read write open", 'path="/q1" dev="mqueue"', CONTAINER, "u:object_r:tmpfs_t:s0:c1,c2", "file"),
        "a message queue is made as tmpfs_t",
        "nvidia_container_t",
    ),
    (
        line("read write", 'name="nvidia0"', CONTAINER, "u:object_r:xserver_misc_device_t:s0", "chr_file"),
        "the host's own node 'nvidia0' is bound into a container_t container",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    (
        line("write", 'name="socket" dev="tmpfs"', CONTAINER, "u:object_r:nvidia_runtime_t:s0", "sock_file"),
        "speaks to a service of NVIDIA's",
        "nvidia_container_t",
    ),
    (
        line("write", 'name="control" dev="tmpfs"', CONTAINER, "u:object_r:nvidia_mps_t:s0", "fifo_file"),
        "may not take part in MPS",
        "nvidia_container_use_mps",
    ),
    (
        line("read", 'name="other" dev="vda"', CONTAINER, FILE + ":c3,c4", "file"),
        "'other' has the level s0:c3,c4",
        "mount as a volume with :z",
    ),
    (
        line("relabelfrom", 'name="/" dev="tmpfs"', "u:system_r:oci_gpu_hook_t:s0", "u:object_r:tmpfs_t:s0", "dir"),
        "the hook's own domain may not relabelfrom a dir of type tmpfs_t",
        "selinux install",
    ),
    (
        line("map", 'path="/usr/bin/bash"', "u:system_r:oci_gpu_hook_door_t:s0", "u:object_r:shell_exec_t:s0", "file"),
        "the hook's own domain may not map a file of type shell_exec_t",
        "selinux install",
    ),
    (
        line("connectto", 'path="/run/systemd/private"', HOOK, "u:system_r:init_t:s0", "unix_stream_socket"),
        "may not tell systemd of a scope's devices (unix_stream_socket init_t)",
        "selinux install",
    ),
    (
        line("write", 'name="private" dev="tmpfs"', HOOK, "u:object_r:init_var_run_t:s0", "sock_file"),
        "may not tell systemd of a scope's devices (sock_file init_var_run_t)",
        "selinux install",
    ),
    (
        line("write", 'name="private" dev="tmpfs"', HOOK, "u:object_r:var_run_t:s0", "sock_file"),
        "may not tell systemd of a scope's devices (sock_file var_run_t)",
        "restorecon -v /run/systemd/private",
    ),
    (
        # As PID 1 writes it, of its own question.
        "type=USER_AVC msg=audit(1.2:3): pid=1 uid=0 auid=4294967295 ses=4294967295 subj=system_u:system_r:init_t:s0 "
        "msg='avc:  denied  { start } for auid=n/a uid=0 gid=0 path=\"/run/systemd/transient/libpod-0.scope\" "
        'cmdline="" function="bus_unit_method_set_properties" '
        f"scontext={HOOK} tcontext=system_u:object_r:systemd_unit_file_t:s0 tclass=service permissive=0 "
        "exe=\"/usr/lib/systemd/systemd\" sauid=0 hostname=? addr=? terminal=?'",
        "may not tell systemd of a scope's devices (service systemd_unit_file_t)",
        "selinux install",
    ),
    (
        line("read", 'name="private" dev="tmpfs"', HOOK, "u:object_r:etc_t:s0", "file"),
        "the hook's own domain may not read a file of type etc_t",
        "selinux install",
    ),
    (
        line("write", 'name="/" dev="tmpfs"', CONTAINER, "u:object_r:tmpfs_t:s0", "dir"),
        "/dev/shm is the host's own",
        "--ipc=host",
    ),
    (
        line("read write", 'name="nvidia0"', GPU_CONTAINER, "u:object_r:xserver_misc_device_t:s0", "chr_file"),
        "the loaded policy has another nvidia_container_t",
        "selinux status",
    ),
    (
        line("open", 'name="nvidia0"', CONTAINER, "u:object_r:event_device_t:s0", "chr_file"),
        "the host's node 'nvidia0' is labelled event_device_t",
        "restorecon",
    ),
    (
        line("map", 'path="/dev/nvidia0" dev="tmpfs"', CONTAINER, FILE + ":c1,c2", "chr_file"),
        "does not let container_t map a chr_file",
        "nvidia_container_t",
    ),
    (
        line("open", 'name="nvidia0" dev="tmpfs"', CONTAINER, FILE + ":c3,c4", "chr_file"),
        "'nvidia0' has the level s0:c3,c4",
        "keep it so",
    ),
    (
        line("open", 'name="card0"', GPU_CONTAINER, "u:object_r:dri_device_t:s0", "chr_file"),
        "may not use the host's /dev/dri",
        "setsebool -P nvidia_container_use_dri on",
    ),
    (
        line("open", 'name="card0"', CONTAINER, "u:object_r:dri_device_t:s0", "chr_file"),
        "may not use the host's /dev/dri",
        "run the container as nvidia_container_t",
    ),
    (
        line("write", 'name="control"', GPU_CONTAINER, "u:object_r:nvidia_mps_t:s0", "fifo_file"),
        "may not take part in MPS",
        "setsebool -P nvidia_container_use_mps on",
    ),
    (
        line("write", 'name="socket" dev="tmpfs"', GPU_CONTAINER, "u:object_r:var_run_t:s0", "sock_file"),
        "its socket is var_run_t",
        "restorecon -Rv /run/nvidia-persistenced",
    ),
    (
        line("read", 'name="libcuda.so.1"', CONTAINER, "u:object_r:default_t:s0", "file"),
        "the driver's file 'libcuda.so.1' is labelled default_t",
        "restorecon",
    ),
    (
        line("execute", 'name="oci-gpu-hook"', ENGINE, "u:object_r:oci_gpu_hook_exec_t:s0", "file"),
        "container_runtime_t may not start the hook",
        "restorecon",
    ),
    (
        line("search", 'name="oci-gpu-hook"', CONTAINER, "u:object_r:oci_gpu_hook_state_t:s0", "dir"),
        "the hook's own files",
        "volumes",
    ),
    (
        line("open", 'name="nvidia0"', "u:r:my_app.process:s0:c1,c2", NODE, "chr_file"),
        "bound into a my_app.process container",
        "NVIDIA_VISIBLE_DEVICES",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause", "remedy"), ROWS)
def test_each_cause_is_named_with_its_remedy(text: str, cause: str, remedy: str) -> None:
    (found,) = avc.explain(avc.parse(text))
    assert cause in found.cause
    assert remedy in found.remedy


def test_no_remedy_gives_up_confinement() -> None:
    for text, _, _ in ROWS:
        for found in avc.explain(avc.parse(text)):
            for word in ("disable", "permissive", "spc_t", "privileged", "setenforce"):
                assert word not in found.remedy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "avc: granted { read } for scontext=a:b:container_t:s0 tcontext=a:b:c:s0 tclass=file",
        line("read", 'name="x"', "u:r:sshd_t:s0", "u:r:shadow_t:s0", "file"),
        line("read", 'name="x"', CONTAINER, "nonsense", "file"),
        line("getattr", 'name="x"', CONTAINER, FILE + ":c1,c2", "file"),
        line("open", 'name="sda"', CONTAINER, "u:object_r:device_t:s0", "chr_file"),
        line("read", 'name="x"', ENGINE, FILE + ":c3,c4", "file"),
    ],
)
def test_what_does_not_concern_us_is_left_out(text: str) -> None:
    assert avc.explain(avc.parse(text)) == ()


def test_alike_denials_are_counted_together() -> None:
    (found,) = avc.parse(
        "\n".join([ROWS[0][0].replace("pid=7", f"pid={number}") for number in range(9)])
    )
    assert found.times == 9


@given(
    st.text()
    | st.sampled_from([row[0] for row in ROWS]).flatmap(lambda t: st.just(t[: len(t) // 2]))
)
def test_reading_a_log_is_total(text: str) -> None:
    avc.explain(avc.parse(text))
    avc.explain(
        avc.parse(
            f"avc:  denied  {{ {text} }} for {text} scontext={text} tcontext={text} tclass={text}"
        )
    )


def test_names_that_the_kernel_writes_in_hexadecimal_are_read_and_cannot_reach_a_terminal() -> None:
    name = "\x1b[2Jnvidia0"
    (found,) = avc.explain(
        avc.parse(line("open", f"name={name.encode().hex().upper()}", CONTAINER, NODE, "chr_file"))
    )
    assert found.denial.name == name
    assert found.cause.isprintable()
