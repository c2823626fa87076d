# SPDX-License-Identifier: Apache-2.0
"""What our policy modules grant, and what they do not, by sesearch and seinfo on binary policies.

semodule(8) says nothing of an optional block that it drops, so nothing here trusts its exit status.
Must not load a policy, or need SELinux in the kernel that runs it.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.policy import compare, debian, expected, policies, rules, standin, table
from tests.selinux.guest import policy as rows

BLOCKS = [(name, block) for name, text in policies.texts().items() for block in standin.blocks(text)]

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


# For two types that are compared with container_t.
concerning = functools.lru_cache(rules.concerning)


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
    assert standin.compiled(prelude, names, policies.texts()["nvidia_container"], listed=False) is None


def test_nvidia_container_t_is_container_t_and_the_listed_rules(ours: str) -> None:
    plain, confined = (concerning(ours, "container_t"), concerning(ours, "nvidia_container_t"))
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
    granted = rules.allowing(rules.rules(ours, "-s", "nvidia_agent_t"))
    for target, kinds, closed in CLOSED_TO_AGENTS:
        assert f"type {target}" in members
        for rule in granted:
            name = rule.target
            if rule.kind in kinds.split() and (name == target or f"attribute {name} has {target}" in members):
                assert not rule.permissions & {*closed.split()}, (target, rule)


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
        ("nvidia_agent_t", "container_runtime_domain", " [ nvidia_agent_use_engines_kubelet ]:True"),
    }
    assert ("kubelet_t", "nvidia_agent_t", "") in found


@pytest.mark.parametrize("name", ["refpolicy", "targeted"])
def test_agents_of_different_levels_do_not_connect_to_one_another(name: str) -> None:
    """The targeted policy asks no level of who connects, and an agent's socket there has its folder's."""
    constraint = (
        "mlsconstrain unix_stream_socket connectto"
        " (( h1 dom h2 or ( t1 != nvidia_agent_t ) or ( t2 != nvidia_agent_t ) ));"
    )
    assert constraint in expected.read(name)


@pytest.mark.parametrize("name", ["nvidia_container_t", "nvidia_agent_t"])
def test_on_the_targeted_policy_our_types_have_no_less_than_container_t(name: str) -> None:
    """What container-selinux gives to container_t itself, and not to an attribute of it."""
    listed = expected.read("targeted")
    granted = {(it.target, it.kind): it.permissions for it in rules.allowing(listed) if it.source == name}
    assert granted["container_file_t", "chr_file"] >= {"execute", "map"}
    listing = {"getattr", "open", "read", "search", "ioctl", "lock"}
    assert granted["container_var_run_t", "dir"] == {*listing, "mounton"}
    # And no more: the kernel's log is the host's.
    assert not [line for line in listed if "syslog_read" in line]


@pytest.mark.parametrize("name", ["nvidia_container_t", "nvidia_agent_t"])
def test_levels_hold_for_our_types(ours: str, name: str) -> None:
    assert "mcs_constrained_type" in rules.attributes(ours, name)


@pytest.mark.parametrize("target", ["device_t", "fixed_disk_device_t", "memory_device_t", "event_device_t"])
def test_nvidia_container_t_opens_no_other_device(ours: str, target: str) -> None:
    found = rules.permissions(ours, "nvidia_container_t", "-t", target, "-c", "chr_file,blk_file")
    assert not found & {f"{kind}:{word}" for kind in ("chr_file", "blk_file") for word in ("open", "read", "write")}


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


def test_a_name_that_a_policy_lacks_takes_its_own_block_alone() -> None:
    """CentOS Stream 9's policy has no systemd_conf_t."""
    listed = expected.added_to_targeted()
    lines = standin.targeted().splitlines(keepends=True)
    named = ("(type systemd_conf_t)\n", "(roletype object_r systemd_conf_t)\n")
    lacking = "".join(line for line in lines if line not in named).replace(" systemd_conf_t", "")
    standing = standin.prelude(debian.binary(policies.build().base)) + lacking
    base, ours_there = (standin.compiled(standing), standin.compiled(standing, *policies.texts().values()))
    assert base is not None
    assert ours_there is not None
    gone = listed - (ours_there.lines - base.lines)
    assert gone == {line for line in listed if "systemd_conf_t" in line}
    assert gone


@pytest.mark.parametrize("user", ["user_t", "staff_t"])
def test_a_confined_user_makes_no_folder_of_mps(ours: str, user: str) -> None:
    made = rules.rules(ours, "-s", user, "-t", "tmp_t", "-c", "dir")
    assert {line for line in made if line.startswith("type_transition ")} == {
        f"type_transition {user} tmp_t:dir user_tmp_t;"
    }
    assert not rules.permissions(ours, user, "-t", "nvidia_mps_t", "-p", "relabelto")


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
            debian.run("matchpathcon", "-n", "-m", "chardev", "-f", debian.file_contexts(root), path).strip()
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
        ("/etc/oci-gpu-hook.conf.d", "dir", "etc_t"),
        ("/etc/oci-gpu-hook.conf.d/50-site.conf", "file", "etc_t"),
        ("/tmp/nvidia-mps/control", "pipe", "nvidia_mps_t"),
        ("/etc/kubernetes/node-feature-discovery/features.d", "dir", "nvidia_feature_t"),
        ("/etc/kubernetes/node-feature-discovery/features.d/gfd", "file", "nvidia_feature_t"),
        ("/etc/kubernetes/node-feature-discovery", "dir", "etc_t"),
    ],
)
def test_our_files_have_their_labels(path: str, mode: str, label: str) -> None:
    contexts = debian.file_contexts(policies.build().ours)
    kind = {"sock_file": "socket"}.get(mode, mode)
    assert f":{label}:" in debian.run("matchpathcon", "-n", "-m", kind, "-f", contexts, path)


_IN_TMPFS = (
    table.Access("tmpfs_t", "dir", "search write add_name"),
    table.Access(table.MADE, "file", "create open read write"),
)
_IN_A_LAYER = (
    table.Access("container_ro_file_t", "dir", "write add_name remove_name"),
    table.Access("container_ro_file_t", "file", "unlink"),
)


def _gets(policy: table.Policy, source: str, *needs: table.Access) -> bool:
    """Whether the policy grants all of it, with its booleans as they are by default."""
    granted = [policy.grants(source, access) for access in needs]
    return all(it is not None and all(map(policy.is_default, it)) for it in granted)


@pytest.mark.parametrize(
    ("name", "data", "engines"),
    [("refpolicy", rows.REFPOLICY, "container_runtime_t"), ("targeted", rows.TARGETED, "container_var_run_t")],
)
def test_what_the_machines_rows_expect_of_a_policy_is_what_it_grants(
    ours: str, tmp_path: Path, name: str, data: rows.Policy, engines: str
) -> None:
    """The machine of tests/selinux runs on Debian's policy; on the targeted one if a store of it is given."""
    policy = table.Policy(ours if name == "refpolicy" else expected.targeted(str(tmp_path)))
    for source in ("container_t", "nvidia_container_t", "nvidia_agent_t"):
        listing = table.Access(engines, "dir", "open read")
        assert _gets(policy, source, listing) == (data.list_engines == "ok")
        mapping = table.Access("container_file_t", "chr_file", "map execute")
        assert _gets(policy, source, mapping) == (data.map_node == "ok")
        assert _gets(policy, source, *_IN_TMPFS) == (data.hosts_shm == "ok")
    dri = table.Access("dri_device_t", "chr_file", "open read")
    assert _gets(policy, "container_t", dri) == (data.dri == "ENXIO") == (not data.dri_boolean)
    relabelling = table.Access("tmpfs_t", "file", "relabelfrom")
    assert _gets(policy, "oci_gpu_hook_t", relabelling) == (data.relabels_shm == "ok")
    assert _gets(policy, "oci_gpu_runtime_t", *_IN_A_LAYER) == (data.runtime_in_layer == "ok")


@pytest.mark.parametrize("name", ["policy table", "table of powers"])
def test_the_manuals_tables_are_what_the_policies_say(name: str) -> None:
    with open(expected.MANUAL, encoding="utf-8") as file:
        text = file.read()
    assert expected.in_manual(name, expected.tables()[name]) in text
