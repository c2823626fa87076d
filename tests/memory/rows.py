# SPDX-License-Identifier: Apache-2.0
"""What each row shows, and its tests.

Must not run anything.
"""

from __future__ import annotations

_LIMITS = "tests/memory/test_limits.py"

# One after the other: a driver is the whole machine's.
WORKERS = 0

ROWS = {
    "the kernel refuses at the limit": (f"{_LIMITS}::test_the_kernel_refuses_at_the_limit",),
    "two on one GPU, each at its own": (f"{_LIMITS}::test_two_on_one_gpu_each_at_its_own",),
    "each of two GPUs": (f"{_LIMITS}::test_each_of_two_gpus_has_the_limit",),
    "the whole capacity": (f"{_LIMITS}::test_the_whole_capacity_is_a_limit",),
    "no word, no limit": (f"{_LIMITS}::test_without_the_word_there_is_no_limit",),
    "another vendor's device": (f"{_LIMITS}::test_another_vendors_device_has_it_too",),
    "refused: wrong words": (f"{_LIMITS}::test_a_wrong_word_is_refused",),
    "refused: a GPU without a region": (f"{_LIMITS}::test_a_gpu_without_a_region_is_refused",),
    "refused: no driver registers": (f"{_LIMITS}::test_without_a_driver_that_registers_it_is_refused",),
    "refused: a parent with processes": (f"{_LIMITS}::test_a_parent_with_processes_is_refused",),
    "systemd and updates leave it": (f"{_LIMITS}::test_the_limit_stays_whatever_systemd_is_told",),
    "a restart": (f"{_LIMITS}::test_a_restart_has_its_limit_again",),
    "a user namespace": (f"{_LIMITS}::test_a_user_namespace_has_its_limit",),
    "root inside cannot raise it": (f"{_LIMITS}::test_root_inside_cannot_raise_it",),
    "behind oci-gpu-runtime": (f"{_LIMITS}::test_behind_the_runtime_in_front",),
    "podman": (f"{_LIMITS}::test_podman",),
    "the setting gpu-memory": (f"{_LIMITS}::test_the_administrators_setting_is_the_most",),
    "any goes where there is room": (f"{_LIMITS}::test_any_goes_where_there_is_room",),
    "no GPU is opened": (f"{_LIMITS}::test_the_hook_opens_no_gpu",),
}
