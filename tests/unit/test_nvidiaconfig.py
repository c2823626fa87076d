# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's keys: each is served, needless or refused, and what is served reads back as the same settings."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.node.setup import nvidiaconfig
from oci_gpu_hook.node.setup.nvidiaconfig import BOOLEAN, KEYS, NEEDLESS, REFUSED, SERVED, STRING, STRINGS
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.words import CAPABILITIES
from tests.vocabulary.rows import ROWS

FILE = "config.toml"
CLI = "nvidia-container-cli"
RUNTIME = "nvidia-container-runtime"
HOOK = "nvidia-container-runtime-hook"


def nested(key: str, value: object) -> dict[str, Any]:
    """One key with its tables, as a TOML parser gives it."""
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def answer(key: str, value: object) -> nvidiaconfig.KeyMeaning:
    (row,) = nvidiaconfig.answers(nested(key, value), FILE)
    assert row.key == key
    return row


def read_back(document: dict[str, Any]) -> Settings:
    text = nvidiaconfig.as_settings(nvidiaconfig.answers(document, FILE), FILE)
    return Settings(**settingsfile.fields(settingsfile.parse_text(text, "imported"), None, {}))


ITS_DEFAULT = "compat32,compute,display,graphics,ngx,utility,video"
LISTS = "/etc/nvidia-container-runtime/host-files-for-container.d"
# Key, our field, and pairs of values: the key's and the field's.
AS_SETTINGS: tuple[tuple[str, str, list[tuple[object, object]]], ...] = (
    ("disable-require", "disable_requirements", [(True, True), (False, False)]),
    ("swarm-resource", "swarm_resources", [("", ()), (" A , ,B,A", ("A", "B"))]),
    ("accept-nvidia-visible-devices-envvar-when-unprivileged", "accept_environment",
     [(False, "privileged"), (True, "always")]),
    ("accept-nvidia-visible-devices-as-volume-mounts", "accept_volume_mounts", [(True, True), (False, False)]),
    ("supported-driver-capabilities", "allowed_capabilities",
     [("compute, utility", ("compute", "utility")), ("all", CAPABILITIES), (ITS_DEFAULT, CAPABILITIES)]),
    (f"{CLI}.root", "driver_root",
     [("", "/"), ("/", "/"), ("/a folder/#1 = [x]/treiber-ä/", "/a folder/#1 = [x]/treiber-ä")]),
    (f"{CLI}.no-cgroups", "device_cgroup", [(True, "off"), (False, "auto")]),
    (f"{RUNTIME}.modes.legacy.cuda-compat-mode", "cuda_forward_compatibility",
     [("ldconfig", True), ("mount", True), ("hook", True), ("disabled", False)]),
    ("features.disable-cuda-compat-lib-hook", "cuda_forward_compatibility", [(True, False)]),
    ("features.ignore-imex-channel-requests", "ignore_imex_channels", [(True, True), (False, False)]),
)  # fmt: skip

# Key, a value that needs nothing here, or a value that is refused with words of its sentence.
AS_SENTENCES: tuple[tuple[str, object, str, str], ...] = (
    (f"{CLI}.path", "/usr/bin/nvidia-container-cli", NEEDLESS, "no program"),
    (f"{CLI}.environment", [], NEEDLESS, "no program"),
    (f"{CLI}.environment", ["A=1"], REFUSED, "nothing would have these variables"),
    (f"{CLI}.debug", "", NEEDLESS, "no log"),
    (f"{CLI}.debug", "/var/log/toolkit.log", REFUSED, "'oci-gpu-hook plan' shows"),
    (f"{CLI}.ldcache", "/etc/ld.so.cache", NEEDLESS, "below driver-root"),
    (f"{CLI}.ldcache", "/elsewhere", REFUSED, "nvidia-container-cli.root"),
    (f"{CLI}.load-kmods", False, NEEDLESS, "loads no kernel modules"),
    (f"{CLI}.load-kmods", True, REFUSED, "must load nvidia and nvidia-uvm"),
    (f"{CLI}.no-pivot", True, NEEDLESS, "nothing is run"),
    (f"{CLI}.user", "root:video", NEEDLESS, "no program"),
    (f"{CLI}.ldconfig", "@/sbin/ldconfig.real", NEEDLESS, "no ldconfig is run"),
    (f"{CLI}.ldconfig", "/sbin/ldconfig", REFUSED, "nothing of the image is run"),
    (f"{RUNTIME}.debug", "/dev/null", NEEDLESS, "no log"),
    (f"{RUNTIME}.debug", "/var/log/runtime.log", REFUSED, "writes no log"),
    (f"{RUNTIME}.log-level", "debug", NEEDLESS, "no log"),
    (f"{RUNTIME}.runtimes", ["docker-runc", "runc"], NEEDLESS, "engine starts its runtime"),
    (f"{RUNTIME}.mode", "auto", NEEDLESS, "one mode"),
    (f"{RUNTIME}.mode", "legacy", NEEDLESS, "one mode"),
    (f"{RUNTIME}.mode", "jit-cdi", NEEDLESS, "one mode"),
    (f"{RUNTIME}.mode", "cdi", REFUSED, "cdi generate"),
    (f"{RUNTIME}.mode", "csv", REFUSED, "on a Jetson its lists are read"),
    (f"{RUNTIME}.modes.csv.mount-spec-path", LISTS, NEEDLESS, "are read in"),
    (f"{RUNTIME}.modes.csv.mount-spec-path", "/lists", REFUSED, "host-files-for-container.d only"),
    (f"{RUNTIME}.modes.cdi.default-kind", "nvidia.com/gpu", NEEDLESS, "nvidia.com/gpu"),
    (f"{RUNTIME}.modes.cdi.default-kind", "vendor.com/tpu", REFUSED, "other kinds"),
    (f"{RUNTIME}.modes.cdi.annotation-prefixes", ["cdi.k8s.io/"], NEEDLESS, "are read"),
    (f"{RUNTIME}.modes.cdi.annotation-prefixes", ["cdi.k8s.io/", "mine/"], REFUSED, "and no others"),
    (f"{RUNTIME}.modes.cdi.annotation-prefixes", [], REFUSED, "accept-environment = privileged"),
    (f"{RUNTIME}.modes.cdi.spec-dirs", ["/etc/cdi", "/x"], NEEDLESS, "engines do"),
    (f"{RUNTIME}.modes.jit-cdi.nvcdi-feature-flags", [], NEEDLESS, "no CDI spec"),
    (f"{RUNTIME}.modes.jit-cdi.nvcdi-feature-flags", ["x"], REFUSED, "nothing that these"),
    (f"{RUNTIME}.modes.jit-cdi.nvcdi-disable-hooks", [], NEEDLESS, "CDI hooks"),
    (f"{RUNTIME}.modes.jit-cdi.nvcdi-disable-hooks", ["all"], REFUSED, "cuda-forward-compatibility = no"),
    (f"{HOOK}.path", "/x", NEEDLESS, "no program"),
    (f"{HOOK}.skip-mode-detection", True, NEEDLESS, "nothing to detect"),
    ("nvidia-ctk.path", "nvidia-ctk", NEEDLESS, "no program"),
    ("features.allow-cuda-compat-libs-from-container", False, NEEDLESS, "from an image"),
    ("features.allow-cuda-compat-libs-from-container", True, REFUSED, "ever mounted"),
    ("features.allow-ldconfig-from-container", False, NEEDLESS, "of the image"),
    ("features.allow-ldconfig-from-container", True, REFUSED, "nothing of the image is run"),
    ("features.allow-unknown-oci-spec-fields", True, NEEDLESS, "never looked at"),
    ("features.disable-cuda-compat-lib-hook", False, NEEDLESS, "decides then"),
    ("features.disable-imex-channel-creation", True, NEEDLESS, "made on the host"),
    ("features.no-additional-gids-for-device-nodes", True, NEEDLESS, "no groups are added"),
    ("features.no-additional-gids-for-device-nodes", False, REFUSED, "--group-add"),
)  # fmt: skip


@pytest.mark.parametrize(("key", "field", "values"), AS_SETTINGS)
def test_what_is_served_is_one_setting_of_ours(key: str, field: str, values: list[tuple[object, object]]) -> None:
    for value, ours in values:
        assert answer(key, value).answer == SERVED
        text = nvidiaconfig.as_settings(nvidiaconfig.answers(nested(key, value), FILE), FILE)
        (line,) = settingsfile.parse_text(text, "imported")
        assert (line.scope, line.field, line.value) == ("", field, ours)


@pytest.mark.parametrize(("key", "value", "kind", "words"), AS_SENTENCES)
def test_what_is_not_served_says_why(key: str, value: object, kind: str, words: str) -> None:
    row = answer(key, value)
    assert row.answer == kind
    assert words in row.means
    assert read_back(nested(key, value)) == Settings()


def test_every_key_has_a_row_here_with_each_answer_that_it_can_give() -> None:
    shown = {(key, SERVED) for key, *_ in AS_SETTINGS}
    shown |= {(key, kind) for key, _, kind, _ in AS_SENTENCES}
    possible = {(key.name, SERVED) for key in KEYS if key.setting}
    possible |= {(key.name, NEEDLESS) for key in KEYS if key.why}
    possible |= {(key.name, REFUSED) for key in KEYS if key.harmless is not None}
    assert shown == possible


def test_every_key_of_the_vocabulary_is_known() -> None:
    """The rows of section 1.4 name a key by its last words, several of one table in one row."""
    last = {key.name.rpartition(".")[2] for key in KEYS}
    named = [row.name for row in ROWS if row.section == "1.4"]
    words = {
        word.rpartition(".")[2] for name in named for word in re.sub(r"\[.*?\]|`", "", name).replace("/", " ").split()
    }
    assert len(named) > 15
    assert words <= last


@pytest.mark.parametrize(
    ("mode", "hook_disabled", "expected"),
    [("ldconfig", False, True), ("ldconfig", True, False), ("disabled", False, False)],
)
def test_either_of_two_keys_turns_forward_compatibility_off(mode: str, hook_disabled: bool, expected: bool) -> None:
    document = {
        "features": {"disable-cuda-compat-lib-hook": hook_disabled},
        RUNTIME: {"modes": {"legacy": {"cuda-compat-mode": mode}}},
    }
    assert read_back(document).cuda_forward_compatibility is expected


def test_an_empty_file_means_our_defaults() -> None:
    assert read_back({}) == Settings()
    assert read_back({CLI: {}, "features": {}, RUNTIME: {"modes": {"cdi": {}}}}) == Settings()


WRONG: dict[str, list[object]] = {
    BOOLEAN: ["true", 1, []],
    STRING: [True, 3, ["a"], {"a": 1}],
    STRINGS: ["a", [1], ["a", 1], {}],
}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_value_of_a_wrong_type_is_named(key: nvidiaconfig.Key) -> None:
    for value in WRONG[key.kind]:
        with pytest.raises(ConfigError) as caught:
            nvidiaconfig.answers(nested(key.name, value), FILE)
        assert str(caught.value).startswith(f"{FILE}: {key.name} must be {key.kind}, not ")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"disable-requires": True}, "unknown key 'disable-requires', did you mean 'disable-require'?"),
        ({CLI: {"nocgroups": True}}, f"did you mean '{CLI}.no-cgroups'?"),
        ({f"{CLI}.root": "/x"}, f"unknown key '{CLI}.root'"),
        ({CLI: {"root": {"x": 1}}}, f"{CLI}.root must be a string, not a table"),
        ({CLI: "x"}, f"{CLI} must be a table, not a string"),
        ({RUNTIME: {"modes": 3}}, f"{RUNTIME}.modes must be a table, not a number or a date"),
        ({RUNTIME: {"mode": "fast"}}, "allowed is one of auto, legacy, jit-cdi, cdi, csv"),
        ({CLI: {"root": "driver"}}, f"{CLI}.root is 'driver', which is not an absolute path"),
        ({CLI: {"root": "/x\ndevice-cgroup = off"}}, "which is not an absolute path"),
        ({CLI: {"root": "/x "}}, "which is not an absolute path"),
        ({"swarm-resource": "A=B"}, "'A=B', which is not a variable's name"),
        ({"swarm-resource": "A B"}, "'A B', which is not a variable's name"),
        ({"supported-driver-capabilities": "compute,none"}, "has 'none', allowed are all, utility"),
        ({"supported-driver-capabilities": ""}, "is empty"),
        ({"\x1b[1m": 1}, r"unknown key '\x1b[1m'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        nvidiaconfig.answers(document, FILE)
    assert sentence in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_long_value_is_cut_in_the_comment_and_whole_in_the_setting() -> None:
    names = [f"VARIABLE_{number}" for number in range(10_000)]
    document = {"swarm-resource": ",".join(names), RUNTIME: {"runtimes": names}}
    text = nvidiaconfig.as_settings(nvidiaconfig.answers(document, FILE), FILE)
    assert all(len(line) < 300 for line in text.splitlines() if line.startswith("#"))
    assert read_back(document).swarm_resources == tuple(names)


TEXT = st.text(max_size=30) | st.text("/ ,=#[]\n\rAB\0", max_size=8)


def values(key: nvidiaconfig.Key) -> st.SearchStrategy[Any]:
    """Mostly what a person could mean: a mistake anywhere ends it all."""
    if key.words:
        return st.sampled_from(list(key.words))
    if key.name == "supported-driver-capabilities":
        return st.lists(st.sampled_from(CAPABILITIES), min_size=1).map(" ,".join)
    if key.name.endswith(".root"):
        return TEXT.map("/{}".format)
    return {BOOLEAN: st.booleans(), STRING: TEXT, STRINGS: st.lists(TEXT, max_size=3)}[key.kind]


@given(st.fixed_dictionaries({}, optional={key.name: values(key) for key in KEYS}))
def test_any_values_are_one_sentence_or_settings_that_read_back(found: dict[str, Any]) -> None:
    document: dict[str, Any] = {}
    for name, value in found.items():
        *tables, last = name.split(".")
        table = document
        for part in tables:
            table = table.setdefault(part, {})
        table[last] = value
    try:
        rows = nvidiaconfig.answers(document, FILE)
    except ConfigError as err:
        assert "\n" not in str(err)
        return
    assert {row.key for row in rows} == set(found)
    lines = settingsfile.parse_text(nvidiaconfig.as_settings(rows, FILE), "imported")
    served = [row.means.partition(" =") for row in rows if row.answer == SERVED]
    assert [line.field.replace("_", "-") for line in lines] == [key for key, _, _ in served]
    settings = Settings(**settingsfile.fields(lines, None, {}))
    root = found.get(f"{CLI}.root", "")
    assert settings.driver_root == (root.rstrip("/") or "/")
    if "disable-require" in found:
        assert settings.disable_requirements is found["disable-require"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just(CLI), inner),
    )
)
def test_any_document_is_one_sentence_or_answers(value: object) -> None:
    document = value if isinstance(value, dict) else {CLI: value}
    try:
        nvidiaconfig.answers(document, FILE)
    except ConfigError as err:
        assert "\n" not in str(err)
