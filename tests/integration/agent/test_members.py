"""The group `xpu`: the commands that its members may run, those that they may not, and the answers to
others."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sharing_time import Serve, Service, children_of, until
from xpu_runtime.ledger.store import Ledger

from ..conftest import SLEEP, Bundles, Node, processes_of
from ..terminal import Terminal

GROUP = 47_110
#: The test's own copy: a checkout may be in a folder that only root can enter.
pytestmark = pytest.mark.usefixtures("copy")
SHOWN = ("ps", "devices", "events", "top --once", "explain --device yoyoworks.com/xpu=2g", "metrics")


@pytest.fixture
def with_group(node: Node) -> Iterator[None]:
    """The commands see a group `xpu`, and the machine has none for them."""
    groups = node.folder / "group"
    others = [line for line in Path("/etc/group").read_text().splitlines() if not line.startswith("xpu:")]
    groups.write_text("\n".join([*others, f"xpu:x:{GROUP}:"]) + "\n")
    node.folder.chmod(0o755)
    with node.own_mounts(f"mount --bind {groups} /etc/group"):
        yield


def user(group: int = GROUP, number: int = 65534) -> list[str]:
    """Runs the command as a user in one group."""
    return ["setpriv", f"--reuid={number}", "--regid=65534", f"--groups={group}", "--inh-caps=-all"]


def as_user(node: Node, *words: str, group: int = GROUP) -> subprocess.CompletedProcess[str]:
    """`xpu` as a user in one group."""
    return subprocess.run(
        [*node.view, *user(group), node.prefix / "bin" / "xpu", *words],
        env=node.environ,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )


def socket_of(node: Node) -> Path:
    path = node.run_dir / "read.sock"
    until(lambda: path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o660, "the group is answered")
    return path


@pytest.fixture
def agent(node: Node, copy: Path, with_group: None, start_agent: Serve) -> Service:
    """One that answers the group, on a node with a card."""
    node.sim("1xT4")
    service = start_agent()
    socket_of(node)
    return service


@pytest.mark.usefixtures("agent")
def test_a_member_sees_what_root_sees(node: Node, bundles: Bundles) -> None:
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    assert json.loads(as_user(node, "ps", "--json").stdout) == node.json("ps")
    assert as_user(node, "devices").stdout == node.xpu("devices").stdout
    assert as_user(node, "inspect", container).stdout == node.xpu("inspect", container).stdout
    assert as_user(node, "events", "--since", "1h").stdout == node.xpu("events", "--since", "1h").stdout
    assert as_user(node, "ps", "--format={{.ID}}").stdout == f"{container}\n"
    assert json.loads(as_user(node, "top", "--json").stdout)["agent_runs"]
    assert "xpu_up 1.0" in as_user(node, "metrics").stdout
    done = as_user(node, "explain", "-e", "XPU_MEM=100G", "--json")
    assert (done.returncode, json.loads(done.stdout)["granted"]) == (3, False)
    wrong = as_user(node, "inspect", "nosuchcontainer")
    assert (wrong.returncode, wrong.stderr) == (1, node.xpu("inspect", "nosuchcontainer", check=False).stderr)


@pytest.mark.usefixtures("agent")
def test_a_member_changes_nothing_and_reads_no_file_by_root(node: Node, bundles: Bundles) -> None:
    bundle = bundles("XPU_MEM=4G", args=SLEEP)
    container = node.start(bundle)
    path = socket_of(node)
    before = node.grants()
    bundle.chmod(0o700)
    for words in (
        ["set", container, "--mem", "1G"],
        ["drain", "0"],
        ["gc"],
        ["release", container],
        ["explain", str(bundle)],
        ["ps", "--watch"],
        ["metrics", "--output", str(node.folder / "written")],
    ):
        done = as_user(node, *words)
        assert done.returncode and len(done.stderr.splitlines()[-1:]) == 1, words
        # By hand, past what the command itself would ask.
        assert json.loads(said(path, asked(*words)).partition(b"\n")[0])[:2] == [1, 0]
    wrong: list[object] = [["ps", "--json", "x"], ["inspect"], ["inspect", "--", container]]
    for each in [*wrong, ["ps", "-qh"], [], "ps", [1]]:
        request = json.dumps({**WHOLE, "words": each}).encode()
        assert json.loads(said(path, request).partition(b"\n")[0])[:2] == [1, 0]
    for each in (True, 0, -1, 10**9, "80", 1.5, [80]):
        request = json.dumps({"words": ["ps", "-q"], "columns": each, "coloured": each}).encode()
        assert said(path, request).endswith(f"{container}\n".encode())
    assert b"no words were understood" in said(path, b"[" * 60_000)
    for content in (b"", b"\xff" * 100, b"x" * 70_000, asked("ps", "--format", "\0")):
        said(path, content)
    assert node.grants() == before and not (node.folder / "written").exists()
    assert as_user(node, "ps", "-q").stdout == f"{container}\n"  # it answers on


#: As a request is for no terminal.
WHOLE = {"columns": None, "coloured": False}


def asked(*words: str) -> bytes:
    return json.dumps({"words": words, **WHOLE}).encode()


def said(path: Path, content: bytes) -> bytes:
    """The socket's answer to a member."""
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "try:\n s.sendall(sys.stdin.buffer.read() + b'\\n')\n"
        " while piece := s.recv(65536): sys.stdout.buffer.write(piece)\n"
        "except OSError: pass"
    )
    words = [*user(), "/usr/bin/python3", "-c", script, str(path)]
    return subprocess.run(words, input=content, stdout=subprocess.PIPE, cwd="/", check=True).stdout


@pytest.mark.usefixtures("with_group")
def test_a_user_without_rights_gets_one_line_with_the_remedy(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=4G", args=SLEEP))
    for words in SHOWN:
        (line,) = as_user(node, *words.split()).stderr.splitlines()
        assert line.startswith("xpu: cannot open the ledger ")
        assert line.endswith(f"but not now: start it, or sudo xpu {words}")
    service = start_agent()
    path = socket_of(node)
    for words in SHOWN:
        (line,) = as_user(node, *words.split(), group=47_111).stderr.splitlines()
        assert line.endswith(f": root and members of the group xpu see slices: sudo xpu {words}")
    for words in ("events --follow", "ps --watch"):
        with Terminal(node, 200, 24, words.split(), before=[*node.view, *user()]) as terminal:
            assert terminal.ended() == 1
            (line,) = terminal.read().splitlines()
        own = f"members of the group xpu have `xpu {words.split()[0]}` in its other forms"
        assert line.endswith(f"read and write files: sudo xpu {words}; {own}")
    with pytest.raises(PermissionError):
        os.seteuid(65534)
        try:
            socket.socket(socket.AF_UNIX).connect(str(path))
        finally:
            os.seteuid(0)
    service.end(signal.SIGKILL)
    until(lambda: as_user(node, "ps").returncode == 1, "who answered has ended with the agent")
    (line,) = as_user(node, "ps").stderr.splitlines()
    assert line.endswith("but not now: start it, or sudo xpu ps")
    again = start_agent()
    until(lambda: as_user(node, "ps").returncode == 0, "it is answered again")
    again.end(signal.SIGTERM)
    assert not path.exists()


@pytest.mark.usefixtures("agent")
def test_silent_or_talkative_members_delay_nobody_for_long(node: Node) -> None:
    path = socket_of(node)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    for each in silent:
        each.connect(str(path))
    assert as_user(node, "ps").returncode == 0
    for each in silent:
        each.close()
    words = [*node.view, *user(), str(node.prefix / "bin" / "xpu"), "devices", "-q"]
    many = [subprocess.Popen(words, env=node.environ, stdout=subprocess.PIPE, cwd="/") for _ in range(12)]
    told = {each.communicate(timeout=60)[0] for each in many}
    assert told == {node.xpu("devices", "-q").stdout.encode()}


@pytest.mark.usefixtures("agent")
def test_one_member_does_not_shut_out_another(node: Node) -> None:
    """Neither more commands than are answered at a time nor slow requests shut others out."""
    path = socket_of(node)
    program = str(node.prefix / "bin" / "xpu")
    words = [*node.view, *user(), program, "top", "--once", "--interval", "60"]
    long = [subprocess.Popen(words, env=node.environ, cwd="/", stdout=subprocess.DEVNULL) for _ in range(12)]
    slow = [subprocess.Popen(DRIP + [str(path)], cwd="/") for _ in range(4)]
    for uid in range(65_520, 65_526):
        theirs = [*node.view, *user(number=uid), *words[-5:]]
        long += [subprocess.Popen(theirs, env=node.environ, cwd="/", stdout=subprocess.DEVNULL)]
    try:
        until(lambda: sum("--interval 60" in each for each in processes_of(node)) >= 24, "all ask")
        hasty = subprocess.Popen([*user(), *HASTY, str(path)], cwd="/", stdout=subprocess.PIPE)
        slow.append(hasty)
        assert hasty.stdout is not None and hasty.stdout.readline() == b"at it\n"
        other = [*node.view, *user(number=65533)]
        done = subprocess.run(
            [*other, program, "devices", "-q"], env=node.environ, capture_output=True, cwd="/", timeout=20
        )
        assert done.stdout == node.xpu("devices", "-q").stdout.encode()
    finally:
        for each in (*long, *slow):
            each.kill()
            each.wait()


#: Comes and goes without waiting for an answer.
HASTY = [
    *("/usr/bin/python3", "-c"),
    "import itertools, socket, sys\n"
    "for number in itertools.count():\n s = socket.socket(socket.AF_UNIX); s.settimeout(0.2)\n"
    " try: s.connect(sys.argv[1])\n"
    " except OSError: pass\n"
    " s.close()\n"
    " if number == 100: print('at it', flush=True)",
]
#: A byte each second, as another member.
DRIP = [
    *(*user(number=65532), "/usr/bin/python3", "-c"),
    "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
    "try:\n while True: s.send(b' '); time.sleep(1)\n"
    "except OSError: pass",
]


@pytest.mark.usefixtures("agent")
def test_a_member_who_asks_too_much_at_once_is_refused_with_the_reason(node: Node) -> None:
    path = socket_of(node)
    script = (
        "import socket, sys; opened = [socket.socket(socket.AF_UNIX) for _ in range(40)]\n"
        "for each in opened: each.settimeout(1); each.connect(sys.argv[1])\n"
        "print(opened[-1].recv(1000).decode())"
    )
    words = [*user(), "/usr/bin/python3", "-c", script, str(path)]
    told = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=60).stdout
    assert "xpu: 32 commands of user 65534 wait for the agent already: wait for them" in told


@pytest.mark.usefixtures("agent")
def test_an_answer_that_would_fill_the_memory_is_refused_to_a_member(node: Node) -> None:
    node.xpu("ps")
    with Ledger(str(node.run_dir / "ledger.db")) as ledger:
        for number in range(2200):
            ledger.note("refused", f"{number:064x}", text="x" * 8000)
    done = as_user(node, "events", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("xpu: events tells more than 16 MiB: ask for less (--since, --container), ")
    assert json.loads(as_user(node, "events", "--container", f"{7:064x}", "--json").stdout)["id"] == 8
    lines = node.xpu("events", "--json").stdout.splitlines()  # root's, read in pieces
    assert [json.loads(line)["id"] for line in lines] == list(range(1, 2201))


@pytest.mark.usefixtures("agent")
def test_a_member_has_a_table_as_wide_as_the_terminal_and_its_colours(node: Node, bundles: Bundles) -> None:
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))

    def shown(columns: int, **environ: str) -> str:
        before = [*node.view, *user()]
        with Terminal(node, columns, 24, ["ps"], environ, before=before) as terminal:
            assert terminal.ended() == 0
            return terminal.read()

    for columns in (80, 120):
        with Terminal(node, columns, 24, ["ps"], before=node.view) as terminal:
            assert terminal.ended() == 0
            assert shown(columns) == terminal.read()
    assert "\x1b[" in shown(80) and "\x1b[" not in shown(80, NO_COLOR="1")


def test_the_answering_process_is_started_again(node: Node, agent: Service) -> None:
    assert as_user(node, "devices").returncode == 0
    for each in children_of(agent.process.pid):
        os.kill(each, signal.SIGKILL)
    until(lambda: as_user(node, "devices").returncode == 0, "members are answered again", 30)


def test_without_the_group_all_is_roots(node: Node, start_agent: Serve) -> None:
    node.sim("1xT4")
    node.folder.chmod(0o755)
    groups = node.folder / "group"
    groups.write_text("".join(f"{line}\n" for line in ("root:x:0:", "nogroup:x:65534:")))
    with node.own_mounts(f"mount --bind {groups} /etc/group"):
        start_agent()
        node.xpu("metrics", check=False)  # the agent is up, and has begun all that it serves
        until((node.run_dir / "metrics.sock").exists, "what is served after it is")
        assert not (node.run_dir / "read.sock").exists()
        (line,) = as_user(node, "ps").stderr.splitlines()
        assert line.endswith(": only root can see and change slices: sudo xpu ps")


def test_a_members_command_ends_with_the_agent(node: Node, agent: Service) -> None:
    program = str(node.prefix / "bin" / "xpu")
    words = [*node.view, *user(), program, "top", "--once", "--interval", "60"]
    asking = subprocess.Popen(words, env=node.environ, cwd="/", stdout=subprocess.DEVNULL)

    def at_work() -> bool:
        # The member's own, and at least that which the agent runs for it.
        return sum("top --once --interval 60" in each for each in processes_of(node)) > 1

    until(at_work, "it is at it")
    agent.end(signal.SIGTERM)
    until(lambda: not at_work(), "it has ended")
    assert asking.wait(10) == 1
