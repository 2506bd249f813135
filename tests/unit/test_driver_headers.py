"""native/headers agrees with NVIDIA's headers of CUDA and NVML; pyproject.toml names the wheels with them.

The compiler compares. Types and order of a function's parameters, the value of each name, and of every struct
the place, size and kind of each field must be the same; names of parameters are our own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import headers
from support import REPOSITORY
from support.declarations import Header, compare_functions, meaning

#: Ours and NVIDIA's, both with each variant of a function that they know. (`api` has the parts of ours.)
HEADERS = {
    "cuda": (
        Header(REPOSITORY / "native/headers/cuda/cuda_api.h", prefix="cu"),
        Header(
            headers.installed("nvidia-cuda-runtime") / "cuda.h", ("__CUDA_API_VERSION_INTERNAL",), prefix="cu"
        ),
    ),
    "nvml": (
        Header(REPOSITORY / "native/headers/nvml/nvml.h", prefix="nvml"),
        Header(
            headers.installed("nvidia-nvml-dev") / "nvml.h", ("NVML_NO_UNVERSIONED_FUNC_DEFS",), prefix="nvml"
        ),
    ),
}
#: Ours is above every value that a future driver may know; NVIDIA's has one more in each CUDA.
OUR_OWN_VALUE = {"CU_DEVICE_ATTRIBUTE_MAX"}

each = pytest.mark.parametrize("ours, theirs", HEADERS.values(), ids=HEADERS.keys())


@each
def test_each_function_has_the_parameters_that_nvidia_declares(ours: Header, theirs: Header) -> None:
    declared = ours.functions()
    assert len(declared) > 100
    assert sorted(declared - theirs.functions()) == []
    compare_functions(theirs, ours)


@each
def test_each_value_type_and_field_is_as_nvidia_declares_it(
    tmp_path: Path, ours: Header, theirs: Header
) -> None:
    values, types = ours.values() - OUR_OWN_VALUE, ours.types()
    assert len(values) > 40 and len(types) > 20
    assert meaning(ours, values, types, tmp_path) == meaning(theirs, values, types, tmp_path)


OURS = """
#ifndef TYPES
#define TYPES
typedef enum { CU_ONE = 1, CU_TWO } CUnumber;
typedef struct CUthing_st {
    unsigned int width, height[2];
    struct { union { int fd; void *(*handle)(int); } is; } parts[3];
    CUnumber number;
} CUthing;
#endif
int cuThing(CUthing *thing, unsigned int flags);
"""


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ("a parameter's type", ("unsigned int flags", "unsigned long flags")),
        (
            "the order of parameters",
            ("CUthing *thing, unsigned int flags", "unsigned int flags, CUthing *thing"),
        ),
        ("a value", ("CU_ONE = 1", "CU_ONE = 2")),
        ("the order of fields", ("width, height[2]", "height[2], width")),
        ("a field's sign", ("unsigned int width", "int width")),
        ("a field further in", ("int fd;", "long fd;")),
        ("an array's length", ("parts[3]", "parts[4]")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_difference_is_found(tmp_path: Path, change: str, by: tuple[str, str]) -> None:
    def header(name: str, text: str) -> Header:
        path = tmp_path / name / "cuda.h"
        path.parent.mkdir()
        path.write_text(text)
        return Header(path, prefix="cu")

    ours, theirs = header("ours", OURS), header("theirs", OURS.replace(*by))
    assert ours.functions() == {"cuThing"}
    assert ours.values() == {"CU_ONE", "CU_TWO"}
    assert ours.types() == {
        "CUnumber": [],
        "CUthing": ["width", "height", "parts[0].is.fd", "parts[0].is.handle", "number"],
    }
    assert OURS.replace(*by) != OURS
    compare_functions(ours, ours)
    with pytest.raises((ValueError, AssertionError)):
        compare_functions(theirs, ours)
        assert meaning(ours, ours.values(), ours.types(), tmp_path) == meaning(
            theirs, ours.values(), ours.types(), tmp_path
        )


@pytest.mark.parametrize(
    ("values", "types"),
    [({"CU_NO_SUCH"}, {}), (set(), {"CUno_such": []}), (set(), {"CUmemLocation": ["no_such"]})],
)
def test_a_name_that_nvidia_does_not_have_is_found(
    tmp_path: Path, values: set[str], types: dict[str, list[str]]
) -> None:
    with pytest.raises(ValueError, match=r"(?i)no_such"):
        meaning(HEADERS["cuda"][1], values, types, tmp_path)
