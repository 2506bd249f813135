"""Containers' names, as their engines have them, beside the ids that the ledger has.

docker is asked on its socket, which knows a new name at once; oci/engine_name.py reads engines' files. Only
commands for people ask: in processes of their own and for a second at most, so that a hanging engine costs no
more. The name of a container that is gone is in its events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from xpu_runtime.engines import docker
from xpu_runtime.ledger.events import Event
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import deadline
from xpu_runtime.observe import docker_api, engine
from xpu_runtime.oci import engine_name

_T = TypeVar("_T")
#: Seconds for all engines together.
_ANSWER_S = 1.0
#: Seconds until an engine is asked again for a name that it did not tell.
_AGAIN_S = 30.0
_MOST_BYTES = 32 << 20
#: Names that are remembered of a kind: as many as events, which are of containers that have gone, too.
_REMEMBERED = 10_000
_DOCKERS_ID = re.compile("[0-9a-f]{64}")


class Names:
    """The names that engines have reported; each is asked for once."""

    def __init__(self) -> None:
        self._of_docker: dict[str, str] = {}
        #: By the bundle, and by the id: None where containers of several namespaces have it.
        self._of_bundle: dict[str, str] = {}
        self._of_id: dict[str, str | None] = {}
        self._asked: dict[str, float] = {}
        #: This engine reports all its containers at once.
        self._asked_docker = float("-inf")

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
        if any(map(_DOCKERS_ID.fullmatch, wanted)) and now - self._asked_docker >= _AGAIN_S:
            self._asked_docker = now
            sockets = dict.fromkeys(map(docker_api.socket_of_process, engine.running(docker.PROGRAM)))
            calls += [partial(_of_docker, socket) for socket in sockets]
        of_bundles, *of_dockers = deadline.together(calls, _ANSWER_S)
        for bundle, name in of_bundles.values:
            container = new[bundle]
            _remember(self._of_bundle, {bundle: name})
            _remember(self._of_id, {container: name if self._of_id.get(container, name) == name else None})
        for answer in of_dockers:
            _remember(self._of_docker, dict(answer.values))

    def of(self, grant: Grant) -> str | None:
        """The name of the grant's container; None if none is known."""
        return self._of_docker.get(grant.container_id) or self._of_bundle.get(grant.bundle)

    def of_event(self, event: Event) -> str | None:
        """The name of an event's container: that at its grant or refusal, otherwise the present one."""
        return self.of_id(event.container_id) if event.name is None else event.name or None

    def of_id(self, container: str) -> str | None:
        """The name of the container with this id; None where none is known, or several have the id."""
        return self._of_docker.get(container) or self._of_id.get(container)


def _remember(known: dict[str, _T], new: dict[str, _T]) -> None:
    """Adds new names as the latest, and forgets the oldest beyond _REMEMBERED."""
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
        own = [name[1:] for name in names or () if isinstance(name, str) and engine_name.is_name(name[1:])]
        if isinstance(container, str) and own:
            yield container, own[0]


def _of_bundles(bundles: dict[str, str]) -> Iterator[tuple[str, str]]:
    for bundle, container in bundles.items():
        if name := engine_name.in_bundle(bundle, container):
            yield bundle, name
