# SPDX-License-Identifier: Apache-2.0
"""What holds of every request, whatever a container brings: a value or one sentence, in linear time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_gpu_hook import request, selectors, sources
from oci_gpu_hook.config import Config
from oci_gpu_hook.errors import RequestError
from oci_gpu_hook.sources import Inputs
from tests.unit.asking import LIST, MIG, MOUNTS, UUID, VISIBLE, listed
from tests.unit.linear import is_linear

NAMES = st.sampled_from(
    ["all", "none", "void", "0", "0:1", "GPU-", UUID, f"{UUID}-2", MIG, f"MIG-{UUID}/1/0", "0000:07:00.0", "ALL", "x",
     "nvidia.com/gpu=0", "nvidia.com/imex-channel=3", "nvidia.com/gds=all", "example.com/gpu=0", "channel7", "", " ",
     "enabled", "12.4", "12..4", "cuda>=12", "utility", "compat32", LIST, "1", "\x00", "\udcff", "é"]
)  # fmt: skip
ITEMS = st.one_of(NAMES, st.text(max_size=20))
VALUES = st.one_of(st.text(), st.lists(ITEMS, max_size=5).map(",".join))
VARIABLES = st.one_of(
    st.sampled_from(
        [VISIBLE, request.DRIVER_CAPABILITIES, request.IMEX_CHANNELS, sources.CUDA_VERSION, sources.REQUIRE_CUDA,
         "NVIDIA_REQUIRE_JETPACK_X", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_MIG_CONFIG_DEVICES",
         "NVIDIA_MIG_MONITOR_DEVICES", "DOCKER_RESOURCE_GPU", *[name for _, name in sources.FEATURES]]
    ),
    st.text(max_size=10),
)  # fmt: skip
DESTINATIONS = st.one_of(
    ITEMS.map(lambda name: f"{LIST}/{name}"),
    ITEMS.map(lambda name: f"{LIST}/cdi/nvidia.com/gpu/{name}"),
    ITEMS.map(lambda name: f"{LIST}/imex/{name}"),
    st.text(),
)
INPUTS = st.builds(
    Inputs,
    environment=st.dictionaries(VARIABLES, VALUES, max_size=6),
    mounts=st.lists(st.tuples(st.sampled_from(["/dev/null", "/x"]), DESTINATIONS), max_size=4).map(
        tuple
    ),
    annotations=st.dictionaries(
        st.one_of(st.sampled_from(["cdi.k8s.io/a", "cdi.k8s.io/b"]), st.text(max_size=12)),
        VALUES,
        max_size=3,
    ),
    privileged=st.booleans(),
)
CONFIGS = st.builds(
    Config,
    accept_environment=st.sampled_from(["always", "privileged"]),
    accept_volume_mounts=st.booleans(),
    allowed_capabilities=st.sampled_from([request.CAPABILITIES, ("utility",), ("compat32",)]),
    swarm_resources=st.sampled_from([(), ("DOCKER_RESOURCE_GPU",)]),
    disable_requirements=st.booleans(),
    ignore_imex_channels=st.booleans(),
)


def is_one_line(sentence: str) -> bool:
    return sentence.isascii() and sentence.isprintable() and 0 < len(sentence) < 700


@settings(deadline=None, max_examples=500)
@given(INPUTS, CONFIGS)
def test_every_container_has_a_request_or_one_sentence(inputs: Inputs, config: Config) -> None:
    try:
        found, notes = request.parse(inputs, config)
    except RequestError as err:
        assert is_one_line(str(err))
        return
    assert all(is_one_line(note) for note in notes)
    if found is None:
        return
    assert found.devices and len(set(found.devices)) == len(found.devices)
    assert set(found.capabilities) <= set(config.allowed_capabilities) and found.capabilities
    assert inputs.privileged or not (found.mig_config or found.mig_monitor)
    if config.ignore_imex_channels:
        assert not found.imex_channels
    if config.accept_environment == "privileged" and not inputs.privileged:
        assert found.source == "mounts"
    if found.source == "mounts":
        assert config.accept_volume_mounts


@settings(deadline=None, max_examples=500)
@given(INPUTS, CONFIGS)
def test_whoever_has_a_request_asks(inputs: Inputs, config: Config) -> None:
    # Under swarm resources the settings are read for every container; what they name may be any variable.
    config = config._replace(swarm_resources=())
    try:
        found, _ = request.parse(inputs, config)
    except RequestError:
        found = None
        assert sources.may_ask(inputs), "refused, and yet it would not even have been read"
    assert found is None or sources.may_ask(inputs)


@settings(deadline=None)
@given(st.one_of(NAMES, st.from_regex(r"(GPU-|MIG-|)[0-9a-fA-F:./-]{1,45}", fullmatch=True)))
def test_a_canonical_name_stays_as_it_is(item: str) -> None:
    try:
        found = selectors.device(item, "here")
    except RequestError as err:
        assert is_one_line(str(err))
        return
    assert selectors.device(found, "here") == found
    assert is_one_line(found)


@settings(deadline=None)
@given(st.text(), st.integers(0, 10**8))
def test_numbers_are_what_int_makes_of_ascii_digits(text: str, most: int) -> None:
    found = selectors.number(text, most)
    plain = text.isascii() and text.isdigit() and len(text) <= 9
    assert found == (str(int(text)) if plain and int(text) <= most else "")


@settings(deadline=None)
@given(VALUES)
def test_a_persons_list_of_capabilities_is_read_or_refused(value: str) -> None:
    try:
        found = request.granted(value)
    except RequestError as err:
        assert is_one_line(str(err))
    else:
        assert set(found) <= set(request.CAPABILITIES)


@settings(deadline=None)
@given(INPUTS, CONFIGS, st.lists(st.text()), st.lists(ITEMS))
def test_what_an_engine_has_given_is_read_too(
    inputs: Inputs, config: Config, nodes: list[str], capabilities: list[str]
) -> None:
    try:
        found, _ = request.of_nodes(inputs, config, nodes, capabilities)
    except RequestError as err:
        assert is_one_line(str(err))
    else:
        assert found is None or set(found.devices) <= set(nodes)


def uuids(entries: int) -> list[str]:
    return [f"GPU-{number:08x}-2222-3333-4444-555555555555" for number in range(entries)]


def many_devices(entries: int) -> Inputs:
    return Inputs({VISIBLE: ",".join(uuids(entries))})


def many_commas(entries: int) -> Inputs:
    return Inputs({VISIBLE: " ," * 20 * entries + "0"})


def many_capabilities(entries: int) -> Inputs:
    return Inputs({VISIBLE: "0", request.DRIVER_CAPABILITIES: "video," * 20 * entries})


def many_channels(entries: int) -> Inputs:
    return Inputs({VISIBLE: "0", request.IMEX_CHANNELS: ",".join(map(str, range(entries)))})


def many_mounts(entries: int) -> Inputs:
    return Inputs({}, listed(*uuids(entries)))


def many_cdi_mounts(entries: int) -> Inputs:
    return Inputs({}, listed(*[f"cdi/nvidia.com/gpu/{name}" for name in uuids(entries)]))


def many_annotations(entries: int) -> Inputs:
    found = {f"cdi.k8s.io/{name}": f"nvidia.com/gpu={name}" for name in uuids(entries)}
    return Inputs({}, annotations=found)


def many_requirements(entries: int) -> Inputs:
    found = {f"NVIDIA_REQUIRE_{number}": "cuda>=1" for number in range(entries)}
    return Inputs({VISIBLE: "0", **found})


MANY = [
    many_devices,
    many_commas,
    many_capabilities,
    many_channels,
    many_mounts,
    many_cdi_mounts,
    many_annotations,
    many_requirements,
]


@pytest.mark.parametrize("many", MANY, ids=lambda many: many.__name__)
def test_time_grows_with_the_entries_and_no_faster(many: object) -> None:
    assert callable(many)
    inputs = {entries: many(entries) for entries in (1_000, 10_000)}

    def parse(entries: int) -> None:
        assert sources.may_ask(inputs[entries])
        assert request.parse(inputs[entries], MOUNTS)[0] is not None

    assert is_linear(parse)


@pytest.mark.parametrize(
    "item", ["GPU-", "MIG-GPU-", "0:", "nvidia.com/gpu=", "0000:07:00.", "cdi/", "9", "\x00"]
)
@pytest.mark.parametrize("rest", ["-", "0", "/", "a-", ":", "=", "\udcff"])
def test_time_grows_with_one_long_entry_and_no_faster(item: str, rest: str) -> None:
    def parse(entries: int) -> None:
        with pytest.raises(RequestError) as caught:
            request.parse(Inputs({VISIBLE: item + rest * entries * 100}), Config())
        assert is_one_line(str(caught.value))

    assert is_linear(parse, entries=100)
