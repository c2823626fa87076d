# SPDX-License-Identifier: Apache-2.0
"""The administrator's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.helpers import reset_ids, set_uid

from oci_gpu_hook import config
from oci_gpu_hook.errors import ConfigError, RequestError
from oci_gpu_hook.hook import SETTINGS
from oci_gpu_hook.request import CAPABILITIES

# Each key with a value that is not the default.
ALL_KEYS = {
    "device-cgroup": ("on", "on"),
    "ipc-labels": ("all", "all"),
    "ipc-context-mismatch": ("warn", "warn"),
    "accept-environment": ("privileged", "privileged"),
    "accept-volume-mounts": ("yes", True),
    "allowed-capabilities": ("utility, compute", ("utility", "compute")),
    "swarm-resources": ("A , B", ("A", "B")),
    "disable-requirements": ("yes", True),
    "driver-root": ("/run/nvidia/driver/", "/run/nvidia/driver"),
    "ignore-imex-channels": ("yes", True),
    "cuda-forward-compatibility": ("no", False),
    "records": ("no", False),
    "metrics": ("/var/lib/a.prom", "/var/lib/a.prom"),
}


def effective(text: str, **annotations: str) -> config.Config:
    """What a text means for a container of a `namespace` or an `image`."""
    names = {"namespace": "io.kubernetes.pod.namespace", "image": "io.container.image"}
    told = {names[key]: value for key, value in annotations.items()}
    return config.effective(config.parse(text, "file"), told)


def test_the_default_file_may_be_absent(tmp_path: Path) -> None:
    assert (
        config.read(str(tmp_path / "absent"), may_be_absent=True, annotations={}) == config.Config()
    )


@pytest.fixture()
def machine(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFilesystem]:
    """A machine's files, so that absolute paths can be tested; pyfakefs knows os, and not posix beneath it."""
    monkeypatch.setattr(config, "posix", os)
    yield fs
    reset_ids()


def test_the_default_file_is_read_where_it_is_there(machine: FakeFilesystem) -> None:
    assert config.read(SETTINGS, may_be_absent=True, annotations={}).device_cgroup == "auto"
    machine.create_file("/etc/oci-gpu-hook.conf", contents="device-cgroup = on\n")
    assert config.read(SETTINGS, may_be_absent=True, annotations={}).device_cgroup == "on"


def test_a_file_that_may_not_be_read_is_a_config_error(machine: FakeFilesystem) -> None:
    machine.create_dir("/etc/oci-gpu-hook.conf")
    with pytest.raises(ConfigError, match=r"cannot (open|read) /etc/oci-gpu-hook.conf"):
        config.read(SETTINGS, may_be_absent=True, annotations={})


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open"):
        config.read(str(tmp_path / "absent"), may_be_absent=False, annotations={})


def test_settings_comments_and_empty_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("# a comment\n\n  device-cgroup =  off \n")
    assert config.read(str(path), may_be_absent=False, annotations={}).device_cgroup == "off"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device-cgroup", "no 'key = value' line"),
        ("# fine\ndevice-cgroups = on", ":2: unknown key 'device-cgroups'"),
        ("device-cgroup = maybe", "allowed is one of auto, on, off"),
        ("device-cgroup =", "allowed is one of auto, on, off"),
        ("device_cgroup = on", "unknown key 'device_cgroup', did you mean 'device-cgroup'?"),
        ("drivr-root = /", "did you mean 'driver-root'?"),
        ("swarm-resource = A", "did you mean 'swarm-resources'?"),
        ("disable-require = yes", "did you mean 'disable-requirements'?"),
        ("Driver-Root = /", "did you mean 'driver-root'?"),
        ("= on", "unknown key ''"),
        ("\ufeffdriver-root = /", r"unknown key '\ufeffdriver-root'"),
        ("device-cgroup = on # yes", "device-cgroup is 'on # yes'"),
        ("device-cgroup = On", "device-cgroup is 'On'"),
        ('device-cgroup = "on"', "device-cgroup is '\"on\"'"),
        ("accept-volume-mounts = true", "allowed is one of yes, no"),
        ("accept-volume-mounts = 1", "allowed is one of yes, no"),
        ("disable-requirements = yes, no", "allowed is one of yes, no"),
        ("driver-root = driver", "'driver', which is no absolute path"),
        ("driver-root =", "'', which is no absolute path"),
        ("driver-root = /a\0b", r"'/a\x00b', which is no absolute path"),
        ("device-cgroup = \0", r"device-cgroup is '\x00'"),
        ("device\0-cgroup = on", r"unknown key 'device\x00-cgroup'"),
        ("swarm-resources = A B", "has 'A B', which names no variable"),
        ("swarm-resources = A, B=C", "has 'B=C', which names no variable"),
        ("swarm-resources = A\0", r"has 'A\x00', which names no variable"),
        ("allowed-capabilities =", "has empty, allowed are all, utility"),
        ("allowed-capabilities = compute, Video", "has 'Video', allowed are all, utility"),
        ("allowed-capabilities = compute utility", "has 'compute utility', allowed are"),
        ("\n\n[pod x]\n", ":3: '[pod x]' is no heading"),
        ("[namespace]", "'[namespace]' is no heading"),
        ("[namespace x", "'[namespace x' is no heading"),
        ("[", "'[' is no heading"),
        ("[image  ]", "'[image  ]' is no heading"),
        ("[image x]\ndriver-root = /", ":2: driver-root is for the whole host, not for one image"),
        ("[namespace x]\nswarm-resources = A", "is for the whole host, not for one namespace"),
        ("[namespace x]\nipc-labels = off", "is for the whole host, not for one namespace"),
        ("x" * 100_000 + " = 1", "unknown key 'xxx"),
        ("x" * 100_000, "is no 'key = value' line"),
        ("device-cgroup = " + "\x1b[1m" * 100_000, r"device-cgroup is '\x1b[1m"),
    ],
    ids=lambda value: ascii(value[:40]),
)
def test_a_mistake_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "/etc/oci-gpu-hook.conf")
    assert words in str(caught.value)
    assert str(caught.value).startswith("/etc/oci-gpu-hook.conf:")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_a_file_that_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError):
        config.read(str(path), may_be_absent=False, annotations={})


def test_every_key_sets_its_field() -> None:
    assert [key.replace("-", "_") for key in ALL_KEYS] == list(config.Config()._asdict())
    text = "\n".join([f"{key} = {value}" for key, (value, _) in ALL_KEYS.items()])
    found = effective(text)
    assert tuple(found) == tuple(value for _, value in ALL_KEYS.values())
    assert all(mine != default for mine, default in zip(found, config.Config()))


def test_every_key_that_may_differ_by_container_may_stand_below_a_heading() -> None:
    for key, (value, meant) in ALL_KEYS.items():
        if key in ("driver-root", "swarm-resources", "ipc-labels", "metrics"):
            continue
        for scope in ("namespace", "image"):
            text = f"[{scope} a/*]\n{key} = {value}"
            field = key.replace("-", "_")
            assert getattr(effective(text, **{scope: "a/b"}), field) == meant
            assert effective(text, **{scope: "b/a"}) == effective(text) == config.Config()


def test_the_namespace_is_said_after_the_image_and_both_after_everybody() -> None:
    text = """
    [namespace team]
    device-cgroup = off
    [image cuda*]
    device-cgroup = on
    accept-environment = privileged
    """
    assert effective(text, image="cuda:12").device_cgroup == "on"
    assert effective(text, namespace="team").device_cgroup == "off"
    both = effective(text, image="cuda:12", namespace="team")
    assert (both.device_cgroup, both.accept_environment) == ("off", "privileged")
    assert effective("[image *]\ndevice-cgroup = on") == config.Config(), "no image is named"


def test_a_line_below_a_heading_is_never_one_for_everybody() -> None:
    text = "[image x]\ndisable-requirements = yes\n# [end]\n\n"
    assert not effective(text).disable_requirements


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("a*", "abc", True),
        ("*c", "abc", True),
        ("a*c", "ac", True),
        ("ab*bc", "abc", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("**a**", "xax", True),
        ("[ab]", "a", False),
        ("?", "a", False),
        ("a*" * 2000, "a" * 10_000, True),
    ],
    ids=str,
)
def test_patterns_know_stars_only(pattern: str, text: str, expected: bool) -> None:
    assert config.matches(pattern, text) is expected


@pytest.fixture()
def with_drop_ins(tmp_path: Path) -> Path:
    path = tmp_path / "hook.conf"
    path.write_text("device-cgroup = on\ndriver-root = /main\n")
    Path(f"{path}.d").mkdir()
    return path


def drop_in(path: Path, name: str, text: str) -> None:
    Path(f"{path}.d", name).write_text(text)


def test_drop_ins_are_read_in_the_order_of_their_names_after_the_file(with_drop_ins: Path) -> None:
    drop_in(with_drop_ins, "9.conf", "driver-root = /nine")
    drop_in(with_drop_ins, "10.conf", "driver-root = /ten\ndevice-cgroup = off")
    for ignored in ("99.conf~", "99.confx", ".99.conf", "99"):
        drop_in(with_drop_ins, ignored, "no settings at all")
    found = config.settings(str(with_drop_ins), may_be_absent=False)
    assert [line.where.replace(str(with_drop_ins), "") for line in found] == [
        ":1",
        ":2",
        ".d/10.conf:1",
        ".d/10.conf:2",
        ".d/9.conf:1",
    ]
    read = config.effective(found, {})
    assert (read.driver_root, read.device_cgroup) == ("/nine", "off")


def test_many_drop_ins_are_read_in_order_too(with_drop_ins: Path) -> None:
    """No file system's own order is that of the names for so many."""
    names = [f"{number * 37 % 100:02}.conf" for number in range(100)]
    for name in names:
        drop_in(with_drop_ins, name, "")
    _, *found = config.files(str(with_drop_ins), may_be_absent=False)
    assert found == [f"{with_drop_ins}.d/{name}" for name in sorted(names)]


def test_drop_ins_are_read_where_the_file_is_absent(with_drop_ins: Path) -> None:
    drop_in(with_drop_ins, "a.conf", "ipc-labels = off")
    with_drop_ins.unlink()
    read = config.read(str(with_drop_ins), may_be_absent=True, annotations={})
    assert read == config.Config(ipc_labels="off")


def test_a_heading_ends_with_its_file(with_drop_ins: Path) -> None:
    drop_in(with_drop_ins, "1.conf", "[image x]")
    drop_in(with_drop_ins, "2.conf", "device-cgroup = off")
    assert config.read(str(with_drop_ins), False, {}).device_cgroup == "off"


def test_a_mistake_in_a_drop_in_names_the_drop_in(with_drop_ins: Path) -> None:
    drop_in(with_drop_ins, "1.conf", "\nnonsense")
    with pytest.raises(ConfigError, match=r"hook\.conf\.d/1\.conf:2: 'nonsense'"):
        config.read(str(with_drop_ins), False, {})


@pytest.mark.parametrize("what", ["folder", "dangling", "loop"])
def test_a_drop_in_that_cannot_be_read_is_not_passed_over(with_drop_ins: Path, what: str) -> None:
    place = Path(f"{with_drop_ins}.d/1.conf")
    if what == "folder":
        place.mkdir()
    else:
        place.symlink_to(place if what == "loop" else "/nowhere")
    with pytest.raises(ConfigError, match=r"cannot read .*1\.conf: "):
        config.read(str(with_drop_ins), False, {})


def test_drop_ins_that_are_no_folder_are_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "hook.conf"
    path.write_text("")
    Path(f"{path}.d").write_text("")
    with pytest.raises(ConfigError, match=r"cannot open .*hook\.conf\.d: Not a directory"):
        config.read(str(path), False, {})


def test_more_drop_ins_than_are_read_are_a_config_error(with_drop_ins: Path) -> None:
    for number in range(256):
        drop_in(with_drop_ins, f"{number}.conf", "")
    config.read(str(with_drop_ins), False, {})
    drop_in(with_drop_ins, "256.conf", "")
    with pytest.raises(ConfigError, match="more than 256 drop-ins"):
        config.read(str(with_drop_ins), False, {})


def test_a_file_that_we_may_not_read_is_a_config_error(machine: FakeFilesystem) -> None:
    machine.create_file(SETTINGS, contents="", st_mode=0o600)
    set_uid(1000)
    with pytest.raises(ConfigError, match=f"cannot read {SETTINGS}: Permission denied"):
        config.read(SETTINGS, may_be_absent=True, annotations={})


def test_a_file_that_is_too_large_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("#" * ((1 << 20) - 1) + "\n")
    assert config.read(str(path), False, {}) == config.Config()
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        config.read(str(path), False, {})


def test_ten_thousand_lines_are_read_and_the_last_one_holds() -> None:
    lines = [f"driver-root = /{number}" for number in range(10_000)]
    found = config.parse("\n".join(lines), "file")
    assert (len(found), found[-1].where) == (10_000, "file:10000")
    assert config.effective(found, {}).driver_root == "/9999"
    rules = "\n".join(f"[image {number}]\ndevice-cgroup = off" for number in range(10_000))
    assert effective(rules, image="9999").device_cgroup == "off"
    assert effective(rules, image="10000").device_cgroup == "auto"


def test_ten_thousand_items_are_read() -> None:
    words = [f"V{number}" for number in range(10_000)]
    assert effective(f"swarm-resources = {','.join(words)}").swarm_resources == tuple(words)


def test_written_is_what_parse_reads() -> None:
    for key, (_, value) in ALL_KEYS.items():
        for meant in (value, getattr(config.Config(), key.replace("-", "_"))):
            (line,) = config.parse(f"{key} = {config.written(meant)}", "file")
            assert line.value == meant
    assert config.written(CAPABILITIES) == "all"


_WORDS = st.sampled_from([word for text, _ in ALL_KEYS.values() for word in text.split()])
_LINES = st.one_of(
    st.text(max_size=20),
    st.builds("{} = {}".format, st.sampled_from(list(ALL_KEYS)), st.text(max_size=8) | _WORDS),
    st.builds("[{} {}]".format, st.sampled_from(["namespace", "image", "x"]), st.text(max_size=4)),
)


@given(st.lists(_LINES, max_size=6).map("\n".join), st.text(max_size=8))
def test_parse_is_total(text: str, name: str) -> None:
    """Settings or one sentence of printable ASCII; and settings always have an effect that can be told."""
    try:
        found = config.parse(text, "file")
    except ConfigError as err:
        assert str(err).isascii()
        assert str(err).isprintable()
        assert str(err).startswith("file:")
        return
    read = config.effective(
        found, {"io.container.image": name, "io.kubernetes.pod.namespace": name}
    )
    assert len("\n".join(map(config.written, read)).split("\n")) == len(read)


@given(st.text(), st.text())
def test_matching_is_total_and_a_text_matches_itself(pattern: str, text: str) -> None:
    assert config.matches(pattern, text) in (True, False)
    assert config.matches(text, text)
    assert config.matches(f"{text}*", text + pattern)


SECTION = "accept-environment = privileged\n[namespace trusted]\naccept-environment = always\n"
ENGINES, PODS = "io.kubernetes.pod.namespace", "io.kubernetes.cri-o.Namespace"


@pytest.mark.parametrize("forged", [PODS, "io.kubernetes.cri.sandbox-namespace"])
def test_a_pod_cannot_put_itself_into_another_namespace(forged: str) -> None:
    """CRI-O hands a pod's annotations on, and sets cri-o.Namespace for its sandbox alone."""
    lines = config.parse(SECTION, "file")
    said = {ENGINES: "other", forged: "trusted"}
    with pytest.raises(RequestError, match="several namespaces, 'other' and 'trusted'"):
        config.effective(lines, said)
    assert config.namespace(said) == "other"
    assert config.effective(lines, {ENGINES: "other"}).accept_environment == "privileged"
    assert (
        config.effective(lines, {ENGINES: "trusted", PODS: "trusted"}).accept_environment
        == "always"
    )


def test_a_namespace_in_doubt_is_nothing_to_settings_without_one() -> None:
    lines = config.parse("accept-environment = privileged\n", "file")
    said = {ENGINES: "other", PODS: "trusted"}
    assert config.effective(lines, said).accept_environment == "privileged"


def test_a_pod_cannot_name_an_image_that_its_engine_does_not() -> None:
    names = {"io.kubernetes.cri-o.ImageName": "", "io.kubernetes.cri.image-name": "trusted"}
    assert config.image(names) == ""
