"""Where a request comes from: a container's environment and annotations, and who may ask that way.

An image sets variables; whoever runs the engine can set annotations as well (in Kubernetes a pod's
author can: they say what is wanted, and prove nothing). An annotation `yoyoworks.com/xpu-mem` means
XPU_MEM and wins over the variable.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError, SpecError, nearest
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import units
from xpu_runtime.request.parse import FOR_PROGRAMS, TOLD, VARIABLES, Written, read, refuse
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

    RequestError where it is wrong or where the policy forbids it, with all that is wrong with it.
    """
    if oci_spec.is_sandbox(spec):
        return None
    environment = oci_spec.environment_of(spec)
    privileged = oci_spec.is_privileged(spec)
    problems: list[str] = []
    written: dict[str, Written] = {}
    by_annotation = _annotated(oci_spec.annotations_of(spec), written, problems)
    asking = environment
    if not (privileged or config.policy_accept_env_when_unprivileged):
        asked = sorted(name for name in environment if _is_ours(name))
        if asked and not by_annotation:
            raise RequestError(
                f"{asked[0]} is set in an unprivileged container, and the configuration's "
                "policy.accept_env_when_unprivileged is false",
                f"ask with the annotation {ANNOTATION_PREFIX}* instead",
            )
        asking = {name: environment[name] for name in FOR_PROGRAMS if name in environment}
    request, more = _from_variables({**asking, **by_annotation}, written, config.cores_step)
    problems += more
    if request is not None:
        problems += _ways_round(environment)
        if not privileged:
            problems += _against_policy(request, config, written)
    refuse(problems)
    if request is None:
        return None
    return _capped(request, config, privileged).replace(can_lift=oci_spec.can_lift_limits(spec))


def asks(spec: Spec) -> bool:
    """Whether the spec names anything of ours at all, rightly or wrongly; needs no configuration."""
    if oci_spec.is_sandbox(spec):
        return False
    environment = oci_spec.environment_of(spec)
    return (
        any(_is_ours(name) for name in environment)
        or any(name.startswith(ANNOTATION_PREFIX) for name in oci_spec.annotations_of(spec))
        or "XPU_VISIBLE_DEVICES" in _selection_by_alias(environment)
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


def _annotated(
    annotations: dict[str, str], written: dict[str, Written], problems: list[str]
) -> dict[str, str]:
    """The annotations that ask for an XPU, as the variables that they stand for."""
    found = {}
    for key, value in annotations.items():
        if key.startswith(ANNOTATION_PREFIX):
            name = "XPU_" + key[len(ANNOTATION_PREFIX) :].upper().replace("-", "_")
            if name not in VARIABLES:
                if len(problems) >= TOLD:
                    continue
                known = tuple(ANNOTATION_PREFIX + v[4:].lower().replace("_", "-") for v in VARIABLES)
                hint = nearest(key, known)
                meant = f"; did you mean {hint}?" if hint else ""
                problems.append(f"annotation {key[:80]} is none of {', '.join(known)}{meant}")
                continue
            found[name] = value
            written[name] = Written(key, value)
    return found


def _from_variables(
    variables: dict[str, str], written: dict[str, Written], step: int
) -> tuple[Request | None, list[str]]:
    """The request in a container's variables (None if they ask for nothing), and what is wrong with it.

    An NVIDIA_* variable counts where the XPU_* variable of the same meaning is not set, but for
    NVIDIA_VISIBLE_DEVICES: all and the like, which images set by habit, count only where nothing of ours
    is set; devices that are named there are meant.
    """
    ours = {name: value for name, value in variables.items() if _is_ours(name)}
    selection = _selection_by_alias(variables)
    devices = selection.get("XPU_VISIBLE_DEVICES")
    if ours:
        if devices and devices.value in ("all", "none"):
            del selection["XPU_VISIBLE_DEVICES"]
    elif not devices:
        return None, []
    for name, alias in selection.items():
        if name not in ours:
            written[name] = alias
            ours[name] = _in_our_terms(name, alias)
    requirements = {}
    if "XPU_REQUIRE" not in ours and variables.get("NVIDIA_DISABLE_REQUIRE", "") not in ("true", "1"):
        requirements = {
            name: value
            for name, value in variables.items()
            if name.startswith(_REQUIRE_PREFIX) and value.strip()
        }
    ours.update((name, variables[name]) for name in FOR_PROGRAMS if name in variables)
    return read(ours, step=step, requirements=requirements, written=written)


def _in_our_terms(name: str, alias: Written) -> str:
    # The reference's amount of memory is a number of MiB without a unit.
    return f"{alias.value}MiB" if name == "XPU_MEM" and alias.value.isdigit() else alias.value


def _selection_by_alias(variables: dict[str, str]) -> dict[str, Written]:
    """What the NVIDIA_* variables ask for, by the XPU_* variable of the same meaning."""
    found = {}
    devices = variables.get("NVIDIA_VISIBLE_DEVICES")
    if devices is None and "CUDA_VERSION" in variables and "NVIDIA_REQUIRE_CUDA" not in variables:
        devices = "all"  # images made before the variable existed say only which CUDA they bring
    devices = (devices or "").strip()
    if devices not in ("", "void"):
        found["XPU_VISIBLE_DEVICES"] = Written("NVIDIA_VISIBLE_DEVICES", devices)
    limit = variables.get(_GPU_MEMORY, "").strip()
    if limit and devices != "none":
        found["XPU_MEM"] = Written(_GPU_MEMORY, limit)
    capabilities = variables.get("NVIDIA_DRIVER_CAPABILITIES", "").strip()
    if capabilities:
        found["XPU_CAPABILITIES"] = Written("NVIDIA_DRIVER_CAPABILITIES", capabilities)
    return found


def _ways_round(environment: dict[str, str]) -> list[str]:
    """What variables (LD_PRELOAD, or one of a program) name a library behind the wrappers."""
    return [
        f"{name[:80]}={value[:80]!r} names a library that would go round the memory limit: "
        f"leave {name[:80]} out"
        for name, value in environment.items()
        if any(library in value for library in BEHIND_THE_WRAPPERS) or _may_stand_for_one(name, value)
    ]


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


def _against_policy(request: Request, config: Config, written: dict[str, Written]) -> list[str]:
    """What an unprivileged container may not ask for.

    What depends on the device (a maximum as a share of it, the number that `all` means) is checked at
    placement.
    """

    def told(name: str, value: str) -> str:
        name = written[name].name if name in written else name
        return f"{name}{': ' if '/' in name else '='}{value}"

    found = []
    maximum = config.policy_max_count
    if maximum is not None and request.count > maximum:
        found.append(
            f"{request.count} devices are asked for, and policy.max_count={maximum} allows {maximum}"
        )
    cores = config.policy_max_cores
    if cores is not None and (request.cores or 0) > cores:
        asked = told("XPU_CORES", str(request.cores))
        found.append(f"{asked} is more than policy.max_cores={cores} allows: ask for at most {cores}")
    if config.policy_max_memory is not None:
        limit = units.parse_memory(config.policy_max_memory)
        for memory in request.memory:
            if limit.bytes is not None and memory.bytes is not None and memory.bytes > limit.bytes:
                found.append(
                    f"{told('XPU_MEM', memory.text())} is more than policy.max_memory={limit.text()} allows: "
                    f"ask for at most {limit.text()}"
                )
                break
    return found


def _capped(request: Request, config: Config, privileged: bool) -> Request:
    """The request with the cores that it gets where it asks for none: the default, or else the maximum.

    Of memory that depends on the device: see plan/granting.py.
    """
    if request.cores is not None or request.choice == "none":
        return request
    cores, origin = config.defaults_cores, "defaults.cores"
    maximum = None if privileged else config.policy_max_cores
    if maximum is not None and (cores or 100) > maximum:
        # A multiple of the step, so that what a refusal offers can be asked for.
        cores, origin = maximum // config.cores_step * config.cores_step or maximum, "policy.max_cores"
    return request if cores is None else request.replace(cores=cores, cores_from=origin)
