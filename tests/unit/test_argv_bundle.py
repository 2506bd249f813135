"""An invocation that is given another bundle than it names."""

from __future__ import annotations

import pytest

from xpu_runtime.oci import argv


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("create id", "create --bundle=/o -- id"),
        ("--root /r create -b x id", "--root /r create --bundle=/o -- id"),
        ("create id --bundle=x --bundle y", "create --bundle=/o -- id"),
        ("run --detach -- id", "run --detach --bundle=/o -- id"),
        ("create -pid-file -- --bundle x id", "create -pid-file -- --bundle=/o -- id"),
        (
            "create --console-socket s --pid-file p id",
            "create --console-socket=/b/s --pid-file p --bundle=/o -- id",
        ),
        ("create --console-socket=/s id", "create --console-socket=/s --bundle=/o -- id"),
        ("create -f config.json id", "create -f config.json --bundle=/o -- id"),
    ],
)
def test_another_bundle_takes_the_place_of_every_spelling(given: str, wanted: str) -> None:
    words = argv.with_bundle(given.split(), "/b", "/o")
    assert words == wanted.split()
    found = argv.parse(words, "/cwd")
    assert (found.bundle, found.container_id, found.creates) == ("/o", "id", True)
