"""Our encoding of the kubelet's messages, compared with protobuf's on protoc's own classes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.stand_in_kubelet import PLUGIN, RESOURCES
from xpu_runtime.kubernetes.device_plugin import v1beta1
from xpu_runtime.kubernetes.device_plugin.wire import Message

#: Ours and protoc's; in the same order of fields, which have names of their own here and there.
PAIRS = [
    (v1beta1.Empty, PLUGIN.Empty),
    (v1beta1.DevicePluginOptions, PLUGIN.DevicePluginOptions),
    (v1beta1.RegisterRequest, PLUGIN.RegisterRequest),
    (v1beta1.Device, PLUGIN.Device),
    (v1beta1.ListAndWatchResponse, PLUGIN.ListAndWatchResponse),
    (v1beta1.AllocateRequest, PLUGIN.AllocateRequest),
    (v1beta1.AllocateResponse, PLUGIN.AllocateResponse),
    (v1beta1.PreStartContainerRequest, PLUGIN.PreStartContainerRequest),
    (v1beta1.ListPodResourcesResponse, RESOURCES.ListPodResourcesResponse),
]


def theirs_of(ours: Message, kind: Any) -> Any:
    """The same message as protoc's class, field by field by their numbers."""
    made = kind()
    by_number = {field.number: field for field in kind.DESCRIPTOR.fields}
    for name, (number, *_) in ours.WIRE.items():
        field, value = by_number[number], getattr(ours, name)
        if field.message_type is None:
            if field.is_repeated:
                getattr(made, field.name).extend(value)
            else:
                setattr(made, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            getattr(made, field.name).update(value)
        elif field.is_repeated:
            each_kind = getattr(made, field.name)
            for each in value:
                each_kind.add().CopyFrom(theirs_of(each, type(getattr(kind(), field.name).add())))
        elif value is not None:
            getattr(made, field.name).CopyFrom(theirs_of(value, type(getattr(made, field.name))))
    return made


TEXT = st.text(max_size=200)
IDS = st.lists(TEXT, max_size=20).map(tuple)
DEVICES = st.lists(st.builds(v1beta1.Device, TEXT, TEXT), max_size=200).map(tuple)
MESSAGES = st.one_of(
    st.builds(v1beta1.ListAndWatchResponse, DEVICES),
    st.builds(
        v1beta1.RegisterRequest,
        TEXT,
        TEXT,
        TEXT,
        st.none() | st.builds(v1beta1.DevicePluginOptions, st.booleans()),
    ),
    st.builds(v1beta1.PreStartContainerRequest, IDS),
    st.builds(
        v1beta1.AllocateResponse,
        st.lists(
            st.builds(v1beta1.ContainerAllocateResponse, st.dictionaries(TEXT, TEXT, max_size=3)), max_size=3
        ).map(tuple),
    ),
)
KINDS = dict(PAIRS)


@given(MESSAGES)
def test_a_message_is_the_one_that_protobuf_reads_and_the_other_way_round(ours: Message) -> None:
    theirs = theirs_of(ours, KINDS[type(ours)])
    assert KINDS[type(ours)].FromString(ours.encoded()) == theirs
    assert type(ours).decoded(theirs.SerializeToString()) == ours


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_field_has_the_number_and_kind_of_the_kubelets(ours: Any, theirs: Any) -> None:
    numbers = {number for number, *_ in ours.WIRE.values()}
    known = {field.number for field in theirs.DESCRIPTOR.fields}
    assert numbers <= known
    assert ours.decoded(theirs().SerializeToString()) == ours()


def test_fields_that_are_not_known_are_skipped() -> None:
    theirs = PLUGIN.ListAndWatchResponse()
    device = theirs.devices.add(ID="a", health="Healthy")
    device.topology.nodes.add(ID=7)
    assert v1beta1.ListAndWatchResponse.decoded(theirs.SerializeToString()).devices == (
        v1beta1.Device("a", "Healthy"),
    )
    # One of each wire type, with number 15.
    more = b"\x7a\x01x" + b"\x78\x96\x01" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)
    assert v1beta1.Device.decoded(b"\x0a\x01a" + more) == v1beta1.Device("a")


@given(st.sampled_from([ours for ours, _ in PAIRS]), st.binary(max_size=64))
def test_bytes_that_are_no_message_are_refused_and_do_no_more(ours: type[Message], data: bytes) -> None:
    try:
        assert isinstance(ours.decoded(data), ours)
    except ValueError:
        pass


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05abc", b"\x0a\x01\xff", b"\x0b", b"\x08\x01", b"\x0a" + b"\xff" * 11, b"\x09"]
)
def test_a_message_cut_short_or_of_another_kind_has_no_device(data: bytes) -> None:
    with pytest.raises(ValueError):
        v1beta1.Device.decoded(data)
