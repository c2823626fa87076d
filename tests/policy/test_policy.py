# SPDX-License-Identifier: Apache-2.0
"""What our policy modules grant, and what they do not, by sesearch and seinfo on binary policies.

semodule(8) says nothing of an optional block that it drops, so nothing here trusts its exit status.
Must not load a policy, or need SELinux in the kernel that runs it.
"""

from __future__ import annotations

import functools
import re

import pytest

from tests.policy import compare, debian, expected, policies, rules, standin, table

BLOCKS = [
    (name, block) for name, text in policies.texts().items() for block in standin.blocks(text)
]

# What nvidia_container_t may do that container_t may not, on refpolicy: this and nothing else.
MORE_THAN_CONTAINER_T = {
    "allow THIS xserver_misc_device_t:chr_file { append getattr ioctl lock map open read write };",
    "allow THIS container_file_t:chr_file map;",
    "allow THIS dri_device_t:chr_file { append getattr ioctl lock map open read write };"
    " [ nvidia_container_use_dri ]:True",
    "allow THIS nvidia_runtime_t:dir { getattr open read search };",
    "allow THIS nvidia_runtime_t:sock_file { append getattr open write };",
    "allow THIS nvidia_service_domain:unix_stream_socket connectto;",
    "allow THIS nvidia_mps_t:dir { getattr open read search }; [ nvidia_container_use_mps ]:True",
    "allow THIS nvidia_mps_t:file { getattr lock open read }; [ nvidia_container_use_mps ]:True",
    "allow THIS nvidia_mps_t:fifo_file { append getattr open read write }; [ nvidia_container_use_mps ]:True",
    "allow THIS nvidia_mps_t:sock_file { getattr open read write }; [ nvidia_container_use_mps ]:True",
    "allow THIS nvidia_mps_domain:unix_stream_socket connectto; [ nvidia_container_use_mps ]:True",
    "allow THIS nvidia_mps_domain:fd use; [ nvidia_container_use_mps ]:True",
    "allow THIS tmpfs_t:dir { getattr open read search }; [ nvidia_container_use_mps ]:True",
    "allow THIS tmpfs_t:file { getattr map open read write }; [ nvidia_container_use_mps ]:True",
    "type_transition THIS tmpfs_t:file container_file_t;",
}
# The same of nvidia_agent_t.  Rules for kubelet_t are not here: this policy has no such domain.
AGENT_MORE_THAN_CONTAINER_T = {
    *(line for line in MORE_THAN_CONTAINER_T if not re.search("_use_dri|_use_mps", line)),
    "allow nvidia_service_domain THIS:unix_stream_socket connectto;",
    "allow THIS container_file_t:dir watch;",
    "allow THIS container_var_lib_t:dir { getattr search }; [ nvidia_agent_use_kubelet ]:True",
    "allow THIS container_var_lib_t:sock_file { getattr write }; [ nvidia_agent_use_kubelet ]:True",
    "allow THIS nvidia_feature_t:dir"
    " { add_name create getattr open read remove_name rmdir search setattr write };"
    " [ nvidia_agent_write_features ]:True",
    "allow THIS nvidia_feature_t:file"
    " { append create getattr ioctl open read rename setattr unlink write };"
    " [ nvidia_agent_write_features ]:True",
}
# What no agent may do to the host, its own powers' neighbours first: type, class, and what would be too much.
CLOSED_TO_AGENTS = [
    ("container_var_lib_t", "dir", "write add_name remove_name read"),
    ("container_var_lib_t", "file", "open read write append create unlink"),
    ("container_var_lib_t", "sock_file", "create unlink rename setattr"),
    ("etc_t", "dir file", "write append create unlink rename add_name setattr"),
    ("shadow_t", "file", "open read"),
    # Docker's, containerd's and CRI-O's sockets, on refpolicy; and whatever lies below /run.
    ("container_runtime_t", "dir sock_file", "write add_name"),
    ("var_run_t", "sock_file", "write"),
    ("container_engine_t", "unix_stream_socket process", "connectto ptrace signal sigkill"),
    ("unconfined_t", "unix_stream_socket process", "connectto ptrace signal sigkill"),
    ("init_t", "process file", "ptrace signal sigkill open read"),
    ("initrc_t", "process file", "ptrace signal sigkill open read"),
    ("memory_device_t", "chr_file", "open read write"),
    ("fixed_disk_device_t", "blk_file", "open read write"),
    ("dri_device_t", "chr_file", "open read write"),
    ("nvidia_mps_t", "dir sock_file fifo_file", "read write connectto"),
    ("oci_gpu_hook_state_t", "dir file", "read write"),
    ("nvidia_feature_t", "dir file", "relabelfrom relabelto execute mounton link"),
]


_ALLOWED = re.compile(r"allow \S+ (\S+):(\w+) (?:\{([^}]*)\}|(\w+));")

# For two types that are compared with container_t.
concerning = functools.lru_cache(rules.concerning)


@pytest.fixture(scope="session")
def ours() -> str:
    """Debian's policy with our modules."""
    return debian.binary(policies.build().ours)


def permissions(policy: str, source: str, *query: str) -> set[str]:
    """CLASS:PERMISSION pairs, whatever the target."""
    found = set()
    for line in rules.rules(policy, "-s", source, *query):
        match = re.match(r"allow \S+ \S+:(\w+) (?:\{([^}]*)\}|(\w+));", line)
        if match:
            found |= {
                f"{match.group(1)}:{word}" for word in (match.group(2) or match.group(3)).split()
            }
    return found


def test_two_types_are_compared_by_what_they_may_do(ours: str) -> None:
    """However the rules are split, and whether a boolean lets one do what the other always may."""
    plain, confined = [compare.permitted(ours, it) for it in (compare.PLAIN, compare.CONFINED)]
    assert compare.lacking(plain, confined) == []
    more = compare.lacking(confined, plain)
    assert "to container_file_t:chr_file map" in more
    assert any("nvidia_container_use_mps" in line for line in more)
    file = ("to", "a_t", "file")
    split = {(*file, ""): {"read"}, (*file, "[ b ]:True"): {"write"}}
    whole = {(*file, ""): {"read", "write"}}
    assert compare.lacking(split, whole) == []
    assert compare.lacking(whole, split) == ["to a_t:file write"]


def test_the_modules_add_to_debians_policy_exactly_what_is_listed() -> None:
    assert expected.added_to_refpolicy() == expected.read("refpolicy")


def test_the_modules_add_to_the_targeted_policys_names_exactly_what_is_listed() -> None:
    assert expected.added_to_targeted() == expected.read("targeted")


@functools.lru_cache
def whole(standing: str) -> standin.Compiled | None:
    """The policy of a stand-in with all our modules."""
    return standin.compiled(standing, *policies.texts().values(), listed=False)


@pytest.mark.parametrize(("module", "block"), BLOCKS, ids=[block.name for _, block in BLOCKS])
def test_a_block_that_is_gone_is_missed(module: str, block: standin.Block) -> None:
    """On a policy that has its names, each block adds something that the lists above have."""
    texts = policies.texts()
    without = {**texts, module: texts[module][: block.start] + texts[module][block.end :]}
    assert any(
        whole(standing) != standin.compiled(standing, *without.values(), listed=False)
        for standing in expected.stand_ins()
    )


@pytest.mark.parametrize("name", policies.MODULES)
def test_each_module_stands_alone(name: str) -> None:
    for standing in expected.stand_ins():
        assert standin.compiled(standing, policies.texts()[name], listed=False) is not None


def test_without_its_mandatory_names_a_module_is_refused_loudly() -> None:
    prelude = standin.prelude(debian.binary(policies.build().base))
    lines = standin.targeted().splitlines(keepends=True)
    names = "".join(line for line in lines if "mcs_constrained_type" not in line)
    assert standin.compiled(prelude, names, listed=False) is not None
    assert (
        standin.compiled(prelude, names, policies.texts()["nvidia_container"], listed=False) is None
    )


def test_nvidia_container_t_is_container_t_and_the_listed_rules(ours: str) -> None:
    plain, confined = (
        concerning(ours, "container_t"),
        concerning(ours, "nvidia_container_t"),
    )
    # One rule for a process's own files has both types' names in it: container_file_t's entrypoint.
    assert confined - plain == MORE_THAN_CONTAINER_T
    assert plain - confined == set()
    assert rules.attributes(ours, "nvidia_container_t") == rules.attributes(ours, "container_t")


def test_nvidia_agent_t_is_container_t_and_the_listed_rules(ours: str) -> None:
    plain, agent = (concerning(ours, name) for name in ("container_t", "nvidia_agent_t"))
    assert agent - plain == AGENT_MORE_THAN_CONTAINER_T
    assert plain - agent == set()
    assert rules.attributes(ours, "nvidia_agent_t") == rules.attributes(ours, "container_t")


def test_an_agent_reaches_nothing_else_of_the_host(ours: str) -> None:
    members = rules.memberships(ours)
    granted = [
        (match.group(1), match.group(2), {*(match.group(3) or match.group(4)).split()})
        for match in map(_ALLOWED.match, rules.rules(ours, "-s", "nvidia_agent_t"))
        if match
    ]
    for target, kinds, closed in CLOSED_TO_AGENTS:
        assert f"type {target}" in members
        for name, kind, words in granted:
            if kind in kinds.split() and (
                name == target or f"attribute {name} has {target}" in members
            ):
                assert not words & {*closed.split()}, (target, name, kind)


@pytest.mark.parametrize("name", ["refpolicy", "targeted"])
def test_features_that_an_agent_writes_can_be_read_by_every_container(name: str) -> None:
    """Its own categories would hide them from Node Feature Discovery."""
    listed = expected.read(name)
    for kind in ("dir", "file"):
        assert f"range_transition nvidia_agent_t nvidia_feature_t:{kind} s0;" in listed
    assert "allow container_domain nvidia_feature_t:file { getattr open read };" in listed


def test_kubelets_sockets_are_the_agents_alone() -> None:
    """On the policy that has a domain for kubelet; the engine's is another, and takes a boolean."""
    asked = re.compile(r"allow (\w+) (\w+):unix_stream_socket connectto;(.*)")
    found = {match.groups() for match in map(asked.match, expected.read("targeted")) if match}
    kubelets = {"kubelet_t", "container_runtime_domain"}
    assert {(source, *rest) for source, *rest in found if rest[0] in kubelets} == {
        ("nvidia_agent_t", "kubelet_t", " [ nvidia_agent_use_kubelet ]:True"),
        (
            "nvidia_agent_t",
            "container_runtime_domain",
            " [ nvidia_agent_use_engines_kubelet ]:True",
        ),
    }
    assert ("kubelet_t", "nvidia_agent_t", "") in found


@pytest.mark.parametrize("name", ["nvidia_container_t", "nvidia_agent_t"])
def test_levels_hold_for_our_types(ours: str, name: str) -> None:
    assert "mcs_constrained_type" in rules.attributes(ours, name)


@pytest.mark.parametrize(
    "target", ["device_t", "fixed_disk_device_t", "memory_device_t", "event_device_t"]
)
def test_nvidia_container_t_opens_no_other_device(ours: str, target: str) -> None:
    found = permissions(ours, "nvidia_container_t", "-t", target, "-c", "chr_file,blk_file")
    assert not found & {
        f"{kind}:{word}" for kind in ("chr_file", "blk_file") for word in ("open", "read", "write")
    }


def test_on_the_targeted_policy_no_capability_comes_from_the_other_ones_rules() -> None:
    lines = {
        line
        for line in expected.read("targeted")
        if re.match(r"allow nvidia_(container|agent)_t \S+:capability ", line)
    }
    assert lines == {
        f"allow {name} {name}:capability {capability}; [ {boolean} ]:True"
        for name in ("nvidia_container_t", "nvidia_agent_t")
        for capability, boolean in (
            ("audit_write", "virt_sandbox_use_audit"),
            ("sys_admin", "virt_sandbox_use_sys_admin"),
        )
    }


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
    found = permissions(ours, "oci_gpu_hook_entry_t")
    assert "file:execute_no_trans" not in found
    assert {item for item in found if item.startswith(("capability", "cap_userns", "bpf"))} == {
        "capability:dac_read_search",
        "cap_userns:dac_read_search",
    }
    into = rules.rules(ours, "-s", "oci_gpu_hook_entry_t", "-c", "process", "-p", "transition")
    assert list(into) == ["allow oci_gpu_hook_entry_t oci_gpu_hook_t:process transition;"]
    reading = ("getattr", "open", "read", "search", "execute", "map", "ioctl", "lock")
    for target in ("etc_t", "bin_t", "lib_t", "container_file_t", "oci_gpu_hook_state_t"):
        for item in permissions(ours, "oci_gpu_hook_entry_t", "-t", target):
            assert item.split(":")[1] in reading, (target, item)


def test_the_hook_starts_no_program_opens_no_device_and_uses_no_network(ours: str) -> None:
    found = permissions(ours, "oci_gpu_hook_t")
    assert "file:execute_no_trans" not in found
    assert not found & {
        "process:transition",
        "process:dyntransition",
        "process:setexec",
        "process:setcurrent",
    }
    sockets = {item for item in found if item.endswith("_socket:create")}
    assert sockets <= {"unix_stream_socket:create", "unix_dgram_socket:create"}
    opened = rules.rules(ours, "-s", "oci_gpu_hook_t", "-c", "chr_file", "-p", "open")
    # What every domain may open: the likes of /dev/null.
    assert {line for line in opened if not line.startswith("allow domain ")} == {
        "allow oci_gpu_hook_t urandom_device_t:chr_file { getattr ioctl open read };"
    }


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
    assert {line for line in listed if "oci_gpu_runtime" in line and "type_transition" in line} == {
        f"type_transition {engine} oci_gpu_runtime_exec_t:process oci_gpu_runtime_t;",
        f"type_transition oci_gpu_runtime_t {program}:process {engine};",
    }


def test_what_the_engine_has_set_for_the_real_runtime_passes_the_runtimes_domain(ours: str) -> None:
    """Without these the real runtime would have the soft limits of the first process, and other signals ignored."""
    for source, target in (("dockerd_t", "oci_gpu_runtime_t"), ("oci_gpu_runtime_t", "dockerd_t")):
        found = permissions(ours, source, "-t", target, "-c", "process,process2")
        assert found >= {"process:rlimitinh", "process:siginh", "process2:nnp_transition"}
        assert "process:noatsecure" not in found


def test_the_runtime_starts_python_and_the_real_runtime_and_has_no_power_of_its_own(
    ours: str,
) -> None:
    found = permissions(ours, "oci_gpu_runtime_t")
    assert {item for item in found if item.startswith(("capability", "cap_userns", "bpf"))} == {
        "capability:dac_read_search",
        "cap_userns:dac_read_search",
    }
    assert not found & {"process:setexec", "process:setcurrent", "process:dyntransition"}
    # Every domain may make a pair of sockets.
    assert {item for item in found if item.endswith("_socket:create")} == {
        "unix_stream_socket:create"
    }
    into = rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "process", "-p", "transition")
    assert [line.split()[2] for line in into] == ["oci_gpu_runtime_caller:process"]
    stays = rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "file", "-p", "execute_no_trans")
    assert {line.split()[2] for line in stays} == {"bin_t:file"}
    opened = rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "chr_file,blk_file", "-p", "open")
    assert all(line.startswith("allow domain ") for line in opened)


def test_the_runtime_writes_in_bundles_alone(ours: str) -> None:
    changing = {"write", "append", "create", "unlink", "rename", "setattr", "add_name"}
    places = set()
    for line in rules.rules(ours, "-s", "oci_gpu_runtime_t", "-c", "file,dir,lnk_file"):
        match = re.match(r"allow (\S+) (\S+):\w+ (?:\{([^}]*)\}|(\w+));", line)
        if match and changing & {*(match.group(3) or match.group(4)).split()}:
            places.add((match.group(1), match.group(2)))
    # Every domain may write to the files of its own type, which are in /proc.
    assert places - {("oci_gpu_runtime_t", "oci_gpu_runtime_t")} == {
        ("oci_gpu_runtime_t", "container_runtime_t"),
        ("oci_gpu_runtime_t", "container_var_lib_t"),
    }
    assert not {item for item in permissions(ours, "oci_gpu_runtime_t") if "relabel" in item}


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
    changing = {
        "write",
        "append",
        "create",
        "unlink",
        "rename",
        "setattr",
        "relabelto",
        "relabelfrom",
        "add_name",
    }
    found = {
        item
        for item in permissions(ours, "oci_gpu_hook_t", "-t", target)
        if item.split(":")[1] in changing
    }
    # Message queues are tmpfs_t files, which lie in a container's /dev/mqueue; folders of that type are the host's.
    assert found <= (
        {"file:relabelfrom", "file:relabelto", "filesystem:relabelfrom"}
        if target == "tmpfs_t"
        else set()
    )


@pytest.mark.parametrize("target", ["user_tmp_t", "user_home_t", "user_home_dir_t"])
def test_a_users_folder_is_passed_and_not_read(ours: str, target: str) -> None:
    found = permissions(ours, "oci_gpu_hook_t", "-t", target)
    assert {item for item in found if item.startswith(("dir:", "file:"))} == {
        "dir:getattr",
        "dir:search",
    }


@pytest.mark.parametrize("user", ["user_t", "staff_t"])
def test_a_confined_user_makes_no_folder_of_mps(ours: str, user: str) -> None:
    made = rules.rules(ours, "-s", user, "-t", "tmp_t", "-c", "dir")
    assert {line for line in made if line.startswith("type_transition ")} == {
        f"type_transition {user} tmp_t:dir user_tmp_t;"
    }
    assert not permissions(ours, user, "-t", "nvidia_mps_t", "-p", "relabelto")


def test_of_pid_1_only_its_namespaces_are_seen(ours: str) -> None:
    """`open` would open its environment as well."""
    found = permissions(ours, "oci_gpu_hook_t", "-t", "init_t")
    assert {item for item in found if item.startswith(("dir:", "file:", "lnk_file:"))} == {
        "dir:search",
        "file:read",
        "lnk_file:read",
    }


def test_file_contexts_agree_with_the_base_policys(ours: str) -> None:
    """Where both say something about a node they say the same: which of them wins then never matters."""
    for path in (
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia-nvswitch0",
        "/dev/nvidia-nvswitchctl",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps-imex-channels/channel0",
    ):
        built = policies.build()
        labels = [
            debian.run(
                "matchpathcon", "-n", "-m", "chardev", "-f", f"{root}/{debian.FILE_CONTEXTS}", path
            ).strip()
            for root in built
        ]
        assert labels == ["system_u:object_r:xserver_misc_device_t:s0"] * 2, path


@pytest.mark.parametrize(
    ("path", "mode", "label"),
    [
        ("/usr/libexec/oci/hooks.d/oci-gpu-hook", "file", "oci_gpu_hook_exec_t"),
        ("/usr/bin/oci-gpu-runtime", "file", "oci_gpu_runtime_exec_t"),
        ("/usr/bin/oci-gpu-hook", "file", "bin_t"),
        ("/usr/lib/oci-gpu-hook/oci_gpu_hook/hook.py", "file", "lib_t"),
        ("/run/oci-gpu-hook/inventory", "file", "oci_gpu_hook_state_t"),
        ("/run/nvidia-persistenced/socket", "sock_file", "nvidia_runtime_t"),
        ("/usr/lib/oci-gpu-hook/oci_gpu_hook/__linked__/modules.cpython-39", "file", "lib_t"),
        ("/run/oci-gpu-hook", "dir", "oci_gpu_hook_state_t"),
        ("/etc/oci-gpu-hook.conf", "file", "etc_t"),
        ("/var/lib/oci-gpu-hook/volume", "dir", "container_ro_file_t"),
        ("/var/lib/oci-gpu-hook/volume/.580-0/lib64/libcuda.so.580", "file", "container_ro_file_t"),
        ("/etc/oci-gpu-hook.conf.d", "dir", "etc_t"),
        ("/etc/oci-gpu-hook.conf.d/50-site.conf", "file", "etc_t"),
        ("/tmp/nvidia-mps/control", "pipe", "nvidia_mps_t"),
        ("/etc/kubernetes/node-feature-discovery/features.d", "dir", "nvidia_feature_t"),
        ("/etc/kubernetes/node-feature-discovery/features.d/gfd", "file", "nvidia_feature_t"),
        ("/etc/kubernetes/node-feature-discovery", "dir", "etc_t"),
    ],
)
def test_our_files_have_their_labels(path: str, mode: str, label: str) -> None:
    contexts = f"{policies.build().ours}/{debian.FILE_CONTEXTS}"
    kind = {"sock_file": "socket"}.get(mode, mode)
    assert f":{label}:" in debian.run("matchpathcon", "-n", "-m", kind, "-f", contexts, path)


def test_the_manuals_table_is_what_the_policy_says(ours: str) -> None:
    source = f"{policies.REPOSITORY}/packaging/man/oci_gpu_hook_selinux.8.rst"
    with open(source, encoding="utf-8") as file:
        text = file.read()
    assert f".. policy table\n\n{table.table(ours)}\n.. end of the policy table\n" in text
