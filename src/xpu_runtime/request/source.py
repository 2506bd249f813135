"""Where a request comes from: a container's environment and annotations, and who may ask that way.

An image sets variables; whoever runs the engine can set annotations as well (in Kubernetes a pod's
author can: they say what is wanted, and prove nothing). An annotation `yoyoworks.com/xpu-mem` means
XPU_MEM and wins over the variable.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError, SpecError
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import units
from xpu_runtime.request.parse import FOR_PROGRAMS, VARIABLES, nearest, parse
from xpu_runtime.request.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.oci.spec import Spec

ANNOTATION_PREFIX = "yoyoworks.com/xpu-"

#: Names that only the driver's own libraries have, in a container whose limit the wrappers of them hold
#: (quota/library.py): a loader or a program that is told to take one of these takes no wrapper.
BEHIND_THE_WRAPPERS = ("libcuda.real", "libnvidia-ml.real")

#: What the loader replaces in a path, and the variables by which it is told to load libraries.
_TOKENS = ("${ORIGIN}", "${LIB}", "${PLATFORM}", "$ORIGIN", "$LIB", "$PLATFORM")
_LOADED = ("LD_PRELOAD", "LD_AUDIT")

_GPU_MEMORY = "NVIDIA_GPU_MEMORY_LIMIT"
_REQUIRE_PREFIX = "NVIDIA_REQUIRE_"


def from_spec(spec: Spec, config: Config) -> Request | None:
    """The request of the container with this spec, None if it asks for nothing.

    RequestError where it is wrong or where the policy forbids it.
    """
    if oci_spec.is_sandbox(spec):
        return None
    environment = oci_spec.environment_of(spec)
    annotations = oci_spec.annotations_of(spec)
    privileged = oci_spec.is_privileged(spec)
    by_annotation = _annotated(annotations)
    if not (privileged or config.policy_accept_env_when_unprivileged):
        asked = sorted(name for name in environment if _is_ours(name))
        if asked and not by_annotation:
            raise RequestError(
                f"{asked[0]} is set in an unprivileged container, and the configuration's "
                "policy.accept_env_when_unprivileged is false",
                f"ask with the annotation {ANNOTATION_PREFIX}* instead",
            )
        environment = {name: environment[name] for name in FOR_PROGRAMS if name in environment}
    request = from_variables({**environment, **by_annotation}, config.cores_step)
    if request is not None:
        _check_no_way_round(oci_spec.environment_of(spec))
    if request is not None and not privileged:
        check_policy(request, config)
    return request


def asks(spec: Spec) -> bool:
    """Whether the spec names anything of ours at all, rightly or wrongly; needs no configuration."""
    if oci_spec.is_sandbox(spec):
        return False
    environment = oci_spec.environment_of(spec)
    return (
        any(_is_ours(name) for name in environment)
        or any(name.startswith(ANNOTATION_PREFIX) for name in oci_spec.annotations_of(spec))
        or bool(_selection_by_alias(environment))
    )


def asks_for_nothing(path: str) -> bool:
    """Whether the spec in the file `path` certainly names nothing of ours.

    For a spec that could not be read or used: its container may have no use for what went wrong.
    """
    try:
        try:
            spec = oci_spec.read(path)
        except SpecError:
            from xpu_runtime.oci import outline  # brings `re`

            spec = outline.read(path)
        return not asks(spec)
    except Exception:  # whatever it is: not certain
        return False


def _is_ours(name: str) -> bool:
    return name.startswith("XPU_") and name not in FOR_PROGRAMS


def _annotated(annotations: dict[str, str]) -> dict[str, str]:
    """The annotations that ask for an XPU, as the variables that they stand for."""
    found = {}
    for key, value in annotations.items():
        if key.startswith(ANNOTATION_PREFIX):
            name = "XPU_" + key[len(ANNOTATION_PREFIX) :].upper().replace("-", "_")
            if name not in VARIABLES:
                known = tuple(ANNOTATION_PREFIX + v[4:].lower().replace("_", "-") for v in VARIABLES)
                hint = nearest(key, known)
                meant = f"; did you mean {hint}?" if hint else ""
                raise RequestError(f"annotation {key[:80]} is none of {', '.join(known)}{meant}")
            found[name] = value
    return found


def from_variables(variables: dict[str, str], step: int) -> Request | None:
    """The request in a container's variables, None if they ask for nothing; RequestError if wrong.

    Any XPU_* variable makes the selection ours: NVIDIA_VISIBLE_DEVICES and NVIDIA_GPU_MEMORY_LIMIT,
    which images set, then count for nothing. Capabilities and requirements that an image states for
    its own programs hold unless an XPU_* variable says otherwise.
    """
    ours = {name: value for name, value in variables.items() if _is_ours(name)}
    if not ours:
        ours = _selection_by_alias(variables)
        if not ours:
            return None
    if "XPU_CAPABILITIES" not in ours:
        aliased = variables.get("NVIDIA_DRIVER_CAPABILITIES", "").strip()
        if aliased:
            ours["XPU_CAPABILITIES"] = aliased
    requirements = {}
    if "XPU_REQUIRE" not in ours and variables.get("NVIDIA_DISABLE_REQUIRE", "") not in ("true", "1"):
        requirements = {
            name: value
            for name, value in variables.items()
            if name.startswith(_REQUIRE_PREFIX) and value.strip()
        }
    ours.update((name, variables[name]) for name in FOR_PROGRAMS if name in variables)
    return parse(ours, step=step, requirements=requirements)


def _selection_by_alias(variables: dict[str, str]) -> dict[str, str]:
    """What the NVIDIA_* variables select, as XPU_* ones; empty where they ask for nothing."""
    devices = variables.get("NVIDIA_VISIBLE_DEVICES")
    if devices is None:
        # Images made before the variable existed say only which CUDA they bring.
        old_image = "CUDA_VERSION" in variables and "NVIDIA_REQUIRE_CUDA" not in variables
        if not old_image:
            return {}
        devices = "all"
    devices = devices.strip()
    if devices in ("", "void"):
        return {}
    found = {"XPU_VISIBLE_DEVICES": devices}
    limit = variables.get(_GPU_MEMORY, "").strip()
    if limit and devices != "none":
        # The reference's variable is a number of MiB without a unit.
        found["XPU_MEM"] = f"{limit}MiB" if limit.isdigit() else limit
    return found


def _check_no_way_round(environment: dict[str, str]) -> None:
    """RequestError if a variable (LD_PRELOAD, or one of a program) names a library behind the wrappers."""
    for name, value in environment.items():
        if any(library in value for library in BEHIND_THE_WRAPPERS) or _may_stand_for_one(name, value):
            raise RequestError(
                f"{name[:80]}={value[:80]!r} names a library that would go round the memory limit",
                f"leave {name[:80]} out",
            )


def _may_stand_for_one(name: str, value: str) -> bool:
    """Whether a token of the loader's can be the beginning of such a name: `${LIB}cuda.real` (ld.so(8)).

    What a token stands for differs by loader, so that any will do. A path that ends with one is a folder, but
    not where the loader is told what to load.
    """
    for token in _TOKENS if "$" in value else ():
        for rest in value.split(token)[1:]:
            for separator in ":; \t\n":
                rest = rest.partition(separator)[0]
            if "/" in rest or not (rest or name in _LOADED):
                continue
            if any(library.endswith(rest) for library in BEHIND_THE_WRAPPERS):
                return True
    return False


def check_policy(request: Request, config: Config) -> None:
    """RequestError if an unprivileged container may not ask for this.

    What depends on the device (a maximum as a share of it, a whole device) is checked at placement.
    """
    count = len(request.selectors) if request.choice == "list" else request.count
    if config.policy_max_count is not None and count > config.policy_max_count:
        raise RequestError(
            f"XPU_COUNT={count} is more than policy.max_count={config.policy_max_count} allows",
            f"ask for at most {config.policy_max_count}",
        )
    if (
        config.policy_max_cores is not None
        and (request.cores or 100) > config.policy_max_cores
        and request.choice != "none"
    ):
        raise RequestError(
            f"XPU_CORES={request.cores or 'not set, which means no cap,'} is more than "
            f"policy.max_cores={config.policy_max_cores} allows",
            f"ask for at most XPU_CORES={config.policy_max_cores}",
        )
    if config.policy_max_memory is not None:
        limit = units.parse_memory(config.policy_max_memory)
        for memory in request.memory:
            if limit.bytes is not None and memory.bytes is not None and memory.bytes > limit.bytes:
                raise RequestError(
                    f"XPU_MEM={memory.text()} is more than "
                    f"policy.max_memory={config.policy_max_memory} allows",
                    f"ask for at most XPU_MEM={config.policy_max_memory}",
                )
