"""`xpu doctor` on installed files: each fault is really made, is reported with its remedy, and is gone
afterwards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ..conftest import SLEEP, Bundles, Node
from ..findings import assert_fine, examine, found


def test_an_upgrade_leaves_running_containers_their_libraries_and_that_is_told(
    node: Node, copy: Path, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    node.start(bundles("XPU_MEM=4G", args=SLEEP))
    for library in (copy / "lib/xpu-container-runtime/native/interposer/nvidia").iterdir():
        shutil.copy(library, library.with_suffix(".new"))
        library.with_suffix(".new").rename(library)
    texts = [each["text"] for each in examine(node)[0] if each["check"] == "containers"]
    (text,) = texts
    assert text.endswith("1 of them with our libraries of an earlier installation, until they end")


def test_an_installation_that_is_incomplete_or_old_is_named(node: Node, copy: Path) -> None:
    node.sim("1xT4")
    lib = copy / "lib/xpu-container-runtime"
    bundle, module = lib / "python/start.bundle", lib / "python/xpu_runtime/shim.py"

    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:8] + b"\xff" + whole[9:])
    found(node, "warning", "caches", f"{bundle} is damaged")
    loader = lib / "python/xpu_bundle.py"
    installed = loader.read_text()
    loader.write_text(installed.replace('BUILD = "', 'BUILD = "1'))  # unpacked, and not configured yet
    found(node, "warning", "caches", "is damaged, or of another version than is installed")
    loader.write_text(installed)
    bundle.write_bytes(b"\xff" + whole[1:])
    todo = found(node, "warning", "caches", "was made by another Python")["todo"]
    subprocess.run(todo.split(), check=True)
    assert_fine(node, "caches")
    module.write_text(module.read_text().replace("def main(", "def main_(", 1))
    found(node, "problem", "caches", "has older code of xpu_runtime.shim than the installation")
    bundle.unlink()
    found(node, "warning", "caches", "start.bundle cannot be read (No such file")

    for name in ("shim.py", "hook.py"):
        (lib / name).rename(lib / "aside")
        found(node, "problem", "installation", f"{name} is missing")
        (lib / "aside").rename(lib / name)
    node.runtime.chmod(0o644)
    found(node, "problem", "installation", f"{node.runtime} is missing or not executable")
    node.runtime.chmod(0o755)
    program = node.hook.read_bytes()
    node.hook.write_bytes(program.replace(b"/usr/bin/python3\0", b"/usr/bin/python2\0"))
    found(node, "problem", "installation", "the hook starts /usr/bin/python2, which is missing")
    node.hook.write_bytes(program)
    assert_fine(node, "installation")


def test_an_installation_that_others_can_change_or_that_cannot_start_is_named(node: Node, copy: Path) -> None:
    node.sim("1xT4")
    lib = copy / "lib/xpu-container-runtime"
    bundle, module = lib / "python/start.bundle", lib / "python/xpu_runtime/start/in_container.py"
    for fault in (
        f"chmod 666 {bundle}",
        f"chmod 666 {lib}/shim.py",
        f"chmod 777 {lib}/python",
        f"chown 65534 {module}",
        f"chmod 775 {node.runtime}",
    ):
        subprocess.run(fault.split(), check=True)
    finding = found(
        node, "problem", "installation", "5 installed files can be changed by users other than root"
    )
    assert finding["text"].endswith(" and 1 more")
    subprocess.run(finding["todo"].rpartition(";")[0], shell=True, check=True)
    assert_fine(node, "installation")

    bundle.unlink()
    bundle.mkdir()
    todo = found(node, "warning", "caches", f"{bundle} cannot be read (not a regular file)")["todo"]
    subprocess.run(todo.partition("(")[2].partition(")")[0], shell=True, check=True)
    subprocess.run(todo.rpartition("then ")[2].split(), check=True)
    assert_fine(node, "caches")

    library = lib / "native/interposer/nvidia/libcuda.so.1"
    aside = library.rename(library.with_name("aside"))
    found(node, "problem", "installation", f"{library} is missing")
    aside.rename(library)
    text = module.read_text()
    module.write_text(f"{text}\ndef (:\n")
    found(node, "problem", "installation", "cannot be imported: xpu_runtime.start.in_container (SyntaxError")
    module.unlink()
    found(
        node, "problem", "installation", "cannot be imported: xpu_runtime.start.in_container (ModuleNotFound"
    )
    found(node, "problem", "caches", "has older code of xpu_runtime.start.in_container")
    module.write_text(text)
    assert_fine(node, "installation")
