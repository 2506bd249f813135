"""The pictures of the pages, from real output: `make pictures`, or pictures.py PREFIX.

A docker of its own starts containers on two simulated cards. Headless Chromium takes the page that `xpu
agent` serves, light and dark; the output of `xpu top` becomes an SVG. It runs as root and takes two minutes,
because the page shows the last minutes.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402

from demo import FOLDER, Demo  # noqa: E402

_DOCS = os.path.join(HERE, "..", "..", "docs", "assets")
_ADDRESS = "127.0.0.1:9477"
#: By name: the request, and the command.
_CONTAINERS = {
    "train-bert": ("XPU_MEM=7G XPU_CORES=40 XPU_SCHED=burst", "busy"),
    "infer-llama": ("XPU_MEM=4G XPU_CORES=25", "busy"),
    "notebook-ada": ("XPU_MEM=2G XPU_CORES=10", "alloc 900 --hold"),
    "batch-embed": ("XPU_MEM=8G XPU_CORES=60 XPU_VISIBLE_DEVICES=1", "busy"),
    "scratch": ("XPU_MEM=1G XPU_VISIBLE_DEVICES=1", "alloc 300 --hold"),
}
_SECONDS = 100


class Pictures(Demo):
    def _choose_driver(self) -> None:
        self.simulated = True
        self.run([self.xpu, "sim", "up", "--topology", "2xT4-R580"], check=True)
        with open(f"{FOLDER}/config.yaml", "w", encoding="utf-8") as file:
            file.write(f"metrics: {{listen: '{_ADDRESS}'}}\n")

    def take(self) -> None:
        with open(f"{FOLDER}/agent.log", "wb") as log:
            agent = subprocess.Popen([self.xpu, "agent"], env=self.environ, stdout=log, stderr=log)
        try:
            for name, (request, what) in _CONTAINERS.items():
                self.container(request, "cuda-probe", *what.split(), detach=name)
                time.sleep(_SECONDS / len(_CONTAINERS) / 2)
            self.container("XPU_MEM=40G", "true")
            self.container("XPU_MEN=4G", "true")
            self.run([self.xpu, "drain", "1", "--reason", "fan"], check=True)
            time.sleep(_SECONDS / 2)
            for scheme in ("light", "dark"):
                self._page(scheme)
            self._terminal()
            self.run([self.xpu, "undrain", "1"], check=True)
        finally:
            agent.terminate()
            agent.wait()

    def _page(self, scheme: str) -> None:
        dark = ["--force-prefers-color-scheme=dark", "--blink-settings=preferredColorScheme=0"]
        command = [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--hide-scrollbars",
            "--window-size=1180,1240",
        ]
        command += [f"--user-data-dir={FOLDER}/browser", "--virtual-time-budget=8000"]
        command += [f"--screenshot={_DOCS}/page-{scheme}.png", *(dark if scheme == "dark" else [])]
        subprocess.run([*command, f"http://{_ADDRESS}/"], check=True, capture_output=True, timeout=120)

    def _terminal(self) -> None:
        # A terminal of this width, with colours.
        shown = subprocess.run(
            ["script", "-qec", f"stty cols 100; {self.xpu} top --once", "/dev/null"],
            env={**self.environ, "TERM": "xterm-256color"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        console = Console(record=True, width=100, file=io.StringIO())
        console.print(Text.from_ansi(shown.stdout.replace("\r", "")))
        console.save_svg(f"{_DOCS}/top.svg", title="xpu top")


def main(prefix: str) -> None:
    pictures = Pictures(prefix)
    try:
        pictures.set_up()
        pictures.take()
    finally:
        pictures.tear_down()


if __name__ == "__main__":
    main(sys.argv[1])
