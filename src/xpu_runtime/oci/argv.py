"""The command line of an OCI runtime, read as runc reads it.

runc 1.x parses with urfave/cli v1 over Go's flag package: `-x` and `--x` are the same, a value
follows an equals sign or is the next word, and the first word that is no option is the
subcommand. The launcher (native/launcher/argv.c) has the same rules in C; differential tests
hold the two together, and both to the real runc.
"""

from __future__ import annotations

import os

from xpu_runtime.value import Value

# Every option by each of its names; "=" marks those that take a value. runc 1.1, crun's
# cgroup-manager, log-level, config and f, and newer runc's pidfd-socket and config.
_GLOBAL = {
    "root": "root=",
    "log": "log=",
    "log-format": "log-format=",
    "log-level": "log-level=",
    "criu": "criu=",
    "rootless": "rootless=",
    "cgroup-manager": "cgroup-manager=",
    "systemd-cgroup": "systemd-cgroup",
    "debug": "debug",
    "version": "help",
    "v": "help",
    "help": "help",
    "h": "help",
}
_ANY = {
    "help": "help",
    "h": "help",
    "bundle": "bundle=",
    "b": "bundle=",
    "console-socket": "console-socket=",
    "pid-file": "pid-file=",
    "no-pivot": "no-pivot",
}
_START = {
    "no-new-keyring": "no-new-keyring",
    "preserve-fds": "preserve-fds=",
    "pidfd-socket": "pidfd-socket=",
    "config": "config=",
    "f": "config=",
}
_DETACHED = {"detach": "detach", "d": "detach", "no-subreaper": "no-subreaper"}
_RESTORE = {
    "image-path": "image-path=",
    "work-path": "work-path=",
    "parent-path": "parent-path=",
    "manage-cgroups-mode": "manage-cgroups-mode=",
    "empty-ns": "empty-ns=",
    "lsm-profile": "lsm-profile=",
    "lsm-mount-context": "lsm-mount-context=",
    "tcp-established": "tcp-established",
    "ext-unix-sk": "ext-unix-sk",
    "shell-job": "shell-job",
    "file-locks": "file-locks",
    "auto-dedup": "auto-dedup",
    "lazy-pages": "lazy-pages",
}
_OPTIONS = {
    "create": {**_ANY, **_START},
    "run": {**_ANY, **_START, **_DETACHED, "keep": "keep"},
    "restore": {**_ANY, **_DETACHED, **_RESTORE},
}

# strconv.ParseBool
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), "true"),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), ""),
}


class Invocation(Value):
    """One call of the runtime.

    `creates` says that a container comes to be if the runtime accepts the line: create, run or
    restore, only options that we know, exactly one id, no help asked for. Where it is False the
    line is the runtime's alone: it refuses it, or knows an option that we do not.
    """

    subcommand: str | None
    """None: there is none, or the words before it make no sense."""
    container_id: str | None
    """Of create, run and restore; None where there is not exactly one."""
    bundle: str
    """Absolute, not normalised; the working directory where none is given."""
    spec_path: str
    """Absolute: config.json in the bundle, or what `--config` of crun and newer runc names."""
    root: str | None
    """Absolute, or None: the runtime's default."""
    log: str | None
    """Absolute, or None: the runtime's standard error."""
    log_format: str
    """As given, "text" where it is not; runc takes "text" and "json"."""
    systemd_cgroup: bool
    debug: bool
    creates: bool


def _looks_like_option(word: str, known: dict[str, str]) -> bool:
    # urfave/cli's argIsFlag: three dashes count as two here, and Go's flag package refuses them later.
    if not word.startswith("-") or word in ("-", "--"):
        return False
    name = word[2:] if word.startswith("--") else word[1:]
    return name.removeprefix("-").partition("=")[0] in known


def _reordered(words: list[str], known: dict[str, str]) -> list[str]:
    """The words behind a subcommand as the flag package gets them (urfave/cli's reorderArgs, v1.22.9).

    Options come first, each with the word behind it unless it has an equals sign or that word is
    an option too; then "--", if there was one; then the rest.
    """
    options: list[str] = []
    rest: list[str] = []
    value_next = False
    for at, word in enumerate(words):
        if _looks_like_option(word, known):
            options.append(word)
            value_next = "=" not in word
        elif value_next:
            options.append(word)
            value_next = False
        elif word == "--":
            return options + ["--"] + rest + words[at + 1 :]
        else:
            rest.append(word)
    return options + rest


def _parsed(words: list[str], known: dict[str, str]) -> tuple[dict[str, str], list[str] | None]:
    """Options by their main name (the last of each counts), and the positional words behind them.

    As Go's flag.FlagSet.Parse. None in place of the positional words: refused, or an option that
    we do not know.
    """
    given: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word == "--":
            break
        name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
        main = known.get(name, "")
        if not main:
            return given, None
        if main.endswith("="):
            if not equals:
                if at == len(words):
                    return given, None
                value = words[at]
                at += 1
            given[main[:-1]] = value
        else:
            if equals and value not in _BOOLEANS:
                return given, None
            # One word that asks for help or the version is enough: `--help=false -v` prints the version.
            if main != "help" or not given.get("help"):
                given[main] = _BOOLEANS[value] if equals else "true"
    return given, words[at:]


def parse(argv: list[str], cwd: str) -> Invocation:
    """Reads the words after the program's name, for a process whose working directory is `cwd`.

    Pure, and takes any words: whether the runtime accepts them is for the runtime to say.
    """
    given, rest = _parsed(argv, _GLOBAL)
    subcommand = rest[0] if rest else None
    own: dict[str, str] = {}
    ids: list[str] | None = None
    known = _OPTIONS.get(subcommand or "")
    if rest and known is not None:
        own, ids = _parsed(_reordered(rest[1:], known), known)
    container_id = ids[0] if ids is not None and len(ids) == 1 else None

    bundle = os.path.join(cwd, own["bundle"]) if own.get("bundle") else cwd
    # crun: a spec file given by name is relative to the working directory, unless it is config.json.
    config = own.get("config", "config.json")
    spec_path = os.path.join(bundle if config == "config.json" else cwd, config)
    root = given.get("root")
    log = given.get("log")
    manager = given.get("cgroup-manager")
    return Invocation(
        subcommand=subcommand,
        container_id=container_id,
        bundle=bundle,
        spec_path=spec_path,
        root=os.path.join(cwd, root) if root else None,
        log=os.path.join(cwd, log) if log else None,
        log_format=given.get("log-format", "text"),
        systemd_cgroup=bool(given.get("systemd-cgroup")) or manager == "systemd",
        debug=bool(given.get("debug")),
        creates=bool(container_id) and not given.get("help") and not own.get("help"),
    )


#: Names of sockets: the runtime is in the bundle by the time that it connects to them.
_IN_BUNDLE = ("console-socket=", "pidfd-socket=")


def with_bundle(argv: list[str], bundle: str, other: str) -> list[str]:
    """The words of an invocation that creates, with the bundle `other` in the place of its own, `bundle`."""
    _, rest = _parsed(argv, _GLOBAL)
    assert rest
    known = _OPTIONS[rest[0]]
    words = _reordered(rest[1:], known)
    options: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
        main = known[name]
        given = [word]
        if main.endswith("=") and not equals:
            value = words[at]
            at += 1
            given.append(value)
        if main in _IN_BUNDLE:
            given = [f"--{name}={os.path.join(bundle, value)}"]
        if main != "bundle=":
            options += given
    return [*argv[: len(argv) - len(rest) + 1], *options, f"--bundle={other}", "--", *words[at:]]
