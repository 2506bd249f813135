"""The limits of a grant that is released while its container is being created."""

from __future__ import annotations

import pytest

from xpu_runtime import granting
from xpu_runtime.errors import ApplyError
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.request.request import Request

from .resizing import FOUND, Container


def test_a_grant_that_was_released_meanwhile_gets_no_limit_and_no_container(container: Container) -> None:
    grant = container.grant
    with Ledger() as ledger:
        ledger.release([grant])
    with pytest.raises(ApplyError, match=f"grant {grant.id} was released while the container was being"):
        granting.impose(FOUND, grant, grant.pid, grant.start_time, proc.this_process(), None, Request())
    with Ledger() as ledger:
        assert ledger.grants() == []
    assert not container.folder.exists()
