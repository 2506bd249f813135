"""The request of a container, from its environment and annotations, checked against the policy.

Any image can set variables. The engine sets annotations, and in Kubernetes the pod's author does. So neither
proves a privilege. The annotation `yoyoworks.com/xpu-mem` means XPU_MEM and overrides the variable. This
module knows specs and the configuration, but not the devices or the ledger.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError, SpecError, did_you_mean
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import units
from xpu_runtime.request.parse import (
    ALLOCATED,
    AMOUNTS,
    ANNOTATION_PREFIX,
    CDI_PREFIX,
    MAX_PROBLEMS,
    Spelling,
    annotation_of,
    is_annotation,
    read,
    refuse,
    variable_of,
)
from xpu_runtime.request.request import FOR_PROGRAMS, PRIORITIES, VARIABLES, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.oci.spec import Spec
    from xpu_runtime.request.pod_container import PodContainer

#: Names that the driver's own libraries have in a container whose limit the interposers hold
#: (limits/interposed.py): a loader or program that is told to load one of these bypasses the interposers.
REAL_LIBRARIES = ("libcuda.real", "libnvidia-ml.real")

#: The tokens that the loader expands in a path, and the variables that make it load libraries.
_TOKENS = ("${ORIGIN}", "${LIB}", "${PLATFORM}", "$ORIGIN", "$LIB", "$PLATFORM")
_LOADED_BY = ("LD_PRELOAD", "LD_AUDIT")

#: The vendor whose devices the NVIDIA_* variables mean.
_NVIDIA = "nvidia"
_GPU_MEMORY = "NVIDIA_GPU_MEMORY_LIMIT"
_REQUIRE_PREFIX = "NVIDIA_REQUIRE_"


def from_spec(spec: Spec, config: Config, bundle: str = "") -> Request | None:
    """The request of the container with this spec; None if it asks for nothing. `bundle`: the engine's.

    RequestError, with all problems, if the request is wrong or against the policy.
    """
    annotations = oci_spec.annotations_of(spec)
    environment = oci_spec.environment_of(spec)
    kind = oci_spec.kind_in_pod(annotations)
    if kind == "sandbox":
        return None
    if kind:
        from xpu_runtime.request import assignment, pod

        by_pod, container = pod.asks_by_pod(environment, annotations, config)
        if by_pod:
            return None if container is None else _of_pod(spec, environment, annotations, container, config)
        annotations.pop(assignment.ANNOTATION, None)
    privileged = oci_spec.is_privileged(spec)
    problems: list[str] = []
    spellings: dict[str, Spelling] = {}
    by_annotation = _annotated(annotations, spellings, problems)
    requesting = environment
    if not (privileged or config.policy_accept_env_when_unprivileged):
        asked = sorted(name for name in environment if _is_ours(name))
        if asked and not by_annotation:
            raise RequestError(_not_by_variable(asked[0]))
        requesting = {name: environment[name] for name in FOR_PROGRAMS if name in environment}
    variables = {**requesting, **by_annotation}
    if _is_by_image(variables):
        from xpu_runtime.oci import build_step  # few containers ask this way

        if build_step.is_one(bundle, spec):
            return None
    request, more = _from_variables(variables, spellings, config)
    problems += more
    if request is not None:
        problems += _bypasses(environment)
        if not privileged:
            problems += _policy_violations(request, config, spellings)
    refuse(problems)
    if request is None:
        return None
    request = request.replace(
        privileged=privileged,
        can_lift=oci_spec.can_lift_limits(spec),
        annotated=tuple(name for name in VARIABLES if name in by_annotation or name not in requesting)
        if by_annotation
        else (),
    )
    request = _capped(request, config)
    refuse(_without_a_cap(request, spellings))
    return _completed(request, spec, config)


def _of_pod(
    spec: Spec,
    environment: dict[str, str],
    annotations: dict[str, str],
    container: PodContainer,
    config: Config,
) -> Request:
    """The request of a pod's container: the pod's amounts, and the author's choices of how to hold them.

    NVIDIA's variables for devices and amounts do not count, because images set them for any pod.
    """
    from xpu_runtime.request import pod

    spellings: dict[str, Spelling] = {}
    problems: list[str] = []
    named = pod.of_containers(annotations)
    by_annotation = _annotated({key: annotations[key] for key in named}, spellings, problems)
    privileged = oci_spec.is_privileged(spec)
    variables = {name: value for name, value in environment.items() if name != ALLOCATED}
    if not (privileged or config.policy_accept_env_when_unprivileged):
        problems += [_not_by_variable(name) for name in sorted(filter(_is_ours, variables))[:1]]
    variables.update(by_annotation)
    ours = {name: value for name, value in variables.items() if name.startswith("XPU_")}
    for name, alias in _selection_by_alias(variables).items():
        if name not in ours and name not in AMOUNTS:
            spellings[name] = alias
            ours[name] = alias.value
    request, more = read(
        ours, step=config.cores_step, requirements=_requirements(variables), spellings=spellings
    )
    problems += more + _bypasses(environment)
    if not privileged:
        problems += _policy_violations(request, config, spellings)
    refuse(problems)
    can_lift = oci_spec.can_lift_limits(spec)
    request = request.replace(privileged=privileged, can_lift=can_lift, of_pod=container, decided=True)
    if container.assignment is not None:
        request = pod.complete(request, container.assignment.of(container.container))
    return _completed(request, spec, config)


def _completed(request: Request, spec: Spec, config: Config) -> Request:
    if config.policy_quotas:
        from xpu_runtime.request import quotas  # few nodes have any

        request = request.replace(quotas=quotas.matching(config.policy_quotas, spec))
    return _shared(request, config)


def _not_by_variable(name: str) -> str:
    """The problem, and its remedy, if the policy forbids the container to ask by variables."""
    return (
        f"{name} is set in an unprivileged container, and the configuration's "
        "policy.accept_env_when_unprivileged is false: "
        f"ask with the annotation {ANNOTATION_PREFIX}* instead"
    )


def asks(spec: Spec) -> bool:
    """Whether the spec has any of our variables or annotations, correct or not. Needs no configuration."""
    if oci_spec.is_sandbox(spec):
        return False
    environment = oci_spec.environment_of(spec)
    return (
        any(_is_ours(name) for name in environment)
        or any(is_annotation(name) for name in oci_spec.annotations_of(spec))
        or "XPU_VISIBLE_DEVICES" in _selection_by_alias(environment)
    )


def asks_for_nothing(path: str) -> bool:
    """Whether the spec in the file `path` certainly has none of our variables and annotations.

    It serves a spec that cannot be read or used: a container that asks for nothing must still start.
    """
    try:
        try:
            spec = oci_spec.read(path)
        except SpecError:
            from xpu_runtime.oci import partial_spec  # brings `re`

            spec = partial_spec.read(path)
        return not asks(spec)
    except Exception:  # after any error the answer is not certain
        return False


def _is_ours(name: str) -> bool:
    return name.startswith("XPU_") and name not in FOR_PROGRAMS


def _annotated(
    annotations: dict[str, str], spellings: dict[str, Spelling], problems: list[str]
) -> dict[str, str]:
    """Our annotations, as the variables that they stand for."""
    found = {}
    for key, value in annotations.items():
        if is_annotation(key):
            name = variable_of(key)
            if name not in VARIABLES:
                if len(problems) >= MAX_PROBLEMS:
                    continue
                known = tuple(map(annotation_of, VARIABLES))
                told = (
                    f"unknown annotation {key[:80]}; known are {', '.join(known)}",
                    did_you_mean(key, known),
                )
                problems.append("; ".join(filter(None, told)))
                continue
            found[name] = value
            spellings[name] = Spelling(key, value)
    return found


def _from_variables(
    variables: dict[str, str], spellings: dict[str, Spelling], config: Config
) -> tuple[Request | None, list[str]]:
    """The request in a container's variables (None if they ask for nothing), and its problems.

    An NVIDIA_* variable counts if the XPU_* variable of the same meaning is not set. Many images set
    NVIDIA_VISIBLE_DEVICES to `all` or `none`: these values count only if no XPU_* variable is set. A list of
    devices always counts. Both mean that the image is made for NVIDIA's devices.
    """
    ours = {name: value for name, value in variables.items() if _is_ours(name)}
    selection = _selection_by_alias(variables)
    devices = selection.get("XPU_VISIBLE_DEVICES")
    vendor = _NVIDIA if devices and devices.value != "none" else ""
    chosen = "XPU_VISIBLE_DEVICES" in ours
    if ours:
        if devices and devices.value in ("all", "none"):
            del selection["XPU_VISIBLE_DEVICES"]
    elif not devices:
        return None, []
    for name, alias in selection.items():
        if name not in ours:
            spellings[name] = alias
            ours[name] = _in_our_terms(name, alias)
    ours.update((name, variables[name]) for name in FOR_PROGRAMS if name in variables)
    wrong: list[str] = []
    if any(name.startswith(CDI_PREFIX) for name in ours):
        from xpu_runtime.request import cdi  # few containers have such a device

        by_alias = "XPU_VISIBLE_DEVICES" in selection
        ours, wrong = cdi.expanded(ours, spellings, config.defaults_memory is not None)
        chosen = "XPU_VISIBLE_DEVICES" in ours and not by_alias
    request, problems = read(
        ours, step=config.cores_step, requirements=_requirements(variables), spellings=spellings
    )
    # A list in XPU_VISIBLE_DEVICES names its devices; the image's vendor does not matter.
    request = request.replace(vendor="" if chosen and request.choice == "list" else vendor)
    return request, problems + wrong


def _is_by_image(variables: dict[str, str]) -> bool:
    """Whether all of the asking variables are ones that many images set."""
    devices = _selection_by_alias(variables).get("XPU_VISIBLE_DEVICES")
    return devices is not None and devices.value in ("all", "none") and not any(map(_is_ours, variables))


def _requirements(variables: dict[str, str]) -> dict[str, str]:
    """The image's conditions for NVIDIA's devices, by variable. None if the container sets its own."""
    if "XPU_REQUIRE" in variables or variables.get("NVIDIA_DISABLE_REQUIRE", "") in ("true", "1"):
        return {}
    return {
        name: value for name, value in variables.items() if name.startswith(_REQUIRE_PREFIX) and value.strip()
    }


def _in_our_terms(name: str, alias: Spelling) -> str:
    # NVIDIA's variable is a number of MiB without a unit.
    return f"{alias.value}MiB" if name == "XPU_MEM" and alias.value.isdigit() else alias.value


def _selection_by_alias(variables: dict[str, str]) -> dict[str, Spelling]:
    """The values of the NVIDIA_* variables, by the XPU_* variable of the same meaning."""
    found = {}
    devices = variables.get("NVIDIA_VISIBLE_DEVICES")
    if devices is None and "CUDA_VERSION" in variables and "NVIDIA_REQUIRE_CUDA" not in variables:
        devices = "all"  # images older than the variable only tell their CUDA version
    devices = (devices or "").strip()
    if devices not in ("", "void"):
        found["XPU_VISIBLE_DEVICES"] = Spelling("NVIDIA_VISIBLE_DEVICES", devices)
    limit = variables.get(_GPU_MEMORY, "").strip()
    if limit and devices != "none":
        found["XPU_MEM"] = Spelling(_GPU_MEMORY, limit)
    capabilities = variables.get("NVIDIA_DRIVER_CAPABILITIES", "").strip()
    if capabilities:
        found["XPU_CAPABILITIES"] = Spelling("NVIDIA_DRIVER_CAPABILITIES", capabilities)
    return found


def _bypasses(environment: dict[str, str]) -> list[str]:
    """A problem for each variable (LD_PRELOAD, or one of a program) that names a library behind an
    interposer."""
    return [
        f"{name[:80]}={value[:80]!r} names a library that bypasses the memory limit: leave {name[:80]} out"
        for name, value in environment.items()
        if any(library in value for library in REAL_LIBRARIES) or _may_expand_to_one(name, value)
    ]


def _may_expand_to_one(name: str, value: str) -> bool:
    """Whether a token that the loader expands can be the beginning of such a name: `${LIB}cuda.real`
    (ld.so(8)).

    Loaders expand a token differently, so any expansion is assumed. A path that ends with a token is taken
    for a folder, except in a variable that lists libraries to load.
    """
    for token in _TOKENS if "$" in value else ():
        for rest in value.split(token)[1:]:
            for separator in ":; \t\n":
                rest = rest.partition(separator)[0]
            if "/" in rest or not (rest or name in _LOADED_BY):
                continue
            if any(library.endswith(rest) for library in REAL_LIBRARIES):
                return True
    return False


def _policy_violations(request: Request, config: Config, spellings: dict[str, Spelling]) -> list[str]:
    """The parts of the request that the policy forbids an unprivileged container.

    Limits that depend on the device (a share of its memory, the number of devices that `all` means) are
    checked at placement.
    """

    def told(name: str, value: str) -> str:
        name = spellings[name].name if name in spellings else name
        return f"{name}{': ' if '/' in name else '='}{value}"

    found = []
    maximum = config.policy_max_count
    if maximum is not None and request.count > maximum:
        found.append(f"{request.count} devices are requested, and policy.max_count allows {maximum}")
    cores = config.policy_max_cores
    if cores is not None and (request.cores or 0) > cores:
        asked = told("XPU_CORES", str(request.cores))
        found.append(f"{asked} exceeds policy.max_cores={cores}: ask for at most {cores}")
    most = config.policy_max_priority
    if most is not None and request.priority and _rank(request.priority) > _rank(most):
        asked = told("XPU_PRIORITY", request.priority)
        found.append(f"{asked} exceeds policy.max_priority={most}: ask for at most {most}")
    if config.policy_max_memory is not None:
        limit = units.parse_memory(config.policy_max_memory)
        for memory in request.memory:
            if limit.bytes is not None and memory.bytes is not None and memory.bytes > limit.bytes:
                found.append(
                    f"{told('XPU_MEM', memory.text())} exceeds policy.max_memory={limit.text()}: "
                    f"ask for at most {limit.text()}"
                )
                break
    return found


def _rank(priority: str) -> int:
    return PRIORITIES.index(priority)


def _without_a_cap(request: Request, spellings: dict[str, Spelling]) -> list[str]:
    """A problem for each variable about a cap on cores, if the container has no cap."""
    if request.caps_cores or request.choice == "none":
        return []
    todo = "XPU_CORES=100 is no cap: ask for less" if request.cores else "add XPU_CORES, such as XPU_CORES=30"
    problems = []
    for name, value in (("XPU_SCHED", request.sched), ("XPU_PRIORITY", request.priority)):
        if value is not None:
            there = spellings.get(name) or Spelling(name, value)
            asked = f"{there.name}{': ' if '/' in there.name else '='}{value}"
            problems.append(f"{asked} needs a cap on cores, and the container has none: {todo}")
    return problems


def _shared(request: Request, config: Config) -> Request:
    """The request, with the `sched` and `priority` of the configuration where it sets none."""
    priority, most = config.cores_priority, config.policy_max_priority
    if most is not None and not request.privileged:
        priority = min(priority, most, key=_rank)
    return request.replace(sched=request.sched or config.cores_sched, priority=request.priority or priority)


def _capped(request: Request, config: Config) -> Request:
    """The request. If it sets no cap on cores, it gets the default one, or the policy's maximum.

    The default of memory depends on the device: see candidates.py.
    """
    if request.cores is not None or request.choice == "none":
        return request
    cores, origin = config.defaults_cores, "defaults.cores"
    maximum = None if request.privileged else config.policy_max_cores
    if maximum is not None and (cores or 100) > maximum:
        # A multiple of the step makes the request valid that a refusal offers.
        cores, origin = maximum // config.cores_step * config.cores_step or maximum, "policy.max_cores"
    return request if cores is None else request.replace(cores=cores, cores_from=origin)
