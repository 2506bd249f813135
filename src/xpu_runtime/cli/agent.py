"""`xpu agent`: the service that shares out devices' time, in the foreground.

Takes the lock of the one agent, and logs to stderr, for systemd's journal. agent/ decides.
"""

from __future__ import annotations

import os
from functools import partial

import click

from xpu_runtime import paths, version
from xpu_runtime.agent.command_service import command_service
from xpu_runtime.agent.loop import Agent
from xpu_runtime.agent.metrics_service import metrics_service
from xpu_runtime.agent.questions import answers_of, metrics_without_driver, open_driver
from xpu_runtime.cli.terminal.streams import log
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.linux import files
from xpu_runtime.observe.agent_status import LOCK


@click.command(short_help="Share out devices' time, and make starts quicker.")
def agent() -> None:
    """Share out the time of devices among containers, and make their starts quicker.

    Runs until it is stopped. XPU_SCHED=burst and weight, and XPU_PRIORITY, need it: without it each
    container has only its cap. It also reads the driver's samples, and holds a container that uses
    more than its cap more strictly. Its processes have everything loaded, and start containers with
    slices. When it is stopped or killed, every container keeps its cap, and starts take longer. The
    packages bring a service for it: systemctl start xpu-agent

    A second process serves over HTTP what `xpu metrics` prints, and a page for browsers: devices, slices
    of the last hour, events and refusals. It listens on metrics.sock in the run folder, for root and
    metrics.group of the configuration, and on metrics.listen if that is set. A third process runs
    commands that only show something for members of the group `xpu`, if the node has that group.

    \b
    Example:
      xpu agent
    """
    if os.geteuid():
        raise XpuError("the agent writes the pages of limits", "run it as root")
    os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
    path = paths.in_run_dir(LOCK)
    try:
        with files.Lock(path, wait_s=0) as lock:
            config = _config()
            services = (
                metrics_service(config, partial(answers_of, log), metrics_without_driver, log),
                command_service(log),
            )
            metrics = {"listen": config.metrics_listen, "group": config.metrics_group}
            side_processes = [each for each in services if each is not None]
            service = Agent(partial(open_driver, log), side_processes, log, lock.is_held, metrics)
            log(f"xpu agent {version.VERSION} runs")
            if config.metrics_listen:
                log(f"its page is http://{config.metrics_listen}/")
            service.run()
            if not lock.is_held():
                raise XpuError(
                    f"{path} is not the file that this agent locked: the run folder was removed or made anew",
                    "start it again: systemctl restart xpu-agent (or run `xpu agent`)",
                )
            log("the agent was stopped: every container keeps its cap")
    except TimeoutError:
        raise XpuError(
            f"another agent runs already: it holds {path}", "see `systemctl status xpu-agent`, or end it"
        ) from None


def _config() -> Config:
    """The settings of the served metrics: a mistake in the file must not keep the agent from sharing out
    time."""
    try:
        return load()
    except ConfigError as error:
        log(f"metrics are for root alone: {error}")
        return DEFAULTS
