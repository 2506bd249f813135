"""The assignment of a pod. The signature is checked before the content is read. Only a valid assignment
counts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xpu_runtime.request import assignment
from xpu_runtime.request.assignment import Assignment, AssignmentError, Share, read, read_keys, sign

GIB = 1 << 30
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
KEYS = {"k1": KEY, "old": OTHER}
ASSIGNED = Assignment(
    "uid-1",
    "node-1",
    1_700_000_000.25,
    {
        "main": (Share("GPU-0", 4 * GIB, 30), Share("GPU-1", 4 * GIB, 30)),
        "side": (Share("GPU-0", GIB, None),),
    },
    {"prepare": (Share("GPU-1", None, None),)},
    {"log": (Share("GPU-0", GIB, 5),)},
)


def refusal(text: str, keys: dict[str, bytes] = KEYS) -> str:
    with pytest.raises(AssignmentError) as caught:
        read(text, keys)
    assert caught.value.code == "wrong-assignment"
    return str(caught.value)


def signed(payload: Any, key: bytes = KEY) -> str:
    """Any text, signed with the key."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    text = f"v1.k1.{base64.urlsafe_b64encode(content).decode().rstrip('=')}"
    mac = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def payload(**changes: Any) -> dict[str, Any]:
    return {"uid": "u", "node": "n", "made": 1.5, "containers": {"c": [["GPU-0", 5, None]]}, **changes}


@pytest.mark.parametrize(("name", "key"), KEYS.items())
def test_each_holder_of_the_key_reads_a_signed_assignment(name: str, key: bytes) -> None:
    assert read(sign(ASSIGNED, name, key), KEYS) == ASSIGNED


def test_the_format_is_the_documented_one() -> None:
    version, key, content, mac = sign(ASSIGNED, "k1", KEY).split(".")
    assert (version, key) == ("v1", "k1")
    plain = json.loads(base64.urlsafe_b64decode(content + "=" * (-len(content) % 4)))
    assert plain == {
        "uid": "uid-1",
        "node": "node-1",
        "made": 1_700_000_000.25,
        "containers": {
            "main": [["GPU-0", 4 * GIB, 30], ["GPU-1", 4 * GIB, 30]],
            "side": [["GPU-0", GIB, None]],
        },
        "init": {"prepare": [["GPU-1", None, None]]},
        "sidecars": {"log": [["GPU-0", GIB, 5]]},
    }
    expected = hmac.new(KEY, f"v1.k1.{content}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(mac + "=" * (-len(mac) % 4)) == expected
    assert "=" not in content + mac and "init" not in json.dumps(payload())


def test_the_shares_of_any_kind_of_container_are_found_by_its_name() -> None:
    assert ASSIGNED.of("side") == (Share("GPU-0", GIB, None),)
    assert ASSIGNED.of("prepare") == (Share("GPU-1", None, None),)
    assert ASSIGNED.of("log") == (Share("GPU-0", GIB, 5),)
    assert ASSIGNED.of("other") == ()


@given(st.integers(0, len(sign(ASSIGNED, "k1", KEY)) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_changed_character_makes_the_assignment_invalid(place: int, character: str) -> None:
    text = sign(ASSIGNED, "k1", KEY)
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        refusal(changed)


def test_a_signature_by_another_key_or_for_another_key_id_is_refused() -> None:
    assert "forged or damaged: its signature is wrong" in refusal(sign(ASSIGNED, "k1", OTHER))
    told = refusal(sign(ASSIGNED, "k9", KEY))
    assert "signed with the key 'k9', which this node does not have (it has k1, old)" in told
    version, _, content, mac = sign(ASSIGNED, "k1", KEY).split(".")
    assert "its signature is wrong" in refusal(f"{version}.old.{content}.{mac}")
    assert "(it has none)" in refusal(sign(ASSIGNED, "k1", KEY), {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "v1.k1.e30",
        "v1.k1.e30.e30.e30",
        "v1..e30.e30",
        "v1.k 1.e30.e30",
        "\N{SNOWMAN}.k1.e30.e30",
        "x" * (1 << 20),
    ],
)
def test_a_text_in_another_form_is_refused_with_the_form(text: str) -> None:
    assert "has not the form v1.KEYID.PAYLOAD.MAC" in refusal(text)


def test_another_version_is_refused_with_the_known_one() -> None:
    assert "has the version 'v2', and this runtime knows v1" in refusal("v2.k1.e30.e30")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        ([], "not an object"),
        (payload(uid=""), "no pod or no node"),
        (payload(node=3), "no pod or no node"),
        (payload(made="now"), "when it was made"),
        (payload(made=True), "when it was made"),
        (payload(made=10**400), "when it was made"),
        (payload(containers=[]), "not an object"),
        (payload(containers={}), "names no container"),
        (payload(containers={"c": []}), "no list of shares"),
        (payload(containers={"c": {}}), "no list of shares"),
        (payload(containers={"": [["GPU-0", 1, None]]}), "no list of shares"),
        (payload(containers={"c": [["GPU-0", 1]]}), "is not [UUID, MEMORY, CORES]"),
        (payload(containers={"c": [["", 1, None]]}), "names no device"),
        (payload(containers={"c": [["GPU-0", 0, None]]}), "not a number of bytes"),
        (payload(containers={"c": [["GPU-0", 1.5, None]]}), "not a number of bytes"),
        (payload(containers={"c": [["GPU-0", 1 << 63, None]]}), "not a number of bytes"),
        (payload(containers={"c": [["GPU-0", True, None]]}), "not a number of bytes"),
        (payload(containers={"c": [["GPU-0", 1, 101]]}), "not a percentage"),
        (payload(containers={"c": [["GPU-0", 1, 0]]}), "not a percentage"),
        (payload(containers={"c": [["GPU-0", 1, None], ["GPU-0", 1, None]]}), "two shares of one device"),
        (payload(containers={"c": [["GPU-0", 1, None], ["GPU-1", None, None]]}), "differ in their kind"),
        (payload(containers={"c": [["GPU-0", 1, 5], ["GPU-1", 1, 10]]}), "differ in their kind or cores"),
        (payload(init={"c": [["GPU-0", 1, None]]}), "names a container twice"),
    ],
)
def test_a_signed_payload_with_invalid_content_is_refused(content: Any, told: str) -> None:
    assert told in refusal(signed(content))


def test_an_invalid_assignment_is_not_signed() -> None:
    with pytest.raises(AssignmentError, match="names no container"):
        sign(ASSIGNED.replace(containers={}, init={}, sidecars={}), "k1", KEY)
    with pytest.raises(AssignmentError, match="not a usable key"):
        sign(ASSIGNED, "k1", KEY[:31])
    with pytest.raises(AssignmentError, match="not a usable key"):
        sign(ASSIGNED, "k.1", KEY)


@example(b"k" * 65, b"longer than a block")
@given(st.binary(min_size=0, max_size=200), st.binary(min_size=0, max_size=300))
def test_the_signature_is_hmac_sha256(key: bytes, message: bytes) -> None:
    assert assignment._hmac(key, message) == hmac.new(key, message, hashlib.sha256).digest()


def test_keys_are_read_in_their_order_with_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of March\nnew {OTHER.hex()}  # signs\n\n  k1\t{KEY.hex().upper()}\n")
    assert list(read_keys(str(file)).items()) == [("new", OTHER), ("k1", KEY)]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no key"),
        (b"# nothing\n", "has no key"),
        (b"k1 " + KEY[:31].hex().encode(), "line 1 is not a key"),
        (b"k1", "line 1 is not a key"),
        (b"k1 " + KEY.hex().encode() + b" more", "line 1 is not a key"),
        (b"k.1 " + KEY.hex().encode(), "line 1 is not a key"),
        (b"\nk1 " + b"z" * 64, "line 2 is not a key"),
        (b"k1 " + KEY.hex().encode() + b"\nk1 " + OTHER.hex().encode(), "line 2 has a key's id again"),
        (b"\xff", "are not text"),
    ],
)
def test_the_error_for_an_invalid_key_file_does_not_show_the_secret(
    tmp_path: Path, content: bytes, told: str
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(AssignmentError) as caught:
        read_keys(str(file))
    assert told in str(caught.value) and "KEYID HEX" in str(caught.value)
    assert KEY.hex()[:16] not in str(caught.value)


def test_a_missing_key_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssignmentError, match="cannot be read"):
        read_keys(os.path.join(tmp_path, "keys"))
