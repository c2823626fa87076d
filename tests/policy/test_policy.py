# SPDX-License-Identifier: Apache-2.0
"""What our policy modules grant, and what they do not, by sesearch and seinfo on binary policies.

semodule(8) says nothing of an optional block that it drops, so nothing here trusts its exit status.
Must not load a policy, or need SELinux in the kernel that runs it.
"""

from __future__ import annotations

import functools
import re

import pytest

from tests.policy import compare, debian, expected, policies, rules, standin

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
# Where a policy has such a domain: Debian 13's.
KUBELETS = {
    "allow THIS kubelet_t:unix_stream_socket connectto; [ nvidia_agent_use_kubelet ]:True",
    "allow kubelet_t THIS:unix_stream_socket connectto;",
}
# What every pod there may do, but no agent: to some of the host's files, and to connect to other pods.
PODS = "kubernetes_container_domain"
PODS_OWN = re.compile(
    "to (container_log|container_runtime|container_var_lib|kubernetes_config|kubernetes_plugin)_t:"
    "|(to|by) [a-z_]+:unix_stream_socket connectto$"
)
# The same of nvidia_agent_t.
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
# For two types that are compared with container_t.
concerning = functools.lru_cache(rules.concerning)


def test_two_types_are_compared_by_what_they_may_do() -> None:
    """However the rules are split, and whether a boolean lets one do what the other always may."""
    file = ("to", "a_t", "file")
    split = {(*file, ""): {"read"}, (*file, "[ b ]:True"): {"write"}}
    whole = {(*file, ""): {"read", "write"}}
    assert compare.lacking(split, whole) == []
    assert compare.lacking(whole, split) == ["to a_t:file write"]


@pytest.mark.parametrize(
    ("name", "more"), [("nvidia_container_t", MORE_THAN_CONTAINER_T), ("nvidia_agent_t", AGENT_MORE_THAN_CONTAINER_T)]
)
def test_on_a_policy_of_any_age_our_type_may_do_what_container_t_may_and_the_listed(
    ours: str, name: str, more: set[str]
) -> None:
    plain, confined = [compare.permitted(ours, it) for it in ("container_t", name)]
    known = "type kubelet_t" in rules.memberships(ours) and name == "nvidia_agent_t"
    allowed = compare.listed(ours, more | (KUBELETS if known else set()))
    both = {key: plain.get(key, set()) | allowed.get(key, set()) for key in {*plain, *allowed}}
    missing = compare.lacking(plain, confined)
    gone = rules.attributes(ours, "container_t") ^ rules.attributes(ours, name)
    if name == "nvidia_agent_t":
        missing, gone = [it for it in missing if not PODS_OWN.match(it)], gone - {PODS}
    assert (missing, sorted(gone)) == ([], [])
    assert compare.lacking(confined, both) == []
    assert compare.lacking(allowed, confined) == []


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


@pytest.mark.parametrize(
    ("name", "more"), [("nvidia_container_t", MORE_THAN_CONTAINER_T), ("nvidia_agent_t", AGENT_MORE_THAN_CONTAINER_T)]
)
def test_our_type_is_container_t_and_the_listed_rules(ours: str, name: str, more: set[str]) -> None:
    plain, confined = (concerning(ours, it) for it in ("container_t", name))
    # One rule for a process's own files has both types' names in it: container_file_t's entrypoint.
    assert confined - plain == more
    assert plain - confined == set()
    assert rules.attributes(ours, name) == rules.attributes(ours, "container_t")


@pytest.mark.parametrize(("number", "name"), [(1, "systemd_conf_t"), (2, "unconfined_t")])
def test_a_name_that_a_policy_lacks_takes_its_own_block_alone(number: int, name: str) -> None:
    """CentOS Stream 9's policy has no systemd_conf_t, and refpolicy without its module unconfined no such domain."""
    names = expected.stand_ins()[number]
    named = (f"(type {name})\n", f"(roletype object_r {name})\n")
    lines = [line for line in names.splitlines(keepends=True) if line not in named]
    added = []
    for standing in (names, "".join(lines).replace(f" {name}", "")):
        base, ours_there = (standin.compiled(standing), standin.compiled(standing, *policies.texts().values()))
        assert base is not None
        assert ours_there is not None
        added.append(ours_there.lines - base.lines)
    gone = added[0] - added[1]
    assert gone == {line for line in added[0] if re.search(rf"\b{name}\b", line)}
    assert gone


@pytest.mark.parametrize("name", ["container_use_mknod", "container_use_sysadmin", "container_use_userns_all_caps"])
def test_our_type_is_bounded_though_a_boolean_is_called_otherwise(name: str) -> None:
    standing = expected.stand_ins()[2].replace(f"(boolean {name} false)\n", "")
    found = standin.compiled(standing, *policies.texts().values())
    assert found is not None
    own = [line for line in found.lines if line.startswith("allow nvidia_container_t nvidia_container_t:capability ")]
    assert own
    assert [line for line in own if "sys_admin" in line and "container_use_" not in line] == []


@pytest.mark.parametrize("user", ["user_t", "staff_t"])
def test_a_confined_user_makes_no_folder_of_mps(ours: str, user: str) -> None:
    made = rules.rules(ours, "-s", user, "-t", "tmp_t", "-c", "dir")
    assert {line for line in made if line.startswith("type_transition ")} == {
        f"type_transition {user} tmp_t:dir user_tmp_t;"
    }
    assert not rules.permissions(ours, user, "-t", "nvidia_mps_t", "-p", "relabelto")


def _label(root: str, path: str, mode: str) -> str:
    return debian.run("matchpathcon", "-n", "-m", mode, "-f", debian.file_contexts(root), path).strip()


def test_file_contexts_agree_with_the_base_policys() -> None:
    """Where both say something about a node they say the same: which of them wins then never matters."""
    plain = "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset nvidia-nvswitch0 nvidia-nvswitchctl"
    for name in (*plain.split(), "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0"):
        labels = [_label(root, f"/dev/{name}", "chardev") for root in policies.build()]
        assert labels == ["system_u:object_r:xserver_misc_device_t:s0"] * 2, name


# What no package has; of what one has: test_store.
LATER = {
    "/run/oci-gpu-hook/inventory": ("file", "oci_gpu_hook_state_t"),
    "/run/nvidia-persistenced/socket": ("socket", "nvidia_runtime_t"),
    "/etc/oci-gpu-hook.conf.d/50-site.conf": ("file", "etc_t"),
    "/tmp/nvidia-mps/control": ("pipe", "nvidia_mps_t"),
    "/etc/kubernetes/node-feature-discovery/features.d": ("dir", "nvidia_feature_t"),
    "/etc/kubernetes/node-feature-discovery/features.d/gfd": ("file", "nvidia_feature_t"),
    "/etc/kubernetes/node-feature-discovery": ("dir", "etc_t"),
}


def test_files_that_come_later_have_their_labels() -> None:
    for path, (mode, label) in LATER.items():
        assert f":{label}:" in _label(policies.build().ours, path, mode), path


def test_the_manuals_tables_are_what_the_policies_say() -> None:
    with open(expected.MANUAL, encoding="utf-8") as file:
        text = file.read()
    for name, found in expected.tables().items():
        assert expected.in_manual(name, found) in text
