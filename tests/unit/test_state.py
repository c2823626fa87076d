# SPDX-License-Identifier: Apache-2.0
"""The container's state: every shape that the runtime-spec allows is read, and any other is one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oci_gpu_hook.errors import BundleError
from oci_gpu_hook.request import state
from oci_gpu_hook.request.bundle import read_bundle
from oci_gpu_hook.request.state import State
from tests.unit.bounded import MIB, MOST, peak

GOOD = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 42, "bundle": "/b"}


def read(text: str | bytes, head: bytes = b"") -> State:
    reading, writing = os.pipe()
    try:
        os.write(writing, text if isinstance(text, bytes) else text.encode())
        os.close(writing)
        return state.read_state(reading, head)
    finally:
        os.close(reading)


def test_a_state_is_read_behind_what_the_entry_script_has_read_of_it() -> None:
    data = json.dumps({**GOOD, "annotations": {"a": "b"}}).encode()
    for at in range(len(data) + 1):
        assert read(data[at:], data[:at]) == State("c1", 42, "/b", {"a": "b"}, status="creating")


WRONG: dict[str, tuple[object, ...]] = {
    "pid": (None, 0, -4, "42", True, 1.5),
    "bundle": (None, "relative", 7, "/a\0b", "/\ud800"),
    "id": (7,),
    "annotations": (["a"], {"a": 1}),
}
SPOILT = [json.dumps({**GOOD, key: value}) for key, values in WRONG.items() for value in values]


@pytest.mark.parametrize("text", ["", "no json", "[]", "{", b"\xff\xfe", *SPOILT])
def test_a_state_of_the_wrong_shape_is_one_sentence(text: str | bytes) -> None:
    with pytest.raises(BundleError) as caught:
        read(text)
    assert "\n" not in str(caught.value)


# The largest documents of each kind; `X` is where they are the largest.
DOCUMENTS = {
    "objects": ("{},", "{}"),
    "objects of one": ('{"a":0},', "0"),
    "lists": ("[0],", "0"),
    "numbers": ("0,", "0"),
    "names": ('"\U0001f600",', "0"),
    "wide text": ('"\U0001f600' + "x" * 4000 + '",', "0"),
    "escapes": ('"' + "a\\n" * 1000 + '\U0001f600",', "0"),
    "long names": ('"\U0001f600xxxxxxxxxxx",', "0"),
}


def largest(kind: str, size: int) -> bytes:
    """A document of this kind, of about so many bytes, whose values are the container's variables."""
    item, last = DOCUMENTS[kind]
    count = (size - 200) // len(item.encode())
    return f'{{"process":{{"env":[{item * count}{last}]}}}}'.encode()


@pytest.mark.parametrize("size", [37 * MIB, 4 * MIB])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_no_document_takes_more_memory_than_a_start_may(tmp_path: Path, kind: str, size: int) -> None:
    (tmp_path / "config.json").write_bytes(largest(kind, size))

    def act() -> None:
        try:
            bundle = read_bundle(str(tmp_path))
            bundle.bindings()
            bundle.environment()
        except BundleError as err:
            assert len(str(err)) < 400

    assert peak(act) < MOST * 3 // 4


def test_a_document_that_is_too_large_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text, sentence in (
        (b"{" + b" " * (4 * MIB), "is larger than 4 MiB"),
        (b"[" + b"0," * 250_000 + b"0]", "has more than 209715 values"),
        (b"[" + b"{}," * 150_000 + b"0]", "has more than 209715 values"),
    ):
        file.write_bytes(text)
        with pytest.raises(BundleError, match=sentence):
            read_bundle(str(tmp_path))
    # What looks like values in a string is none.
    file.write_text(json.dumps({"process": {"env": ["A=" + '{"a": [1,2]},' * 100_000]}}))
    assert len(read_bundle(str(tmp_path)).environment()["A"]) == 1_300_000
    # The largest environment that Kubernetes is known to make, for five thousand services, has a third of it.
    env = [f"SERVICE_{number}_PORT_443_TCP=tcp://10.0.0.1:443" for number in range(35_000)]
    file.write_text(json.dumps({"process": {"env": env}}))
    assert len(read_bundle(str(tmp_path)).environment()) == 35_000


def test_a_state_that_is_too_large_is_one_sentence(tmp_path: Path) -> None:
    for more, sentence in (
        ({"x": " " * (2 * MIB)}, "is larger than 2 MiB"),
        ({"x": [0] * 104_900}, "has more than 104857 values"),
        ({"id": "c" * 1025}, "is not a string of 1024 characters"),
    ):
        file = tmp_path / "state"
        file.write_text(json.dumps({**GOOD, **more}))
        with file.open("rb") as opened, pytest.raises(BundleError, match=sentence):
            state.read_state(opened.fileno())
