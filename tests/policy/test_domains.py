# SPDX-License-Identifier: Apache-2.0
"""What the domains of the hook, of its entry script and of the runtime may not, and no list or table shows alone.

Which powers each has, over which types, the manual's table of powers says: test_policy holds it against the policy.
Must not load a policy, or need SELinux in the kernel that runs it.
"""

from __future__ import annotations

import re

import pytest

from tests.policy import expected, rules

_BOTH = ("refpolicy", "targeted")
# Policies, a pattern, and of which lines of their lists alone it finds something: the groups.
ALONE = {
    # container_engine_t is the host's engine on refpolicy, and an engine inside a container on the targeted policy.
    "engines on the host start our programs, on refpolicy": (
        ("refpolicy",),
        r"attribute oci_gpu_(hook|runtime)_caller has(.*)",
        {
            *("hook container_engine_t", "hook dockerd_t", "hook dockerd_user_t"),
            *("hook podman_t", "hook podman_user_t"),
            "runtime dockerd_t",
        },
    ),
    "engines on the host start our programs, on the targeted policy": (
        ("targeted",),
        r"attribute oci_gpu_(hook|runtime)_caller has(.*)",
        {"hook container_runtime_t", "hook kubelet_t", "runtime container_runtime_t"},
    ),
    "engines and the entry script start the hook": (
        _BOTH,
        r"allow (\w+ oci_gpu_hook_\w+):process .*\btransition\b",
        {"oci_gpu_hook_caller oci_gpu_hook_started", "oci_gpu_hook_entry_t oci_gpu_hook_t"},
    ),
    "the runtime leaves to where it came from": (
        ("refpolicy",),
        r"type_transition (.*oci_gpu_runtime_.*):process(.*)",
        {"dockerd_t oci_gpu_runtime_exec_t oci_gpu_runtime_t;", "oci_gpu_runtime_t container_engine_exec_t dockerd_t;"},
    ),
    "the runtime leaves to where it came from, on the targeted policy": (
        ("targeted",),
        r"type_transition (.*oci_gpu_runtime_.*):process(.*)",
        {
            "container_runtime_t oci_gpu_runtime_exec_t oci_gpu_runtime_t;",
            "oci_gpu_runtime_t container_runtime_exec_t container_runtime_t;",
        },
    ),
    # NVML opens a GPU, if the setting gpu-memory-by lets it.
    "the hook opens a GPU by a boolean": (
        _BOTH,
        r"allow oci_gpu_\w+ xserver_misc_device_t:(.*)",
        {"chr_file { ioctl map open read write }; [ oci_gpu_hook_use_nvml ]:True"},
    ),
    # On v2 the files of this type are all processes' and all limits'.
    "the hook writes to cgroups by booleans": (
        _BOTH,
        r"allow (oci_gpu_\w+) cgroup_t:file (?:\{.*\bwrite\b.*\}|write);(.*)",
        {f"oci_gpu_hook_t [ {it} ]:True" for it in ("oci_gpu_hook_limit_memory", "oci_gpu_hook_use_cgroup_v1")},
    ),
    "booleans of the hook are off": (
        _BOTH,
        r"boolean oci_gpu_hook_(.*)",
        {"limit_memory false", "use_cgroup_v1 false", "use_nvml false"},
    ),
    # BuildKit's folder of bundles has the type of image layers there.
    "the runtime makes no file of an image's": (
        ("targeted",),
        r"allow oci_gpu_runtime_t container_ro_file_t:(.*)",
        {"dir { add_name getattr open read remove_name search write };", "file { getattr ioctl open read unlink };"},
    ),
    "our domains read what the runtime makes": (
        ("targeted",),
        r"allow (\S+) oci_gpu_runtime_bundle_t:",
        {"oci_gpu_hook_domain", "oci_gpu_runtime_t"},
    ),
    # On the policy that has a domain for kubelet; the engine's is another, and takes a boolean.
    "agents connect to kubelet": (
        ("targeted",),
        r"allow (\w+ (?:kubelet_t|container_runtime_domain)):unix_stream_socket connectto;(.*)",
        {
            "nvidia_agent_t kubelet_t [ nvidia_agent_use_kubelet ]:True",
            "nvidia_agent_t container_runtime_domain [ nvidia_agent_use_engines_kubelet ]:True",
        },
    ),
}


@pytest.mark.parametrize("what", ALONE)
def test_in_the_lists_these_alone_do(what: str) -> None:
    names, pattern, alone = ALONE[what]
    for name in names:
        found = {"".join(match.groups()) for match in map(re.compile(pattern).match, expected.read(name)) if match}
        assert found == alone


@pytest.mark.parametrize("source", ["container_t", "nvidia_container_t", "nvidia_agent_t"])
def test_no_container_reads_what_the_runtime_makes(ours: str, source: str) -> None:
    """By a rule for all files, if by any: engines' and people's."""
    found = rules.permissions(ours, source, "-t", "oci_gpu_runtime_bundle_t")
    assert not {item for item in found if item.split(":")[1] in ("open", "read", "write", "append")} - {"dir:open"}


_PASSED = "dir:getattr dir:search lnk_file:getattr lnk_file:read"
SEEN = {
    # A user's folder is passed and not read.
    **dict.fromkeys(("user_tmp_t", "user_home_t", "user_home_dir_t"), _PASSED),
    # Of PID 1 only its namespaces are seen: `open` would open its environment as well.
    "init_t": "dir:search file:read lnk_file:read",
}


@pytest.mark.parametrize("target", SEEN)
def test_what_the_hook_sees_of_others(ours: str, target: str) -> None:
    found = rules.permissions(ours, "oci_gpu_hook_t", "-t", target)
    assert {item for item in found if item.startswith(("dir:", "file:", "lnk_file:"))} == {*SEEN[target].split()}
