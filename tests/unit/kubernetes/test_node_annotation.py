"""A node's annotation reads as it was written, and a hostile one does no harm."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.kubernetes.node_annotation import NodeAnnotation, Row, read, write

GIB = 1 << 30
rows = st.builds(
    Row,
    st.sampled_from(["GPU-a", "GPU-b"]),
    st.sampled_from(["0", "1:0"]),
    st.just("Tesla T4"),
    st.integers(0, 80 * GIB),
    st.just(100),
    st.sampled_from(["", "Xid 79"]),
    st.integers(0, 80 * GIB),
    st.integers(0, 100),
    st.booleans(),
    st.sampled_from(["", "nvidia"]),
    st.sampled_from(["", "none", "hard"]),
    st.sampled_from(["", "none", "unenforced"]),
    st.integers(0, 200 * GIB),
)
shares = st.tuples(st.just("GPU-a"), st.none() | st.integers(0, 80 * GIB), st.none() | st.integers(0, 100))
of_nodes = st.builds(
    NodeAnnotation,
    st.just("580.82.07"),
    st.sampled_from(["extender", "node"]),
    st.lists(rows, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from(["u1", "u2"]), st.tuples(shares)),
    st.sampled_from([1 << 20, 1 << 30]),
    st.sampled_from([(), ("k1", "k2")]),
    st.sampled_from([(), ("aliyun.com/gpu",)]),
)


@given(of_nodes)
def test_what_is_written_is_read(annotation: NodeAnnotation) -> None:
    assert read(write(annotation)) == annotation


numbers = st.one_of(st.integers(), st.floats(), st.just(10**400), st.just("1e9"))
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
fields = ["uuid", "index", "memory", "cores", "healthy", "others", "v", "placement", "devices", "reserved"]


@given(
    st.dictionaries(st.sampled_from(fields), json_values),
    st.dictionaries(st.sampled_from(fields), json_values),
)
def test_whatever_is_written_there_is_read_or_is_a_value_error(row: object, all_of_it: object) -> None:
    device = {"uuid": "u", "index": "0", "memory": 1, "cores": 100, "healthy": True}
    assert isinstance(row, dict) and isinstance(all_of_it, dict)
    for text in (
        json.dumps({"v": 1, "placement": "extender", "devices": [{**device, **row}]}),
        json.dumps({"v": 1, "placement": "extender", "devices": [device], **all_of_it}),
    ):
        try:
            found = read(text)
        except ValueError:
            continue
        for each in found.devices:
            assert 0 <= each.memory <= 1 << 50
            assert 0 <= each.cores <= 100_000
