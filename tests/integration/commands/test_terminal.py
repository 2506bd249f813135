"""Commands' output on a terminal: its width, colours; and the whole output for scripts."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest

from support.sharing_time import until

from ..conftest import SLEEP, Bundles, Node
from ..inside import allocated
from ..terminal import Terminal, plain, printed
from .test_names import POD, TASKS

COLOUR = "\x1b["


@pytest.fixture
def container(node: Node, bundles: Bundles) -> str:
    """A pod's container with a cap, a long name and long backends."""
    node.sim("2xA100-MIG")
    made = bundles(
        "XPU_MEM=4G",
        "XPU_CORES=30",
        "XPU_VISIBLE_DEVICES=1:0",
        args=SLEEP,
        change=lambda spec: spec.update(annotations={**POD, "io.kubernetes.cri.sandbox-name": "t" * 60}),
    )
    folder = node.folder / TASKS / "k8s.io" / made.name
    folder.parent.mkdir(parents=True)
    return node.start(made.rename(folder))


COMMANDS = {
    "ps": ("ps",),
    "devices": ("devices",),
    "inspect": ("inspect", "{}"),
    "explain": ("explain", "-v", "-e", "XPU_MEM=4G", "-e", "XPU_CORES=30"),
    "refused": ("explain", "-e", "XPU_MEM=400G"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_it_fits_the_window_and_wide_or_a_pipe_has_all(node: Node, container: str, command: str) -> None:
    words = [word.format(container) for word in COMMANDS[command]]
    whole = node.xpu(*words, check=False).stdout
    assert max(map(len, whole.splitlines())) > 80
    assert COLOUR not in whole
    for columns in (80, 60, 41):
        told = plain(printed(node, columns, *words))
        assert max(map(len, told.splitlines())) <= columns, told
    assert COLOUR in printed(node, 80, *words)
    assert COLOUR not in printed(node, 80, *words, NO_COLOR="1")
    assert COLOUR not in printed(node, 80, *words, TERM="dumb")
    assert plain(printed(node, 80, *words, "--wide")) == whole


def test_columns_that_are_left_out_are_named(node: Node, container: str) -> None:
    head, row, *rest = plain(printed(node, 80, "ps")).splitlines()
    assert head.split()[:4] == ["CONTAINER", "NAME", "GPU", "USED"]
    assert row.startswith(container[:12]) and row.rstrip().endswith("running")
    assert " ml/" in row and ".." in row
    assert "--wide also shows PID, CREATED, MODE, MEMORY, ENFORCED BY" in " ".join(rest)
    assert plain(printed(node, 300, "ps")).splitlines()[0].split() == [
        *("CONTAINER", "NAME", "GPU", "MEMORY", "USED", "CORES", "GOT", "ENFORCED", "BY", "MODE", "STATE"),
        *("PID", "CREATED"),
    ]
    top = plain(printed(node, 80, "top", "--once", "--interval", "0.1"))
    assert max(map(len, top.splitlines())) <= 80
    assert re.search(r" ml/t+\.\.t+/cuda$", top, flags=re.MULTILINE)
    uuid = node.json("devices")[0]["uuid"]
    devices = plain(printed(node, 80, "devices"))
    assert uuid not in devices and uuid[:12] in devices
    assert "--wide also shows UUID" in devices


def test_explain_lists_mounts_only_where_asked(node: Node) -> None:
    node.sim("1xT4")
    brief = node.xpu("explain", "-e", "XPU_MEM=4G").stdout
    assert "libcuda" not in brief and ": -v lists them" in brief
    assert "libcuda" in node.xpu("explain", "-v", "-e", "XPU_MEM=4G").stdout
    assert "libcuda" in str(node.explained("-e", "XPU_MEM=4G"))


def test_ids_alone_and_templates_are_for_scripts(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    assert node.xpu("ps", "-q").stdout == ""
    one = node.start(bundles("XPU_MEM=4G", "XPU_COUNT=2", args=SLEEP))
    two = node.start(bundles("XPU_MEM=2G", "XPU_CORES=30", args=SLEEP))
    assert node.xpu("ps", "-q").stdout.split() == [one, two]
    uuids = [each["uuid"] for each in node.json("devices")]
    assert node.xpu("devices", "-q").stdout.split() == uuids
    told = node.xpu("ps", "--format", r"{{.ID}}\t{{ .Memory }}:{{.Cores}} on {{.Device}} {{.Name}}").stdout
    rows = [[each["container_id"], each["device_uuid"]] for each in node.json("ps")]
    assert [[line.split("\t")[0], line.split()[-2]] for line in told.splitlines()] == rows
    assert f"{two}\t2G:30% on " in told and told.splitlines()[0].endswith(" -")
    assert node.xpu("devices", "--format", "{{.Index}} {{.Granted}} {{.Name}}").stdout.splitlines() == [
        "0 6G Tesla T4",
        "1 4G Tesla T4",
    ]
    for command in ("ps", "devices"):
        for format_ in ("json", "{{json .}}"):
            lines = node.xpu(command, "--format", format_).stdout.splitlines()
            assert list(map(json.loads, lines)) == node.json(command)
        assert node.xpu(command, "--format", "table").stdout == node.xpu(command).stdout
    assert node.xpu("devices", "--format", "{{json .Name}}").stdout == '"Tesla T4"\n' * 2
    told = node.xpu("devices", "--format", r"table {{.Index}}\t{{.Name}}\t{{.LimitsBy}}").stdout
    assert told.splitlines() == [
        "INDEX  NAME      LIMITS BY",
        "0      Tesla T4  driver (hard)",
        "1      Tesla T4  driver (hard)",
    ]
    told = node.xpu("devices", "--format", r"table{{.Index}}\t{{ json .Name }}").stdout
    assert told.splitlines()[:2] == ["INDEX  NAME", '0      "Tesla T4"']


@pytest.mark.parametrize(
    ("format_", "told"),
    [
        ("{{.Nope}}", "'Nope' is not a field; fields are ID, GPU, Memory,"),
        ("{{len .Name}}", "give {{.Field}}, {{json .Field}}, or {{json .}} alone; fields are"),
        ("{{.ID", "give {{.Field}}, {{json .Field}}, or {{json .}} alone; fields are"),
        ("table ID", "'table ID' names no field; give json, or a text such as '{{.ID}}'"),
    ],
)
def test_a_template_that_is_not_understood_is_refused(node: Node, format_: str, told: str) -> None:
    done = node.xpu("ps", "--format", format_, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in " ".join(done.stderr.split())


def test_a_dumb_terminal_gets_one_reading_without_escape_sequences(node: Node) -> None:
    node.sim("1xT4")
    told = printed(node, 80, "top", "--interval", "0.1", TERM="dumb")
    assert "\x1b" not in told and "Tesla T4" in told  # one reading, as in a pipe
    assert "--watch needs a terminal that can be drawn on" in printed(node, 80, "ps", "--watch", TERM="dumb")


def test_two_forms_at_once_are_refused(node: Node) -> None:
    table = ["devices", "-q", "--format", "table"]
    for words in (["ps", "-q", "--json"], ["ps", "--watch", "-q"], ["devices", "--watch", "-q"], table):
        assert "Give one of " in node.xpu(*words, check=False).stderr
    assert "--watch needs a terminal that can be drawn on" in node.xpu("ps", "--watch", check=False).stderr


def test_devices_show_the_use_by_any_process(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    allocated(node, bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "3000", "--hold"]))
    (device,) = node.json("devices")
    assert device["memory_used_bytes"] >= 3000 << 20
    assert device["utilization_percent"] == 0
    head, row, *_ = node.xpu("devices").stdout.splitlines()
    assert row.split()[head.split().index("UTIL") + 1] == "0%"  # Tesla T4 is two words


def test_a_watched_table_follows_changes_until_q(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    with Terminal(node, 80, 24, ["ps", "--watch"]) as terminal:
        until(lambda: any(line.startswith("CONTAINER") for line in terminal.page()), "a page")
        container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
        until(lambda: any(line.startswith(container[:12]) for line in terminal.page()), "it is shown")
        assert max(map(len, terminal.page())) <= 80
        node.remove(container)
        until(lambda: not any(line.startswith(container[:12]) for line in terminal.page()), "it is gone")
        terminal.press("q")
        assert terminal.ended() == 0
    with Terminal(node, 80, 24, ["ps", "--watch"], keys=False) as terminal:
        assert terminal.process.wait(30) == 2
        assert "--watch needs a terminal that can be drawn on" in terminal.read()


def test_devices_can_be_watched_too(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    with Terminal(node, 80, 24, ["devices", "--watch"]) as terminal:
        until(lambda: any("healthy" in line for line in terminal.page()), "a page")
        node.xpu("drain", "0", "--reason", "fan")
        until(lambda: any("drained" in line for line in terminal.page()), "what happens is shown")
        terminal.press("q")
        assert terminal.ended() == 0


@pytest.mark.usefixtures("copy")  # a checkout may be in a folder that is root's alone
def test_a_user_who_may_not_read_the_ledger_is_told_so_in_one_line(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    for words in (["ps"], ["ps", "-q"], ["devices"], ["inspect", container], ["top"], ["events"],
                  ["explain", "-e", "XPU_MEM=4G"], ["set", container, "--mem", "2G"]):  # fmt: skip
        with node.as_user():
            done = node.xpu(*words, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"xpu: cannot open the ledger {node.run_dir}/ledger.db: Permission denied: "
            f"only root can see and change slices: sudo xpu {' '.join(words)}\n"
        )


def test_the_shell_completes_commands_ids_and_names(node: Node, container: str) -> None:
    assert node.completed("runt") == ["runtime"]
    name = f"ml/{'t' * 60}/cuda"
    for words in (["inspect"], ["set"], ["release"], ["events", "--container"]):
        assert node.completed(*words, "") == [container, name]
        assert node.completed(*words, "ml/") == [name]
        assert node.completed(*words, container[:3]) == [container]
    assert "0:0" in node.completed("events", "--device", "")
    node.environ["XPU_RUN_DIR"] = str(node.folder / "nothing")
    assert node.completed("inspect", "") == node.completed("events", "--device", "") == []


def test_bash_completes_names_with_its_own_marks_in_them(node: Node) -> None:
    (topology := node.folder / "topology.yaml").write_text("gpus: [{model: A100-SXM4-80GB, mig: [7g.80gb]}]")
    node.sim(topology)
    node.xpu("devices")  # suggestions ask no driver
    wanted = {
        "xpu explain --device yoy\t4\t": "--device yoyoworks.com/xpu=4g",
        "xpu explain --device=yoyoworks.com/xpu=2\t": "--device=yoyoworks.com/xpu=2g",
        "xpu explain -e A=4 --dev\tyoyoworks.com/xpu=0:\t": "-e A=4 --device yoyoworks.com/xpu=0:0",
        "xpu drain 0:\t": "0:0",
        "xpu events --device=0:\t": "--device=0:0",
    }
    (rc := node.folder / "bashrc").write_text('eval "$(_XPU_COMPLETE=bash_source xpu)"\n')
    output = node.folder / "lines"
    keyboard, screen = pty.openpty()
    with subprocess.Popen(
        ["bash", "--rcfile", rc, "-i"],
        env={**node.environ, "PATH": f"{node.prefix}/bin:{os.environ['PATH']}", "INPUTRC": "/dev/null"},
        stdin=screen,
        stdout=screen,
        stderr=screen,
        start_new_session=True,
    ) as shell:
        for keys in (*(f"{keys}\x01echo >>{output} \r" for keys in wanted), "exit\r"):
            os.write(keyboard, keys.encode())
        shell.wait(60)
    os.close(keyboard)
    os.close(screen)
    found = [line.split(maxsplit=2)[2] for line in output.read_text().splitlines()]
    assert found == list(wanted.values())


@pytest.mark.parametrize(("shell", "position"), [("zsh", "1"), ("fish", "runt")])
def test_zsh_and_fish_get_answers_too(node: Node, shell: str, position: str) -> None:
    variables = {"_XPU_COMPLETE": f"{shell}_complete", "COMP_WORDS": "xpu runt", "COMP_CWORD": position}
    program = node.prefix / "bin" / "xpu"
    done = subprocess.run([program], env={**node.environ, **variables}, capture_output=True, text=True)
    assert "runtime" in done.stdout and "devices" not in done.stdout
