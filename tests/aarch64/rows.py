# SPDX-License-Identifier: Apache-2.0
"""Which tests run on aarch64: those that meet what an architecture decides.

That is the system calls' numbers and structs, programs for the device cgroup, ELF files, ld.so.cache and its order,
the library folders of a distribution, and what NVIDIA has for this architecture.  Must not run anything.
"""

from __future__ import annotations

_SYSCALLS = "tests/unit/test_syscalls.py"
_ELF = "tests/unit/test_elf.py"
_CACHE = "tests/unit/test_ldcache_glibc.py"
_JOB = "tests/integration/test_main_job.py"
_NVML = "tests/integration/test_nvml.py"
_CGROUP = "tests/integration/test_cgroup.py"
_VOCABULARY = "tests/integration/test_vocabulary.py"
_FILES = "tests/integration/test_vocabulary_files.py"
_DOCTOR = "tests/integration/test_doctor.py"
_RUNTIME = "tests/integration/test_runtime.py"
_PODMAN = "tests/integration/test_podman.py"
_PLATFORMS = "tests/integration/test_platforms.py"

WORKERS = 2
# What a row shows, and its tests; the slow ones come first, so that at the end no processor waits for the other.
ROWS = {
    "runc: two of eight GPUs, by number": (f"{_JOB}::test_a_container_has_exactly_what_it_asked_for[runc-v2]",),
    "crun: two of eight GPUs, by number": (f"{_JOB}::test_a_container_has_exactly_what_it_asked_for[crun-v2]",),
    "MIG devices by each of their names": (f"{_VOCABULARY}::test_mig_devices_by_each_of_their_names",),
    "GPUs by UUID; an unknown one is refused": (f"{_VOCABULARY}::test_a_share_of_a_swarm_resource_is_the_gpu_itself",),
    "graphics, with Vulkan's file for this architecture": (f"{_FILES}::test_graphics_come_beside_the_images_own",),
    "a Jetson": (f"{_PLATFORMS}::test_a_jetson_gives_what_its_lists_say[runc-v2]",),
    "inventory refresh asks NVML": (f"{_NVML}::test_refresh_knows_what_only_nvml_knows[h100mig]",),
    "doctor finds nothing": (f"{_DOCTOR}::test_all_passes_on_a_whole_node[h100mig-v2]",),
    "podman: a read-only container runs CUDA's program": (f"{_PODMAN}::test_a_read_only_container_works",),
    "podman: why it is refused stands where its user reads": (f"{_PODMAN}::test_podman_shows_our_sentence[runc]",),
    "oci-gpu-runtime": (f"{_RUNTIME}::test_it_adds_the_hook_and_becomes_the_runtime[runc-v2]",),
    "no request: nothing is touched": (f"{_JOB}::test_a_container_that_asks_for_nothing_is_left_alone[runc-v2]",),
    "runc: a user namespace": (f"{_JOB}::test_in_a_user_namespace_the_hosts_nodes_are_bound[runc-v2-100000]",),
    "CUDA's programs run in any image": (
        f"{_JOB}::test_a_program_linked_to_libcuda_starts_in_any_image[crun-bare]",
        f"{_JOB}::test_a_program_linked_to_libcuda_starts_in_any_image[runc-musl]",
    ),
    "exit codes": (f"{_JOB}::test_stages_that_have_nothing_to_do_or_are_refused",),
    "and without the hook in none": (f"{_JOB}::test_the_same_program_fails_without_the_hook",),
    "system calls and structs are the kernel headers'": (_SYSCALLS,),
    "ELF: a library of the C compiler": (f"{_ELF}::test_a_library_of_the_compiler_is_identified[bfd]",),
    "ld.so.cache: as ldconfig lists it": (f"{_CACHE}::test_a_cache_of_ldconfig_reads_as_ldconfig_lists_it",),
    "ld.so.cache: ldconfig's order": (
        f"{_CACHE}::test_caches_have_the_order_of_ldconfig",
        f"{_CACHE}::test_ours_get_the_place_that_ldconfig_gives_them_among_hundreds",
    ),
    "device cgroup: a program is replaced, and put back": (
        f"{_CGROUP}::test_only_the_given_devices_open_as_they_are_given",
        f"{_CGROUP}::test_undo_puts_the_runtimes_own_program_back",
    ),
    "device cgroup: a program that the kernel hides": (
        f"{_CGROUP}::test_a_program_that_is_not_shown_is_rebuilt_from_the_rules",
    ),
    "device cgroup: what the verifier refuses is an error": (f"{_CGROUP}::test_what_the_verifier_refuses_is_an_error",),
}
