# SPDX-License-Identifier: Apache-2.0
"""What the domains of the hook, of its entry script and of the runtime may do, and what they may not.

Must not load a policy, or need SELinux in the kernel that runs it.
"""

from __future__ import annotations

import re

import pytest

from tests.policy import expected, rules


def test_the_entry_script_is_started_from_engines_on_the_host_and_from_nothing_else() -> None:
    """container_engine_t is the host's engine on refpolicy, and an engine inside a container on the targeted policy."""
    entered = "type_transition {} oci_gpu_hook_exec_t:process oci_gpu_hook_entry_t;"
    refpolicy, targeted = expected.read("refpolicy"), expected.read("targeted")
    assert entered.format("container_engine_t") in refpolicy
    assert entered.format("podman_t") in refpolicy
    assert entered.format("container_runtime_t") in targeted
    assert not [line for line in targeted if line.startswith("type_transition container_engine_t ")]
    assert "attribute oci_gpu_hook_caller has container_engine_t" not in targeted


@pytest.mark.parametrize("name", ["refpolicy", "targeted"])
def test_the_hook_is_entered_from_its_entry_script_alone(name: str) -> None:
    listed = expected.read(name)
    assert "type_transition oci_gpu_hook_entry_t bin_t:process oci_gpu_hook_t;" in listed
    into = re.compile(r"allow (\S+) (oci_gpu_hook_\w+):process .*\btransition\b")
    assert {match.groups() for match in map(into.match, listed) if match} == {
        ("oci_gpu_hook_caller", "oci_gpu_hook_entry_t"),
        ("oci_gpu_hook_entry_t", "oci_gpu_hook_t"),
    }


def test_the_entry_script_starts_the_hook_and_does_nothing_else(ours: str) -> None:
    """Not even what it starts may stay in its domain."""
    found = rules.permissions(ours, "oci_gpu_hook_entry_t")
    assert "file:execute_no_trans" not in found
    assert {item for item in found if item.startswith(("capability", "cap_userns", "bpf"))} == {
        "capability:dac_read_search",
        "cap_userns:dac_read_search",
    }
    into = rules.rules(ours, "-s", "oci_gpu_hook_entry_t", "-c", "process", "-p", "transition")
    assert list(into) == ["allow oci_gpu_hook_entry_t oci_gpu_hook_t:process transition;"]
    reading = ("getattr", "open", "read", "search", "execute", "map", "ioctl", "lock")
    for target in ("etc_t", "bin_t", "lib_t", "container_file_t", "oci_gpu_hook_state_t"):
        for item in rules.permissions(ours, "oci_gpu_hook_entry_t", "-t", target):
            assert item.split(":")[1] in reading, (target, item)


# NVML, which limits GPU memory if a setting lets it.
BY_NVML = (
    "allow oci_gpu_hook_t xserver_misc_device_t:chr_file { ioctl map open read write }; [ oci_gpu_hook_use_nvml ]:True"
)


def test_the_hook_starts_no_program_opens_no_device_and_uses_no_network(ours: str) -> None:
    found = rules.permissions(ours, "oci_gpu_hook_t")
    assert "file:execute_no_trans" not in found
    assert not found & {"process:transition", "process:dyntransition", "process:setexec", "process:setcurrent"}
    sockets = {item for item in found if item.endswith("_socket:create")}
    assert sockets <= {"unix_stream_socket:create", "unix_dgram_socket:create"}
    opened = rules.rules(ours, "-s", "oci_gpu_hook_t", "-c", "chr_file", "-p", "open")
    # What every domain may open: the likes of /dev/null.
    assert {line for line in opened if not line.startswith("allow domain ")} == {
        "allow oci_gpu_hook_t urandom_device_t:chr_file { getattr ioctl open read };",
        BY_NVML,
    }


def test_the_hook_opens_a_gpu_by_a_boolean_alone_which_is_off() -> None:
    """NVML does, if the setting gpu-memory-by lets it."""
    for name in ("refpolicy", "targeted"):
        listed = expected.read(name)
        assert "boolean oci_gpu_hook_use_nvml false" in listed
        assert [line for line in listed if line.startswith("allow oci_gpu_hook_t xserver_misc_device_t:")] == [BY_NVML]


@pytest.mark.parametrize(
    ("name", "engine", "program"),
    [
        ("refpolicy", "dockerd_t", "container_engine_exec_t"),
        ("targeted", "container_runtime_t", "container_runtime_exec_t"),
    ],
)
def test_the_runtime_is_entered_from_dockerd_and_leaves_to_where_it_came_from(
    name: str, engine: str, program: str
) -> None:
    listed = expected.read(name)
    assert f"attribute oci_gpu_runtime_caller has {engine}" in listed
    changes = [line for line in listed if re.match(r"type_transition \S+ \S+:process ", line)]
    assert {line for line in changes if "oci_gpu_runtime" in line} == {
        f"type_transition {engine} oci_gpu_runtime_exec_t:process oci_gpu_runtime_t;",
        f"type_transition oci_gpu_runtime_t {program}:process {engine};",
    }


def test_what_the_engine_has_set_for_the_real_runtime_passes_the_runtimes_domain(ours: str) -> None:
    """Without these the real runtime would have the soft limits of the first process, and other signals ignored."""
    for source, target in (("dockerd_t", "oci_gpu_runtime_t"), ("oci_gpu_runtime_t", "dockerd_t")):
        found = rules.permissions(ours, source, "-t", target, "-c", "process,process2")
        assert found >= {"process:rlimitinh", "process:siginh", "process2:nnp_transition"}
        assert "process:noatsecure" not in found


def test_the_runtime_starts_python_and_the_real_runtime_and_has_no_power_of_its_own(ours: str) -> None:
    found = rules.permissions(ours, "oci_gpu_runtime_t")
    assert {item for item in found if item.startswith(("capability", "cap_userns", "bpf"))} == {
        "capability:dac_read_search",
        "cap_userns:dac_read_search",
    }
    assert not found & {"process:setexec", "process:setcurrent", "process:dyntransition"}
    # Every domain may make a pair of sockets.
    assert {item for item in found if item.endswith("_socket:create")} == {"unix_stream_socket:create"}
    into = rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "process", "-p", "transition")
    assert [line.split()[2] for line in into] == ["oci_gpu_runtime_caller:process"]
    stays = rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "file", "-p", "execute_no_trans")
    assert {line.split()[2] for line in stays} == {"bin_t:file"}
    opened = rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "chr_file,blk_file", "-p", "open")
    assert all(line.startswith("allow domain ") for line in opened)


def test_the_runtime_writes_in_bundles_alone(ours: str) -> None:
    changing = {"write", "append", "create", "unlink", "rename", "setattr", "add_name"}
    found = rules.allowing(rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "file,dir,lnk_file"))
    places = {(rule.source, rule.target) for rule in found if changing & rule.permissions}
    # Every domain may write to the files of its own type, which are in /proc.
    assert places - {("oci_gpu_runtime_t", "oci_gpu_runtime_t")} == {
        ("oci_gpu_runtime_t", "container_runtime_t"),
        ("oci_gpu_runtime_t", "container_var_lib_t"),
    }
    assert not {item for item in rules.permissions(ours, "oci_gpu_runtime_t") if "relabel" in item}


@pytest.mark.parametrize(
    "target",
    [
        "etc_t",
        "lib_t",
        "usr_t",
        "bin_t",
        "tmpfs_t",
        "xserver_misc_device_t",
        "device_t",
        # Where a user, a volume or a moved root may lead it.
        "var_t",
        "var_lib_t",
        "var_run_t",
        "tmp_t",
        "user_tmp_t",
        "user_home_t",
        "nvidia_mps_t",
        "nvidia_runtime_t",
        "container_ro_file_t",
    ],
)
def test_the_hook_changes_nothing_of_the_hosts(ours: str, target: str) -> None:
    changing = {"write", "append", "create", "unlink", "rename", "setattr", "relabelto", "relabelfrom", "add_name"}
    found = {item for item in rules.permissions(ours, "oci_gpu_hook_t", "-t", target) if item.split(":")[1] in changing}
    # Message queues are tmpfs_t files, which lie in a container's /dev/mqueue; folders of that type are the host's.
    allowed = {
        "tmpfs_t": {"file:relabelfrom", "file:relabelto", "filesystem:relabelfrom"},
        "xserver_misc_device_t": {"chr_file:write"},  # by a boolean: BY_NVML
    }
    assert found <= allowed.get(target, set())


def test_on_the_targeted_policy_the_hook_relabels_no_file_of_the_hosts_dev_shm() -> None:
    """Containers' message queues have a type of their own there."""
    relabels = re.compile(r"allow oci_gpu_hook_t (\S+):file .*\brelabel(from|to)\b")
    for name, of_tmpfs in (("targeted", set()), ("refpolicy", {"tmpfs_t"})):
        found = {match.group(1) for match in map(relabels.match, expected.read(name)) if match}
        assert found & {"tmpfs_t"} == of_tmpfs
        assert "container_file_t" in found


@pytest.mark.parametrize("name", ["refpolicy", "targeted"])
def test_the_hook_writes_to_cgroups_by_a_boolean_alone(name: str) -> None:
    """On v2 the files of this type are all processes' and all limits'."""
    booleans = ("oci_gpu_hook_limit_memory", "oci_gpu_hook_use_cgroup_v1")
    listed = expected.read(name)
    writing = re.compile(r"allow (oci_gpu_\w+) cgroup_t:file (?:\{.*\bwrite\b.*\}|write);(.*)")
    assert sorted(match.groups() for match in map(writing.match, listed) if match) == [
        ("oci_gpu_hook_t", f" [ {boolean} ]:True") for boolean in booleans
    ]
    assert {f"boolean {boolean} false" for boolean in booleans} <= set(listed)


def test_on_the_targeted_policy_the_runtime_makes_no_file_of_an_images(ours: str) -> None:
    """BuildKit's folder of bundles has the type of image layers there."""
    listed = expected.read("targeted")
    named = {line for line in listed if line.startswith("allow oci_gpu_runtime_t container_ro_file_t:")}
    assert named == {
        "allow oci_gpu_runtime_t container_ro_file_t:dir { add_name getattr open read remove_name search write };",
        "allow oci_gpu_runtime_t container_ro_file_t:file { getattr ioctl open read unlink };",
    }
    made = "oci_gpu_runtime_bundle_t"
    assert f"type_transition oci_gpu_runtime_t container_ro_file_t:file {made};" in listed
    readers = re.compile(rf"allow (\S+) {made}:")
    assert {match.group(1) for match in map(readers.match, listed) if match} == {
        "oci_gpu_hook_domain",
        "oci_gpu_runtime_t",
    }
    # By a rule for all files, if by any: engines' and people's.
    for source in ("container_t", "nvidia_container_t", "nvidia_agent_t"):
        found = rules.permissions(ours, source, "-t", made)
        assert not {item for item in found if item.split(":")[1] in ("open", "read", "write", "append")} - {"dir:open"}


@pytest.mark.parametrize("target", ["user_tmp_t", "user_home_t", "user_home_dir_t"])
def test_a_users_folder_is_passed_and_not_read(ours: str, target: str) -> None:
    found = rules.permissions(ours, "oci_gpu_hook_t", "-t", target)
    assert {item for item in found if item.startswith(("dir:", "file:"))} == {"dir:getattr", "dir:search"}


def test_of_pid_1_only_its_namespaces_are_seen(ours: str) -> None:
    """`open` would open its environment as well."""
    found = rules.permissions(ours, "oci_gpu_hook_t", "-t", "init_t")
    assert {item for item in found if item.startswith(("dir:", "file:", "lnk_file:"))} == {
        "dir:search",
        "file:read",
        "lnk_file:read",
    }
