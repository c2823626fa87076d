# SPDX-License-Identifier: Apache-2.0
"""Sections that could be a container's own, where its engine does not say: the strictest holds, and it is told."""

from __future__ import annotations

import itertools

import pytest

from oci_gpu_hook.cli import info
from oci_gpu_hook.request import settingsfile
from oci_gpu_hook.request.annotations import read_engine
from oci_gpu_hook.request.cdirequest import of_nodes
from oci_gpu_hook.request.parse import parse_request
from oci_gpu_hook.request.settings import Settings
from oci_gpu_hook.request.sources import Inputs
from oci_gpu_hook.request.state import State
from tests import crio
from tests.unit.asking import ID, VISIBLE, of_crio, refusal

# As the engines hand them.
FOLDER = "/var/lib/containers/storage/overlay-containers"
TASKS = "/run/containerd/io.containerd.runtime.v2.task"
DOCKER = State(ID, 1, f"{TASKS}/moby/{ID}")
PODMAN = State(ID, 1, f"{FOLDER}/{ID}/userdata", {"io.container.manager": "libpod"})
CONTAINERD = State(
    ID,
    1,
    f"{TASKS}/k8s.io/{ID}",
    {
        "io.kubernetes.cri.sandbox-namespace": "team",
        "io.kubernetes.cri.sandbox-name": "training",
        "io.kubernetes.cri.container-name": "main",
        "io.kubernetes.cri.image-name": "cuda:12",
    },
)
CRIO = State(ID, 1, f"/run/containers/storage/overlay-containers/{ID}/userdata", crio.container({}, {}))
ASKS = Inputs({VISIBLE: "0"})


def of(text: str, state: State | None) -> Settings:
    """What a text means for a container."""
    fields = settingsfile.fields(settingsfile.parse_text(text, "file"), state, Settings()._asdict())
    return Settings(**fields)


def annotated(state: State, **more: str) -> State:
    """With annotations that an image or a pod's author has added, or put in the place of what is there."""
    return state._replace(annotations={**state.annotations, **more})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (DOCKER, ("image", "namespace")),
        (PODMAN, ("image",)),
        (PODMAN._replace(image="cuda:12"), ()),
        (CONTAINERD, ()),
        (CRIO, ()),
        # Without a name of the image, CRI-O says that it is empty.
        (annotated(CRIO, **{"io.kubernetes.cri-o.ImageName": ""}), ("image",)),
        # Not known to be of any engine.
        (State(), ("image", "namespace")),
        (CRIO._replace(id="f" * 64), ("image", "namespace")),
        (CONTAINERD._replace(id="f" * 64), ("image", "namespace")),
        (PODMAN._replace(id="f" * 64), ("image", "namespace")),
        (PODMAN._replace(id="", bundle=f"{FOLDER}//userdata"), ("image", "namespace")),
        # What nerdctl and ctr start: their user's annotations.
        (CONTAINERD._replace(bundle=f"{TASKS}/default/{ID}"), ("image", "namespace")),
        (PODMAN._replace(bundle=f"/srv/bundles/{ID}/userdata"), ("image", "namespace")),
    ],
)
def test_what_an_engine_does_not_say(state: State, expected: tuple[str, ...]) -> None:
    assert read_engine(state)[1] == expected
    found = of("[image x]\nrecords = no\n[namespace x]\nrecords = no", state)
    assert found.unmatched == expected
    assert of("records = no", state).unmatched == (), "nothing goes by it"


@pytest.mark.parametrize(("state", "image"), [(CRIO, "registry.example.com/cuda:12"), (CONTAINERD, "cuda:12")])
def test_a_containers_pod_is_known_where_its_namespace_is(state: State, image: str) -> None:
    assert read_engine(state) == ((image, "team", "training", "main"), ())
    assert read_engine(state._replace(id="f" * 64)) == (("", "", "", ""), ("image", "namespace"))


# Every annotation that any engine says one of them in, and CRI-O's id as an image could guess it.
SAID = (
    *("io.kubernetes.cri-o.ImageName", "io.kubernetes.cri-o.Namespace", "io.kubernetes.pod.namespace"),
    *("io.kubernetes.pod.name", "io.kubernetes.container.name", "io.kubernetes.cri.image-name"),
    *("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"),
    *("io.container.image", "org.opencontainers.image.ref.name"),
)
FORGED = {
    **crio.sandbox({}),
    **crio.container({}, {}),
    **dict.fromkeys(SAID, "trusted"),
    "io.kubernetes.cri-o.ContainerID": "e" * 64,
    "io.container.manager": "libpod",
}


@pytest.mark.parametrize("engine", [DOCKER, PODMAN, State(ID, 1, "/srv/bundle")])
def test_no_annotation_of_an_image_says_which_sections_are_its_own(engine: State) -> None:
    """As podman before 4.6 hands them on."""
    said, unsaid = read_engine(annotated(engine, **FORGED))
    assert said == ("", "", "", "")
    assert unsaid == read_engine(engine)[1]
    hardened = "accept-environment = privileged\n[{} trusted]\naccept-environment = always"
    for scope in ("image", "namespace"):
        allowed = of(hardened.format(scope), annotated(engine, **FORGED))
        assert allowed.accept_environment == "privileged"


def test_a_pods_author_changes_nothing_of_what_an_engine_says() -> None:
    """What the engine says itself comes after, and no other engine's word counts."""
    names = ("io.kubernetes.cri-o.", "io.kubernetes.pod.", "io.kubernetes.container.")
    others = {key: text for key, text in FORGED.items() if not key.startswith(names)}
    others["io.kubernetes.cri-o.Namespace"] = "trusted"
    assert read_engine(annotated(CRIO, **others)) == read_engine(CRIO)
    others = {key: text for key, text in FORGED.items() if not key.startswith("io.kubernetes.cri.")}
    assert read_engine(annotated(CONTAINERD, **others)) == read_engine(CONTAINERD)


def test_of_a_pods_sandbox_crio_has_the_namespace_elsewhere() -> None:
    pod = {"io.kubernetes.pod.namespace": "trusted", "io.kubernetes.pod.name": "trusted"}
    assert read_engine(State(crio.SANDBOX, 1, "", crio.sandbox(pod))) == (("", "team", "", ""), ("image",))


def test_a_restriction_in_a_section_does_not_fail_open() -> None:
    text = "[namespace untrusted]\naccept-environment = privileged\n"
    assert of(text, DOCKER).accept_environment == "privileged"
    assert of(text, CRIO).accept_environment == of(text, PODMAN).accept_environment == "always"
    assert of(text, None) == Settings(), "of no container"
    assert "not accepted" in parse_request(ASKS, of(text, DOCKER))[1][0]


ORDERED = [key for key, kind in settingsfile.KINDS.items() if kind.strictest]


def others(key: str) -> set[object]:
    """The values of a setting beside the strictest, which must be among its values."""
    kind = settingsfile.KINDS[key]
    known = {kind.read(word) for word in kind.words}
    assert kind.strictest and known.issuperset(kind.strictest)
    return known - {*kind.strictest}


@pytest.mark.parametrize("key", ORDERED)
def test_wherever_the_strictest_stands_it_holds(key: str) -> None:
    field, (strict, *_), (lax,) = key.replace("-", "_"), settingsfile.KINDS[key].strictest or (), others(key)
    words = [info.text_of(value) for value in (strict, lax, lax)]
    for first, second, third in itertools.permutations(words):
        text = f"{key} = {first}\n[image a]\n{key} = {second}\n[namespace b]\n{key} = {third}"
        found = of(text, DOCKER)
        assert (getattr(found, field), found.unmatched_sections) == (strict, "strictest")


def test_of_lists_only_what_all_allow() -> None:
    text = "allowed-capabilities = {}\n[image a]\nallowed-capabilities = {}\n[image b]\nallowed-capabilities = {}"
    found = of(text.format("all", "utility, compute", "compute, video"), DOCKER)
    assert found.allowed_capabilities == ("compute",)
    nothing = of(text.format("all", "utility", "video"), DOCKER)
    assert nothing.allowed_capabilities == ()
    assert "none of the capabilities" in refusal(ASKS, nothing)


def test_of_vendors_all_are_more_than_any_list() -> None:
    text = "allowed-vendors = {}\n[image a]\nallowed-vendors = {}\n[image b]\nallowed-vendors = {}"
    for lists, expected in (
        (("all", "OCI_A, OCI_B", "OCI_B, OCI_C"), ("OCI_B",)),
        (("all", "all", "OCI_A"), ("OCI_A",)),
        (("all", "all", "all"), ("all",)),
        (("OCI_A", "all", ""), ()),
    ):
        assert of(text.format(*lists), DOCKER).allowed_vendors == expected


def test_where_none_is_the_strictest_the_container_is_refused() -> None:
    text = "[image a]\ndevice-cgroup = on\n[image b]\ndevice-cgroup = off"
    assert "does not say the container's image, by which" in refusal(ASKS, of(text, PODMAN))
    both = of("device-cgroup = off\n[image a]\ndevice-cgroup = on", PODMAN)
    assert both.unmatched_sections == "refuse"
    for word in ("on", "off"):
        found = of(f"[image a]\ndevice-cgroup = {word}", PODMAN)
        assert (found.device_cgroup, found.unmatched_sections) == (word, "strictest")


def test_what_is_no_restriction_stays_as_it_is_said_for_all() -> None:
    for word, other in (("yes", "no"), ("no", "yes")):
        text = f"cuda-forward-compatibility = {word}\n[image a]\ncuda-forward-compatibility = {other}"
        assert of(text, DOCKER).cuda_forward_compatibility is (word == "yes")


def test_what_is_known_to_go_before_is_not_made_stricter() -> None:
    """A namespace's word goes before that of any image, and a later line before an earlier one for the same."""
    text = "[image a]\naccept-environment = privileged\n[namespace team]\naccept-environment = always"
    assert of(text, of_crio(namespace="team")).accept_environment == "always"
    assert of(text, of_crio(namespace="b")).accept_environment == "privileged"
    twice = "[image a]\naccept-environment = privileged\n[image a]\naccept-environment = always"
    assert of(twice, DOCKER).accept_environment == "always"
    # The namespace is not said, and may go before what the image's section says.
    text = "[image a]\nrecords = no\n[namespace b]\nrecords = yes"
    assert of(text, of_crio("a")).records is True


def test_it_is_told_or_refused_and_only_to_state_asks() -> None:
    text = "[image a]\ndisable-requirements = yes\n[namespace a]\nrecords = no"
    found, (note,) = parse_request(ASKS, of(text, DOCKER))
    assert found is not None
    assert note == (
        "the engine does not say the container's image and namespace, by which settings differ: "
        "the strictest of them hold"
    )
    refusing = of(f"unmatched-sections = refuse\n{text}", DOCKER)
    assert "image and namespace, by which settings differ (the administ" in refusal(ASKS, refusing)
    assert parse_request(Inputs({}), refusing) == (None, ())
    assert parse_request(Inputs({VISIBLE: "void"}), refusing) == (None, ())
    assert parse_request(ASKS, of(f"unmatched-sections = refuse\n{text}", CRIO))[1] == ()
    hardened = of(f"accept-environment = privileged\n{text}", DOCKER)
    assert len(parse_request(ASKS, hardened)[1]) == 2


def test_so_it_is_by_cdi() -> None:
    found = of("[image a]\nrecords = no", DOCKER)
    _, (note,) = of_nodes(Inputs({VISIBLE: "void"}), found, ("/dev/nvidia0",), ("utility",))
    assert "the strictest of them hold" in note


def test_the_strictest_value_is_the_one_that_gives_least() -> None:
    strictest = {key: settingsfile.KINDS[key].strictest for key in ORDERED}
    assert strictest == {
        "device-cgroup": ("on", "off"),
        "device-group": ("host",),
        "ipc-context-mismatch": ("refuse",),
        "accept-environment": ("privileged",),
        "unaccepted-requests": ("refuse",),
        "accept-volume-mounts": (False,),
        "disable-requirements": (False,),
        "ignore-imex-channels": (True,),
        "mig-monitor": ("privileged",),
        "count-watchers": (True,),
        "records": (True,),
    }
