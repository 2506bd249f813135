"""Whether a container is a step of an image's build (a `RUN` of a Dockerfile), by how its engine starts it.

No engine says so in the spec. These facts show it:

- docker's builder before BuildKit: the container's image is named by its id, and it has neither a health
  check nor a log (moby's builder/dockerfile: dispatchRun, hostConfigFromOptions), as docker has written it
  into the container's folder;
- BuildKit, where our runtime is its own (that of dockerd calls runc and no other): its name for the host, or
  that the files which it mounts over the image's are in its executor's folder (its executor/oci);
- buildah and podman build: the bundle, and the root folder in it (buildah's run_common.go).

Seen with docker 20.10 and 28.5, BuildKit of docker 20.10, buildah of podman 4.3. A container of another kind
with the same facts, `docker run --no-healthcheck --log-driver none IMAGE-ID`, is taken for one. Reads one or
two small files of docker's.
"""

from __future__ import annotations

import os

from xpu_runtime.oci import engine_name
from xpu_runtime.oci import spec as oci_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.oci.spec import Spec

_BUILDKITS_HOST = "buildkitsandbox"
_BUILDKITS_FOLDER = "executor"
_BUILDAH = "buildah"


def is_one(bundle: str, spec: Spec) -> bool:
    """Whether the container in the folder `bundle` of an engine is a step of a build."""
    return _of_buildah(bundle, spec) or _of_buildkit(spec) or _of_docker(bundle, spec)


def _of_buildah(bundle: str, spec: Spec) -> bool:
    name = os.path.basename(bundle)
    is_its_bundle = name.startswith(_BUILDAH) and name.removeprefix(_BUILDAH).isdecimal()
    return is_its_bundle and oci_spec.rootfs(spec, bundle) == os.path.join(bundle, "mnt", "rootfs")


def _of_buildkit(spec: Spec) -> bool:
    if spec.get("hostname") == _BUILDKITS_HOST:
        return True
    folders = [
        os.path.dirname(source) for source in oci_spec.sources(spec, ("/etc/hosts", "/etc/resolv.conf"))
    ]
    return len(folders) == 2 and all(os.path.basename(each) == _BUILDKITS_FOLDER for each in folders)


def _of_docker(bundle: str, spec: Spec) -> bool:
    container = os.path.basename(bundle)
    log = engine_name.docker_file(container, spec, "hostconfig.json").get("LogConfig")
    if not isinstance(log, dict) or log.get("Type") != "none":
        return False
    config = engine_name.docker_file(container, spec, engine_name.DOCKERS_FILE).get("Config")
    if not isinstance(config, dict) or not str(config.get("Image")).startswith("sha256:"):
        return False
    check = config.get("Healthcheck")
    return isinstance(check, dict) and check.get("Test") == ["NONE"]
