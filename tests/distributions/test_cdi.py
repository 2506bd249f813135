"""CDI devices of ours with engines that have CDI switched on: nothing is configured, and the package has
written the file. docs/how-to/cdi.md, whose commands test_pages.py runs, has older engines and podman."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml

from support import GIB

from .root import Root
from .test_packages import PACKAGES, image_in, install, told
from .ways import IMAGE, Containerd, Docker, Way

pytestmark = pytest.mark.timeout(900)

_FILE = "/etc/cdi/yoyoworks.com-xpu.yaml"
_PATH = "--env=PATH=/usr/bin:/bin"
#: Debian's package of the specification, with its JSON schema.
_SPECIFICATION = "golang-tags.cncf-container-device-interface-dev"


class ByDocker(Docker):
    """docker, which knows no runtime of ours. A request is docker's options."""

    RUNTIME = "--runtime=xpu"

    def __init__(self, machine: Root) -> None:
        Way.__init__(self, machine)
        self.serve("--add-runtime xpu=/usr/bin/xpu-container-runtime")
        self._done("sh", "-c", f"tar -C {IMAGE} -c . | docker import - {self._IMAGE}")

    def _run(self, request: Sequence[str], command: Sequence[str], *options: str) -> list[str]:
        return ["docker", "run", *options, "--network=none", *request, self._IMAGE, *command]


class ByContainerd(Containerd):
    """containerd, by ctr. A request is ctr's options."""

    RUNTIME = "--runc-binary=/usr/bin/xpu-container-runtime"

    def _run(self, name: str, request: Sequence[str], command: Sequence[str], *options: str) -> list[str]:
        return ["ctr", "run", *options, "--rootfs", _PATH, *request, IMAGE, name, *command]


def device(name: str) -> str:
    return f"--device=yoyoworks.com/xpu={name}"


@pytest.mark.parametrize("by", [ByDocker, ByContainerd])
def test_a_slice_is_a_device_where_nothing_is_configured(
    root: Callable[..., Root], debs: list[Path], by: type[ByDocker] | type[ByContainerd]
) -> None:
    machine = root("forky", packages=PACKAGES["forky"], network=False)
    image_in(machine)
    assert install(machine, debs).returncode == 0
    assert machine.run("xpu", "sim", "up", "--topology", "2xT4").returncode == 0
    way = by(machine)

    done = way.run([device("4g")], "nvidia-smi")
    assert "/   4096MiB" in done.stdout
    uuid = told(machine, "devices")[1]["uuid"]
    assert f"(UUID: {uuid})" in way.run([device("1")], "nvidia-smi", "-L").stdout
    assert f"(UUID: {uuid})" in way.run([device(uuid)], "nvidia-smi", "-L").stdout

    # One ledger, and the reason in the engine's own error.
    way.start("held", [device("slice"), "--env=XPU_MEM=10G", "--env=XPU_VISIBLE_DEVICES=0"], "sleep", "1000")
    (held,) = told(machine, "ps")
    assert (held["memory_bytes"], held["mode"], held["state"]) == (10 * GIB, "hook", "running")
    done = way.run([device("0")], "true")
    assert done.returncode != 0 and "xpu: refused: not every named device" in done.stdout
    done = way.run([device("slice")], "true")
    assert done.returncode != 0 and "nothing says how much yoyoworks.com/xpu=slice is" in done.stdout
    way.remove("held")
    assert told(machine, "ps") == []

    # Beside our runtime it is booked once.
    before = len(machine.run("xpu", "events").stdout.splitlines())
    way.start("both", [way.RUNTIME, device("4g"), device("8g")], "sleep", "1000")
    assert [each["memory_bytes"] for each in told(machine, "ps")] == [4 * GIB, 8 * GIB]
    assert len(machine.run("xpu", "events").stdout.splitlines()) == before + 1
    way.remove("both")
    assert told(machine, "ps") == []

    done = machine.run("xpu", "doctor")
    assert "cdi: /etc/cdi/yoyoworks.com-xpu.yaml has 9 devices" in done.stdout, done.stdout
    assert machine.run("apt-get", "remove", "-y", "xpu-container-runtime").returncode == 0
    assert not machine.path("/etc/cdi").exists()
    assert way.run([device("4g")], "true").returncode != 0


def test_the_file_is_valid_by_the_specifications_schema(root: Callable[..., Root], debs: list[Path]) -> None:
    machine = root("forky", packages=PACKAGES["forky"])
    assert install(machine, debs).returncode == 0
    assert machine.run("xpu", "sim", "up", "--topology", "2xA100-MIG").returncode == 0
    fetched = machine.run(
        "sh",
        "-ec",
        f"cd /run; apt-get update; apt-get download {_SPECIFICATION}; dpkg-deb -x *.deb cdi",
        timeout=300,
    )
    assert fetched.returncode == 0, fetched.stdout
    (path,) = machine.path("/run/cdi").rglob("schema.json")
    # Its definitions are in a file of their own.
    schema = json.loads(path.read_text().replace("defs.json#", "#"))
    schema["definitions"] = json.loads((path.parent / "defs.json").read_text())["definitions"]
    validator = jsonschema.Draft7Validator(schema)
    file = yaml.safe_load(machine.path(_FILE).read_text())
    # The schema does not look at the edits of all devices.
    file["devices"].append({"name": "every", "containerEdits": file["containerEdits"]})
    assert [*validator.iter_errors(file)] == []
    assert len(file["devices"]) > 9
    # It does judge what we write.
    file["containerEdits"]["hooks"][0]["path"] = ["a", "list"]
    file["devices"][0].pop("containerEdits")
    assert len([*validator.iter_errors(file)]) == 2


def test_a_file_that_the_operator_has_removed_stays_away(root: Callable[..., Root], debs: list[Path]) -> None:
    machine = root("forky", packages=PACKAGES["forky"], network=False)
    assert install(machine, debs).returncode == 0
    file = machine.path(_FILE)
    made = file.read_text()
    upgrade = ["apt-get", "install", "-y", "--reinstall", f"/run/debs/{debs[0].name}"]

    file.write_text(made.replace("mem=4G", "mem=3G"))
    assert machine.run(*upgrade).returncode == 0
    assert file.read_text() == made

    file.unlink()
    assert machine.run(*upgrade).returncode == 0
    assert machine.run("dpkg-reconfigure", "xpu-container-runtime").returncode == 0
    assert machine.run("xpu", "sim", "up", "--topology", "1xT4").returncode == 0
    assert not file.exists()
    assert f"{_FILE} is not there" in machine.run("xpu", "doctor").stdout

    assert machine.run("apt-get", "remove", "-y", "xpu-container-runtime").returncode == 0
    assert install(machine, debs).returncode == 0
    assert file.exists()

    # A first installation that was cut short by a power cut, after which /run is empty.
    assert machine.run("apt-get", "purge", "-y", "xpu-container-runtime").returncode == 0
    unpack = ["dpkg", "--unpack", *(f"/run/debs/{deb.name}" for deb in debs)]
    assert machine.run(*unpack).returncode == 0
    machine.path("/run/xpu-container-runtime.units").unlink()
    assert machine.run("dpkg", "--configure", "--pending").returncode == 0
    assert file.exists()
