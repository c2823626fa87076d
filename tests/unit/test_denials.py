# SPDX-License-Identifier: Apache-2.0
"""Denials are read from any log and explained in our terms, with a remedy that keeps the container confined."""

from __future__ import annotations

import pytest

from oci_gpu_hook.cli import denials

CONTAINER = "system_u:system_r:container_t:s0:c1,c2"
AGENT = "system_u:system_r:nvidia_agent_t:s0:c1,c2"
GPU_CONTAINER = "system_u:system_r:nvidia_container_t:s0:c1,c2"
ENGINE = "system_u:system_r:container_runtime_t:s0"
HOOK = "system_u:system_r:oci_gpu_hook_t:s0"
RUNTIME = "system_u:system_r:oci_gpu_runtime_t:s0"
NODE = "system_u:object_r:xserver_misc_device_t:s0"
FILE = "system_u:object_r:container_file_t:s0"


def line(permissions: str, more: str, source: str, target: str, tclass: str) -> str:
    """A denial as the kernel writes it; the target is a context, or the type of one of the host's files."""
    target = target if ":" in target else f"u:object_r:{target}:s0"
    return (
        f"type=AVC msg=audit(1.2:3): avc:  denied  {{ {permissions} }} for  pid=7 {more} "
        f"scontext={source} tcontext={target} tclass={tclass} permissive=0"
    )


ROWS = [(line(*parts), cause, remedy) for parts, cause, remedy in [
    (("search", 'comm="python3" name="/" dev="tmpfs" ino=1', CONTAINER, FILE + ":c3,c4", "dir"),
     "/dev/shm has the level s0:c3,c4, the container runs at s0:c1,c2", "ipc-labels"),
    (("write", 'name="/" dev="tmpfs"', CONTAINER, "container_engine_tmpfs_t", "dir"),
     "/dev/shm has the engine's type container_engine_tmpfs_t", "ipc-labels"),
    (("read write open", 'path="/q1" dev="mqueue"', CONTAINER, "u:object_r:tmpfs_t:s0:c1,c2", "file"),
     "a message queue is made as tmpfs_t", "nvidia_container_t"),
    (("read write", 'name="nvidia0"', CONTAINER, "xserver_misc_device_t", "chr_file"),
     "the host's own node 'nvidia0' is bound into a container_t container", "NVIDIA_VISIBLE_DEVICES"),
    (("write", 'name="socket" dev="tmpfs"', CONTAINER, "nvidia_runtime_t", "sock_file"),
     "connects to a service of NVIDIA's", "nvidia_container_t"),
    (("read", 'name="other" dev="vda"', CONTAINER, FILE + ":c3,c4", "file"),
     "'other' has the level s0:c3,c4", "as a volume with :z"),
    (("map", 'path="/usr/bin/bash"', "u:system_r:oci_gpu_hook_entry_t:s0", "shell_exec_t", "file"),
     "the hook's own domain may not map a file of type shell_exec_t", "selinux install"),
    (("connectto", 'path="/run/systemd/private"', HOOK, "u:system_r:init_t:s0", "unix_stream_socket"),
     "may not set a scope's devices in systemd (unix_stream_socket init_t)", "selinux install"),
    (("write", 'name="private" dev="tmpfs"', HOOK, "var_run_t", "sock_file"),
     "may not set a scope's devices in systemd (sock_file var_run_t)", "restorecon -v /run/systemd/private"),
    (("write", 'name="devices.allow" dev="cgroup"', HOOK, "cgroup_t", "file"),
     "the hook may not open devices in cgroup v1", "setsebool -P oci_gpu_hook_use_cgroup_v1 on"),
    (("write", 'name="dmem.max" dev="cgroup2"', HOOK, "cgroup_t", "file"),
     "the hook may not limit device memory", "setsebool -P oci_gpu_hook_limit_memory on"),
    (("open", 'name="nvidiactl" dev="devtmpfs"', HOOK, "xserver_misc_device_t", "chr_file"),
     "the hook may not ask NVML to limit GPU memory", "setsebool -P oci_gpu_hook_use_nvml on"),
    (("connectto", 'path="/var/lib/kubelet/device-plugins/nvidia-gpu.sock"', AGENT,
      AGENT.replace("c1,c2", "c3,c4"), "unix_stream_socket"),
     "the agent runs at s0:c1,c2, and the one that listens at s0:c3,c4", "leave it so"),
    (("write", 'name="/" dev="tmpfs"', CONTAINER, "tmpfs_t", "dir"),
     "/dev/shm is the host's own", "--ipc=host"),
    (("read write", 'name="nvidia0"', GPU_CONTAINER, "xserver_misc_device_t", "chr_file"),
     "the loaded policy has another nvidia_container_t", "selinux status"),
    (("open", 'name="nvidia0"', CONTAINER, "event_device_t", "chr_file"),
     "the host's node 'nvidia0' is labelled event_device_t", "restorecon"),
    (("map", 'path="/dev/nvidia0" dev="tmpfs"', CONTAINER, FILE + ":c1,c2", "chr_file"),
     "does not let container_t map a chr_file", "nvidia_container_t"),
    (("open", 'name="card0"', GPU_CONTAINER, "dri_device_t", "chr_file"),
     "may not use the host's /dev/dri", "setsebool -P nvidia_container_use_dri on"),
    (("open", 'name="card0"', CONTAINER, "dri_device_t", "chr_file"),
     "may not use the host's /dev/dri", "run the container as nvidia_container_t"),
    (("read write", 'name="uverbs0"', CONTAINER, "infiniband_device_t", "chr_file"),
     "the host's node 'uverbs0', of type infiniband_device_t, is bound", "by the vendor's flag"),
    (("open", 'name="accel0" dev="tmpfs"', CONTAINER, FILE + ":c3,c4", "chr_file"),
     "'accel0' has the level s0:c3,c4", "leave it so"),
    (("write", 'name="control"', GPU_CONTAINER, "nvidia_mps_t", "fifo_file"),
     "may not take part in MPS", "setsebool -P nvidia_container_use_mps on"),
    (("write", 'name="socket" dev="tmpfs"', GPU_CONTAINER, "var_run_t", "sock_file"),
     "its socket is var_run_t", "selinux relabel"),
    (("connectto", 'path="/var/lib/kubelet/device-plugins/kubelet.sock"', AGENT,
      "u:system_r:kubelet_t:s0", "unix_stream_socket"),
     "may not connect to kubelet, which is kubelet_t", "setsebool -P nvidia_agent_use_kubelet on"),
    (("connectto", 'path="/var/lib/kubelet/device-plugins/kubelet.sock"', AGENT, ENGINE, "unix_stream_socket"),
     "connect to kubelet, which is container_runtime_t", "setsebool -P nvidia_agent_use_engines_kubelet on"),
    (("connectto", 'path="/var/lib/kubelet/pod-resources/kubelet.sock"', CONTAINER,
      "u:system_r:kubelet_t:s0", "unix_stream_socket"),
     "a container_t container may not connect to kubelet", "run it as nvidia_agent_t"),
    (("search", 'name="pod-resources"', AGENT, "kubelet_var_lib_t", "dir"),
     "may not reach kubelet's socket", "setsebool -P nvidia_agent_use_kubelet on"),
    (("write", 'name="kubelet.sock"', AGENT, "container_var_lib_t", "sock_file"),
     "may not reach kubelet's socket", "setsebool -P nvidia_agent_use_kubelet on"),
    (("search", 'name="features.d"', CONTAINER, "nvidia_feature_t", "dir"),
     "which each container may: the module is older", "oci-gpu-hook selinux install"),
    (("write", 'name="features.d"', CONTAINER, "nvidia_feature_t", "dir"),
     "may not write a dir of type nvidia_feature_t", "run it as nvidia_agent_t"),
    # What the boolean allows is not all of it.
    (("write execute", 'name="gfd"', AGENT, "nvidia_feature_t", "file"),
     "may not execute/write a file of type nvidia_feature_t", "leave it so"),
    (("open relabelto", 'name="nvidia0"', HOOK, "xserver_misc_device_t", "chr_file"),
     "the hook's own domain may not open/relabelto", "selinux install"),
    (("execute", 'name="gfd"', AGENT, "nvidia_feature_t", "file"),
     "may not execute a file of type nvidia_feature_t", "leave it so"),
    (("write", 'name="features.d"', AGENT, "nvidia_feature_t", "dir"),
     "may not write a dir of type nvidia_feature_t", "setsebool -P nvidia_agent_write_features on"),
    (("write", 'name="features.d"', AGENT, "kubernetes_file_t", "dir"),
     "features.d is labelled kubernetes_file_t", "selinux relabel"),
    (("read", 'name="libcuda.so.1"', CONTAINER, "default_t", "file"),
     "the driver's file 'libcuda.so.1' is labelled default_t", "restorecon"),
    (("execute", 'name="oci-gpu-hook"', ENGINE, "oci_gpu_hook_exec_t", "file"),
     "container_runtime_t may not start the hook", "restorecon"),
    (("execute", 'name="oci-gpu-hook-start"', ENGINE, "oci_gpu_hook_start_exec_t", "file"),
     "container_runtime_t may not start the hook", "restorecon"),
    (("execute", 'name="oci-gpu-runtime"', ENGINE, "oci_gpu_runtime_exec_t", "file"),
     "oci-gpu-runtime, oci_gpu_runtime_exec_t: in the policy it is not a container engine", "restorecon"),
    (("write", 'name="config.json"', RUNTIME, "container_file_t", "file"),
     "the runtime's own domain may not write a file of type container_file_t", "selinux install"),
    (("execute", 'name="youki"', RUNTIME, "usr_t", "file"),
     "the runtime behind oci-gpu-runtime does not have the label", "container_runtime_exec_t"),
    (("search", 'name="oci-gpu-hook"', CONTAINER, "oci_gpu_hook_state_t", "dir"),
     "the hook's own files", "volumes"),
    (("open", 'name="nvidia0"', "u:r:my_app.process:s0:c1,c2", NODE, "chr_file"),
     "bound into a my_app.process container", "NVIDIA_VISIBLE_DEVICES"),
]]  # fmt: skip
# As PID 1 writes it, of its own question.
USER_AVC = (
    "type=USER_AVC msg=audit(1.2:3): pid=1 uid=0 auid=4294967295 ses=4294967295 subj=system_u:system_r:init_t:s0 "
    'msg=\'avc:  denied  { start } for auid=n/a uid=0 gid=0 path="/run/systemd/transient/libpod-0.scope" '
    'cmdline="" function="bus_unit_method_set_properties" '
    f"scontext={HOOK} tcontext=system_u:object_r:systemd_unit_file_t:s0 tclass=service permissive=0 "
    'exe="/usr/lib/systemd/systemd" sauid=0 hostname=? addr=? terminal=?\''
)
CAUSE = "may not set a scope's devices in systemd (service systemd_unit_file_t)"
ROWS.append((USER_AVC, CAUSE, "selinux install"))


@pytest.mark.parametrize(("text", "cause", "remedy"), ROWS)
def test_each_cause_is_named_with_a_remedy_that_keeps_confinement(text: str, cause: str, remedy: str) -> None:
    (found,) = denials.explain(denials.parse_denials(text))
    assert cause in found.cause
    assert remedy in found.remedy
    for word in ("disable", "permissive", "spc_t", "privileged", "setenforce"):
        assert word not in found.remedy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "avc: granted { read } for scontext=a:b:container_t:s0 tcontext=a:b:c:s0 tclass=file",
        line("read", 'name="x"', CONTAINER, "non:sense", "file"),
        line("getattr", 'name="x"', CONTAINER, FILE + ":c1,c2", "file"),
        line("open", 'name="sda"', CONTAINER, "u:object_r:device_t:s0", "chr_file"),
        line("read", 'name="x"', ENGINE, FILE + ":c3,c4", "file"),
        # kubelet's other files, and its socket's folder: closed to agents on purpose, and to others.
        line("read", 'name="cpu_manager_state"', AGENT, "kubelet_var_lib_t", "file"),
        line("search", 'name="pod-resources"', CONTAINER, "kubelet_var_lib_t", "dir"),
    ],
)
def test_what_does_not_concern_us_is_left_out(text: str) -> None:
    assert denials.explain(denials.parse_denials(text)) == ()


def test_alike_denials_are_counted_together() -> None:
    text = "\n".join([ROWS[0][0].replace("pid=7", f"pid={number}") for number in range(9)])
    (found,) = denials.parse_denials(text)
    assert found.times == 9


def test_names_that_the_kernel_writes_in_hexadecimal_are_read_and_cannot_reach_a_terminal() -> None:
    name = "\x1b[2Jnvidia0"
    text = line("open", f"name={name.encode().hex().upper()}", CONTAINER, NODE, "chr_file")
    (found,) = denials.explain(denials.parse_denials(text))
    assert found.name == name
    assert found.cause.isprintable()
