# SPDX-License-Identifier: Apache-2.0
"""What holds of every request, whatever a container brings: a value or one sentence, in linear time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oci_gpu_hook.cli import cdi
from oci_gpu_hook.errors import RequestError, UsageError
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.request import selectors, sources, words
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs, cdi_names
from oci_gpu_hook.request.words import CAPABILITIES, DRIVER_CAPABILITIES, IMEX_CHANNELS
from tests.unit.asking import LIST, MIG, MOUNTS, UUID, VISIBLE, annotated, env, listed
from tests.unit.bounded import MIB, is_linear, peak
from tests.unit.examples import examples

NAMES = st.sampled_from(
    ["all", "none", "void", "0", "0:1", "GPU-", UUID, f"{UUID}-2", MIG, f"MIG-{UUID}/1/0", "0000:07:00.0", "ALL", "x",
     "nvidia.com/gpu=0", "nvidia.com/imex-channel=3", "nvidia.com/gds=all", "example.com/gpu=0", "channel7",
     f"k8s.device-plugin.nvidia.com/gpu={UUID}", "", " ",
     "enabled", "12.4", "12..4", "cuda>=12", "utility", "compat32", LIST, "1", "\x00", "\udcff", "é"]
)  # fmt: skip
ITEMS = st.one_of(NAMES, st.text(max_size=20))
VALUES = st.one_of(st.text(), st.lists(ITEMS, max_size=5).map(",".join))
VARIABLES = st.one_of(
    st.sampled_from(
        [VISIBLE, DRIVER_CAPABILITIES, IMEX_CHANNELS, words.CUDA_VERSION, words.REQUIRE_CUDA,
         "NVIDIA_REQUIRE_JETPACK_X", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_MIG_CONFIG_DEVICES",
         "NVIDIA_MIG_MONITOR_DEVICES", "DOCKER_RESOURCE_GPU", *[feature.variable for feature in words.FEATURES]]
    ),
    st.text(max_size=10),
)  # fmt: skip
DESTINATIONS = st.one_of(
    ITEMS.map(lambda name: f"{LIST}/{name}"),
    ITEMS.map(lambda name: f"{LIST}/cdi/nvidia.com/gpu/{name}"),
    ITEMS.map(lambda name: f"{LIST}/imex/{name}"),
    st.text(),
)
GPUS = ("/dev/nvidia0", "/dev/nvidia7", "/dev/dri/card0")
INPUTS = st.builds(
    Inputs,
    environment=st.dictionaries(VARIABLES, st.sampled_from(["0", "all"]) | VALUES, max_size=6),
    mounts=st.lists(st.tuples(st.sampled_from(["/dev/null", "/x"]), DESTINATIONS), max_size=4).map(tuple),
    cdi=st.dictionaries(
        st.one_of(st.sampled_from(["cdi.k8s.io/a", "nvidia.cdi.k8s.io/b"]), st.text(max_size=12)),
        st.sampled_from(["nvidia.com/gpu=0", "nvidia.com/gpu=all,nvidia.com/gpu=0"]) | VALUES,
        max_size=3,
    ).map(cdi_names),
    privileged=st.booleans(),
    given=st.lists(st.sampled_from(GPUS), unique=True).map(tuple),
)
CONFIGS = st.builds(
    Settings,
    accept_environment=st.sampled_from(["always", "privileged"]),
    accept_volume_mounts=st.booleans(),
    allowed_capabilities=st.sampled_from([CAPABILITIES, ("utility",), ("compat32",)]),
    swarm_resources=st.sampled_from([(), ("DOCKER_RESOURCE_GPU",)]),
    disable_requirements=st.booleans(),
    ignore_imex_channels=st.booleans(),
    unaccepted_requests=st.sampled_from(["ignore", "refuse"]),
    unmatched_sections=st.sampled_from(["strictest", "refuse"]),
    unmatched=st.sampled_from([(), ("image",), ("image", "namespace")]),
)


def is_one_line(sentence: str) -> bool:
    return sentence.isascii() and sentence.isprintable() and 0 < len(sentence) < 700


@examples(200)
@example(
    Inputs({"DOCKER_RESOURCE_GPU": "0"}, images=frozenset()),
    Settings(accept_environment="privileged", swarm_resources=("DOCKER_RESOURCE_GPU",)),
)
@given(INPUTS, CONFIGS)
def test_every_container_has_a_request_or_one_sentence(inputs: Inputs, config: Settings) -> None:
    try:
        found, notes = parse_request(inputs, config)
    except RequestError as err:
        assert is_one_line(str(err))
        return
    assert all(is_one_line(note) for note in notes)
    if found is None:
        return
    assert found.words() and len(set(found.words())) == len(found.words())
    assert [bool(found.devices), bool(found.nodes), found.any_of is not None].count(True) == 1
    assert set(found.capabilities) <= set(config.allowed_capabilities) and found.capabilities
    assert inputs.privileged or not (found.mig_config or found.mig_monitor)
    assert not (config.ignore_imex_channels and found.imex_channels)
    assert config.accept_volume_mounts or found.source != "mounts"
    if config.accept_environment == "privileged" and not inputs.privileged:
        # Of an environment only what dockerd's record proves to be Swarm's own.
        is_swarms = found.source == "swarm" and inputs.images is not None
        assert is_swarms or found.source == "mounts"


@examples(200)
@example(Inputs({VISIBLE: "0"}), Settings())
@example(Inputs({}, cdi=("nvidia.com/gpu=0",)), Settings())
@example(Inputs({}, listed("0")), MOUNTS)
@given(INPUTS, CONFIGS)
def test_who_has_a_request_may_ask(inputs: Inputs, config: Settings) -> None:
    # Under swarm resources the settings are read for every container; what they name may be any variable.
    config = config._replace(swarm_resources=())
    try:
        found, _ = parse_request(inputs, config)
    except RequestError:
        found = None
        assert sources.may_ask(inputs), "refused, and yet it would not even have been read"
    assert found is None or sources.may_ask(inputs)


@given(st.one_of(NAMES, st.from_regex(r"(GPU-|MIG-|)[0-9a-fA-F:./-]{1,45}", fullmatch=True)))
def test_a_canonical_name_stays_as_it_is(item: str) -> None:
    try:
        found = selectors.canonical(item, "here")
    except RequestError as err:
        assert is_one_line(str(err))
        return
    assert selectors.canonical(found, "here") == found
    assert is_one_line(found)


@given(st.text() | st.integers(0, 10**21).map(str), st.integers(0, 10**8))
def test_numbers_are_what_int_makes_of_ascii_digits(text: str, most: int) -> None:
    plain = text.isascii() and text.isdigit() and len(text) <= 20
    assert decimal(text, most) == (int(text) if plain and int(text) <= most else None)


@given(VALUES)
def test_a_persons_list_of_capabilities_is_read_or_refused(value: str) -> None:
    try:
        found = cdi.granted(value, Settings())
    except UsageError as err:
        assert is_one_line(str(err))
    else:
        assert found and set(found) <= set(CAPABILITIES)


def uuids(entries: int) -> list[str]:
    return [f"GPU-{number:08x}-2222-3333-4444-555555555555" for number in range(entries)]


# Inputs of so many entries, by what they are entries of.
MANY: dict[str, Callable[[int], Inputs]] = {
    "devices": lambda count: Inputs({VISIBLE: ",".join(uuids(count))}),
    "commas": lambda count: env(**{VISIBLE: " ," * 20 * count + "0"}),
    "capabilities": lambda count: env(**{DRIVER_CAPABILITIES: "video," * 20 * count}),
    "channels": lambda count: env(**{IMEX_CHANNELS: ",".join(map(str, range(count)))}),
    "mounts": lambda count: Inputs({}, listed(*uuids(count))),
    "CDI mounts": lambda count: Inputs({}, listed(*[f"cdi/nvidia.com/gpu/{name}" for name in uuids(count)])),
    "annotations": lambda count: annotated({}, {f"cdi.k8s.io/{it}": f"nvidia.com/gpu={it}" for it in uuids(count)}),
    "requirements": lambda count: env(**{f"NVIDIA_REQUIRE_{number}": "cuda>=1" for number in range(count)}),
}


@pytest.mark.parametrize("many", MANY)
def test_time_grows_with_the_entries_and_no_faster(many: str) -> None:
    inputs = {entries: MANY[many](entries) for entries in (100, 1_000)}

    def act(entries: int) -> None:
        assert sources.may_ask(inputs[entries])
        assert parse_request(inputs[entries], MOUNTS)[0] is not None

    assert is_linear(act)


# Inputs that no kernel would start a container with, or no engine would write.
TOO_LONG: dict[str, Callable[[], Inputs | dict[str, str]]] = {
    "devices": lambda: Inputs({VISIBLE: "0," * 10_000_000}),
    "swarm resources": lambda: Inputs({"DOCKER_RESOURCE_GPU": "0," * 10_000_000}),
    "capabilities": lambda: env(**{DRIVER_CAPABILITIES: "all," * 5_000_000}),
    "channels": lambda: env(**{IMEX_CHANNELS: "1," * 10_000_000}),
    "requirements": lambda: env(NVIDIA_REQUIRE_CUDA="cuda>1 " * 1_300_000),
    "many requirements": lambda: env(**{f"NVIDIA_REQUIRE_{number}": "cuda>1 " * 18_000 for number in range(70)}),
    "an annotation": lambda: {"cdi.k8s.io/a": "nvidia.com/gpu=0," * 10**6},
    "annotations": lambda: {f"cdi.k8s.io/{number}": "nvidia.com/gpu=0" for number in range(10_000)},
    "distinct channels": lambda: env(**{IMEX_CHANNELS: ",".join(map(str, range(2049)))}),
    "a device": lambda: Inputs({}, listed("GPU-" + "-" * 1_000_000)),
}


@pytest.mark.parametrize("kind", TOO_LONG)
def test_what_is_longer_than_a_container_can_have_is_refused_unread(kind: str) -> None:
    given = TOO_LONG[kind]()
    config = MOUNTS._replace(swarm_resources=("DOCKER_RESOURCE_GPU",))

    def act() -> None:
        with pytest.raises(RequestError) as caught:
            parse_request(given if isinstance(given, Inputs) else annotated({}, given), config)
        assert is_one_line(str(caught.value))

    assert peak(act) < 4 * MIB


def test_what_is_as_long_as_the_kernel_takes_is_read() -> None:
    names = {VISIBLE: "0,", DRIVER_CAPABILITIES: "all,", IMEX_CHANNELS: "1,", "NVIDIA_REQUIRE_CUDA": "cuda>1 "}
    for name, item in names.items():
        inputs = env(**{name: item * (words.LONGEST_VALUE // len(item))})

        def act(inputs: Inputs = inputs) -> None:
            assert parse_request(inputs, Settings())[0] is not None

        assert peak(act) < 16 * MIB
