"""Containers' names, as their engines have them, beside the ids that the ledger has.

docker is asked on its socket. containerd's namespace is in the path of the bundle, and Kubernetes' names and
nerdctl's are in its config.json. Only commands for people ask: in processes of their own and for a second at
most, so that an engine that hangs costs no more than that, and its names. A name is others' text: what has
a character that no engine's name has, or is longer than any, counts as none.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from xpu_runtime.doctor import bounded, docker_api, engine
from xpu_runtime.engines import docker
from xpu_runtime.errors import SpecError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.oci import spec as oci_spec

_T = TypeVar("_T")
#: Seconds for all engines together.
_ANSWER_S = 1.0
#: Seconds until an engine is asked again for a name that it did not tell.
_AGAIN_S = 30.0
_MOST_BYTES = 32 << 20
#: Names that are remembered of a kind: as many as events, which are of containers that have gone, too.
_REMEMBERED = 10_000
#: Of docker and nerdctl, and of each part of Kubernetes' (DNS names) and containerd's.
_PART = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_DOCKERS_ID = re.compile("[0-9a-f]{64}")

#: The folder of containerd's shims: a bundle is FOLDER/NAMESPACE/ID.
_TASKS = "io.containerd.runtime.v2.task"
#: containerd's namespaces of docker, which alone knows the names there, and of Kubernetes.
_MOBY, _KUBERNETES = "moby", "k8s.io"
#: What containerd's CRI plugin writes (internal/cri/annotations): namespace, pod and container.
_CRI = tuple(f"io.kubernetes.cri.{each}" for each in ("sandbox-namespace", "sandbox-name", "container-name"))
#: nerdctl's labels are annotations, too (its pkg/labels).
_NERDCTL = "nerdctl/name"


class Names:
    """The names that engines have told; each is asked for once."""

    def __init__(self) -> None:
        self._of_docker: dict[str, str] = {}
        #: By the bundle, and by the id: None where containers of several namespaces have it.
        self._of_bundle: dict[str, str] = {}
        self._of_id: dict[str, str | None] = {}
        self._asked: dict[str, float] = {}

    def learn(self, grants: Iterable[Grant], ids: Iterable[str] = ()) -> None:
        """Asks for the names of grants' containers, and of those with other `ids`, which may be gone."""
        now = time.monotonic()
        new = {grant.bundle: grant.container_id for grant in grants if self.of(grant) is None}
        wanted = {*new, *new.values(), *(each for each in ids if self.of_id(each) is None)}
        wanted = {each for each in wanted if now - self._asked.get(each, -_AGAIN_S) >= _AGAIN_S}
        if not wanted:
            return
        _remember(self._asked, dict.fromkeys(wanted, now))
        bundles = {bundle: container for bundle, container in new.items() if bundle in wanted}
        calls: list[Callable[[], Iterator[tuple[str, str]]]] = [partial(_of_bundles, bundles)]
        if any(map(_DOCKERS_ID.fullmatch, wanted)):
            sockets = dict.fromkeys(map(docker_api.socket_of_process, engine.running(docker.PROGRAM)))
            calls += [partial(_of_docker, socket) for socket in sockets]
        of_bundles, *of_dockers = bounded.together(calls, _ANSWER_S)
        for bundle, name in of_bundles.values:
            container = new[bundle]
            _remember(self._of_bundle, {bundle: name})
            _remember(self._of_id, {container: name if self._of_id.get(container, name) == name else None})
        for answer in of_dockers:
            _remember(self._of_docker, dict(answer.values))

    def of(self, grant: Grant) -> str | None:
        """The name of the grant's container; None where none is known."""
        return self._of_docker.get(grant.container_id) or self._of_bundle.get(grant.bundle)

    def of_id(self, container: str) -> str | None:
        """The name of the container with this id; None where none is known, or several have the id."""
        return self._of_docker.get(container) or self._of_id.get(container)


def _remember(known: dict[str, _T], new: dict[str, _T]) -> None:
    """Adds what is new, as the latest, and forgets the oldest beyond _REMEMBERED."""
    for key, value in new.items():
        known.pop(key, None)
        known[key] = value
    for key in list(known)[:-_REMEMBERED]:
        del known[key]


def of(grants: Iterable[Grant]) -> Names:
    """The names of the grants' containers."""
    names = Names()
    names.learn(grants)
    return names


def _of_docker(socket: str) -> Iterator[tuple[str, str]]:
    """Id and name of each container of a dockerd, of stopped ones too (GET /containers/json)."""
    try:
        told = docker_api.get(socket, "/containers/json?all=1", _ANSWER_S, _MOST_BYTES)
    except (OSError, ValueError):
        return
    for each in told if isinstance(told, list) else ():
        container, names = (each.get("Id"), each.get("Names")) if isinstance(each, dict) else (None, None)
        # A name begins with a slash; with two it is another container's link to it.
        own = [name[1:] for name in names or () if isinstance(name, str) and _PART.fullmatch(name[1:])]
        if isinstance(container, str) and own:
            yield container, own[0]


def _of_bundles(bundles: dict[str, str]) -> Iterator[tuple[str, str]]:
    for bundle, container in bundles.items():
        name = _of_containerd(bundle, container)
        if name is not None:
            yield bundle, name


def _of_containerd(bundle: str, container: str) -> str | None:
    """NAMESPACE/POD/CONTAINER in Kubernetes, else containerd's NAMESPACE/ID, with nerdctl's name for the id.

    Only of containerd's own bundles, and Kubernetes' annotations only in its namespace there: others can
    write what they like into theirs.
    """
    folder, _, name = bundle.rpartition("/")
    tasks, _, namespace = folder.rpartition("/")
    if os.path.basename(tasks) != _TASKS or name != container or namespace == _MOBY:
        return None
    try:
        annotations = oci_spec.read(oci_spec.path_in(bundle)).get("annotations")
    except (SpecError, RecursionError):
        annotations = None  # it is being made, or has just ended, or is hostile
    told = annotations if isinstance(annotations, dict) else {}
    if namespace == _KUBERNETES and (pod := _joined(*(told.get(each) for each in _CRI))):
        return pod
    return _joined(namespace, told.get(_NERDCTL)) or _joined(namespace, container)


def _joined(*parts: object) -> str | None:
    texts = [each for each in parts if isinstance(each, str) and _PART.fullmatch(each)]
    return "/".join(texts) if len(texts) == len(parts) else None
