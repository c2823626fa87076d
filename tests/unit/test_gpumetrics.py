# SPDX-License-Identifier: Apache-2.0
"""Metrics of GPUs: what is told of which GPU, what is left out, and that Prometheus can read all of it."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oci_gpu_hook.driver.proc import Gpu
from oci_gpu_hook.node.exporters import exposition, gpuexposition
from oci_gpu_hook.node.exporters.gpuexposition import Held, NodeReadings
from oci_gpu_hook.node.gpus import readings
from oci_gpu_hook.node.gpus.readings import GpuReading, Readings
from oci_gpu_hook.node.machine.validated import StepResult, Validation
from tests.unit.examples import examples

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?\d+(?:\.\d+)?(?:e[+-]\d+)?)')


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def gpu(number: int, name: str | None = "") -> Gpu:
    bus = f"00000000:{number:02x}:00.0"
    return Gpu(number, uuid(number) if name == "" else name, "H100", bus, number, bus[4:])


def reading(number: int, claims: str = "", **values: int) -> GpuReading:
    return GpuReading(claims or uuid(number), gpu(number).bus_id, values, ())


def node(*gpus: Gpu, answers: tuple[GpuReading, ...] | None = (), **fields: Any) -> NodeReadings:
    values: dict[str, Any] = {
        "driver_version": "580.65.06",
        "gpus": gpus,
        "nvml": None if answers is None else Readings("580.65.06", 13000, len(gpus), answers),
        "seen": {},
        "xids": {},
        "held": (),
        "fresh": True,
        "validation": None,
        "time": 1_700_000_000.25,
        "duration": 0.5,
    }
    return NodeReadings(**{**values, **fields})


def samples(made: NodeReadings) -> dict[str, float]:
    """What Prometheus reads: names with labels, and values; each series once, each metric in one piece."""
    text = gpuexposition.exposition(made)
    assert text.endswith("\n")
    found: dict[str, float] = {}
    metric, seen = "", set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            metric = line.split()[2]
            assert metric not in seen
            seen.add(metric)
        elif not line.startswith(f"# TYPE {metric} "):
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1] == metric
            key = line.rpartition(" ")[0].replace(exposition.PREFIX, "")
            assert key not in found, "twice"
            found[key] = float(match[3])
    return found


def test_a_gpu_that_answers_and_one_that_does_not() -> None:
    found = samples(node(gpu(7), gpu(8), answers=(reading(7, temperature=41, power=87_500, clock_sm=1980),)))
    first, second = f'{{uuid="{uuid(7)}"}}', f'{{uuid="{uuid(8)}"}}'
    assert (found[f"gpu_up{first}"], found[f"gpu_up{second}"]) == (1, 0)
    assert found[f"gpu_temperature_celsius{first}"] == 41
    assert found[f"gpu_power_watts{first}"] == 87.5
    assert found[f'gpu_clock_hertz{{uuid="{uuid(7)}",clock="sm"}}'] == 1.98e9
    assert found["driver_up"] == found["nvml_up"] == 1
    assert found["gpus"] == 2
    assert not [key for key in found if uuid(8) in key and "up" not in key and "info" not in key]


def test_without_nvml_no_gpu_is_called_lost() -> None:
    found = samples(node(gpu(7), answers=None, seen={"00000000:09:00": uuid(9)}))
    assert (found["driver_up"], found["nvml_up"], found["gpus"]) == (1, 0, 1)
    assert not [key for key in found if key.startswith("gpu_up")]


def test_a_gpu_that_is_in_no_list_any_more_is_down() -> None:
    seen = {"00000000:07:00": uuid(7), "00000000:09:00": uuid(9)}
    made = node(gpu(7), answers=(reading(7),), seen=seen, xids={("00000000:09:00", 79): 1})
    found = samples(made)
    assert found[f'gpu_up{{uuid="{uuid(9)}"}}'] == 0
    assert found[f'gpu_xid_errors_total{{uuid="{uuid(9)}",xid="79"}}'] == 1
    assert found["gpus"] == 1


def test_without_a_driver_nothing_of_before_is_told() -> None:
    last = Validation(5, "580.65.06", (StepResult("driver", "passed", ""),))
    found = samples(
        node(driver_version="", answers=None, seen={"00000000:07:00": uuid(7)}, validation=last, duration=-3.0)
    )
    assert found == {"driver_up": 0, "collected_timestamp_seconds": 1_700_000_000, "collection_duration_seconds": 0}


def test_the_kernels_uuid_counts_and_nvmls_only_where_it_is_one() -> None:
    answers = (reading(7, claims=uuid(1)), reading(8, claims="GPU-and-nothing-else"), reading(9), reading(10, uuid(9)))
    made = node(gpu(7), gpu(8, None), gpu(9, None), gpu(10, None), answers=answers)
    assert gpuexposition.uuids(made) == {gpu(7).bus_id: uuid(7), gpu(9).bus_id: uuid(9)}
    assert samples(made)["gpus"] == 4


def test_the_last_validation_counts_for_its_driver() -> None:
    steps = (
        StepResult("driver", "passed", ""),
        StepResult("hook", "failed", "why"),
        StepResult("workload", "skipped", "why"),
    )
    last = Validation(1_700_000_000, "580.65.06", steps)
    found = samples(node(validation=last))
    assert {key: found[key] for key in found if "validation" in key} == {
        'validation_passed{step="driver"}': 1,
        'validation_passed{step="hook"}': 0,
        "validation_timestamp_seconds": 1_700_000_000,
    }
    assert not [key for key in samples(node(validation=last, driver_version="1.2")) if "valid" in key]


def test_reasons_that_hold_the_clocks_down() -> None:
    found = samples(node(gpu(7), answers=(reading(7, clocks_event=0x40 | 0x8 | 1 << 40),)))
    down = [key.partition("reason=")[2] for key in found if "clocks_event" in key and found[key]]
    assert down == ['"hw_slowdown"}', '"hw_thermal_slowdown"}']


def test_the_number_of_series_has_a_bound() -> None:
    held = tuple(Held(7, "", str(number), "", "", "") for number in range(2000))
    found = samples(node(gpu(7), answers=(reading(7),), held=held))
    assert len([key for key in found if "container_info" in key]) == 512


@examples(40)
@given(words=st.lists(st.text(), min_size=6, max_size=6), number=st.integers(0, 1 << 80))
def test_whatever_is_said_prometheus_can_read_it(words: list[str], number: int) -> None:
    """Names of containers and GPUs are others' texts."""
    values = dict.fromkeys(readings.RANGES, number)
    made = node(
        gpu(7)._replace(model=words[0]),
        answers=(reading(7)._replace(values=values),),
        driver_version=words[1] or "1",
        held=(Held(7, *words[1:]), Held(7, *words[1:]), Held(99, *words[1:])),
        xids={("00000000:07:00", number): number},
    )
    assert samples(made)["gpus"] == 1


def test_label_values_are_escaped_and_cut() -> None:
    line = exposition.sample("a", {"b": 'say "no"\\\n\x1b\udc80'}, 1)
    assert line == 'oci_gpu_hook_a{b="say \\"no\\"\\\\\\n??"} 1'
    assert len(exposition.sample("a", {"b": "x" * 1000}, 1)) < 300
