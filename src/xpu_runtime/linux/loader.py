"""Where programs of an image may find a library: a search through the folders that its dynamic loader
searches.

glibc's loader uses a program's RPATH, LD_LIBRARY_PATH, the cache that ldconfig makes of the folders in
/etc/ld.so.conf, and default folders, each with subfolders for hardware levels (ld.so(8), ldconfig(8)); musl's
uses /etc/ld-musl-ARCH.path instead of a cache. The image may be hostile: every path is resolved inside its
root, by descriptor, and one budget bounds all work. The caller says which libraries are searched for. Only
the error for a spent budget knows the purpose of the search: it tells the user that a memory limit is at
stake.
"""

from __future__ import annotations

import errno
import os
import stat

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux.rootfs import Root, names_in
from xpu_runtime.linux.undo import by_fd

_MACHINE = os.uname().machine
_MULTIARCH = f"{_MACHINE}-linux-gnu"
#: The loaders' default folders: Debian's, Red Hat's, and musl's.
_DEFAULT = tuple(
    f"{top}/{name}" for top in ("/usr", "") for name in (f"lib/{_MULTIARCH}", "lib64", "lib")
) + ("/usr/local/lib",)
#: Their subfolders: the one with a folder for each hardware level, and those that glibc before 2.37 knows.
_LEVELS = "glibc-hwcaps"
_FOR_HARDWARE = ("tls", "x86_64", "haswell", "xeon_phi", "avx512_1", "atomics", _LEVELS)
#: Possible expansions of `$LIB` and `$PLATFORM` in an image's loader; `$ORIGIN` is the program's folder.
_LIB = (f"lib/{_MULTIARCH}", "lib64", "lib")
_PLATFORM = ("x86_64", "haswell", "xeon_phi") if _MACHINE == "x86_64" else (_MACHINE,)
_CONF = "/etc/ld.so.conf"
_CONF_LIMIT = 1 << 20
#: The work that one image may cause: each directory entry that is listed costs 1. The largest images have
#: 20,000.
_BUDGET = 200_000
_OPENING = 20
#: Letters of a pattern that cost as much as a directory entry.
_COMPARED = 4
#: The special characters of a pattern.
_WILD = "*?[]\\"
_MAX_LINKS = 40
#: The longest expanded path; above PATH_MAX, so that no loader can open a longer one.
_LONGEST = 8192
#: How many interpreters are followed: a script's interpreter may be a script itself (execve(2)).
_SCRIPTS = 4
_SCRIPT_LINE = 256
#: Programs that entry points' shell scripts often start in the end.
_INTERPRETERS = ("python3", "python")
#: Errors which mean that a program of the container could not open the file either.
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EINVAL)


class Programs:
    """The parts of a container's spec that decide where its programs find libraries."""

    def __init__(self, environment: dict[str, str], cwd: str, program: str) -> None:
        path = environment.get("PATH", "").split(":")
        self.cwd = cwd or "/"
        self.program = program
        self.bins = _unique([folder for folder in path if folder.startswith("/")])
        self.origins = [*([os.path.dirname(program)] if program.startswith("/") else []), *self.bins]
        library_path = environment.get("LD_LIBRARY_PATH", "")
        #: An empty entry is the working folder, as for the loader.
        self.folders = _unique(library_path.replace(";", ":").split(":")) if library_path else []
        loaded = " ".join(environment.get(name, "") for name in ("LD_PRELOAD", "LD_AUDIT"))
        self.preloaded = _unique(loaded.replace(":", " ").split())
        #: Files that variables name, such as NUMBA_CUDA_DRIVER.
        self.named = [value for value in environment.values() if value.startswith("/")]


def _unique(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))


class Search:
    """The files of an image that its loader may find under a name that starts with one of `stems`.

    `files` maps the resolved path of each to its stem. `links` maps each link with such a name that leads to
    one of the paths `hidden` to that path, at which nothing needs to exist yet.
    """

    def __init__(
        self, root: Root, stems: tuple[str, ...], programs: Programs, hidden: tuple[str, ...] = ()
    ) -> None:
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self._root = root
        self._stems = stems
        self._programs = programs
        self._top = os.readlink(by_fd(root.fd)).rstrip("/")
        #: Libraries that every program is made to load, if given by name: they are searched for as well.
        self._preloaded = {name for name in programs.preloaded if "/" not in name}
        self._seen: set[str] = set()
        self._left = _BUDGET
        self._hidden = {self._leads_to(path) or path: path for path in hidden}

    def everywhere(self) -> None:
        """Searches wherever a loader of the image does; ApplyError where the budget is exceeded."""
        for folder in self._programs.folders:
            for path in self._expanded(folder):
                self.folder(path)
        for path in self._configured():
            self.folder(path)
        for path in _DEFAULT:
            self.folder(path)
        for element in self._programs.preloaded:
            for path in self._expanded(element) if "/" in element else ():
                self._file(path)
        for path in self._programs.named:
            if os.path.basename(path).startswith(self._stems):
                self._file(path)
        for name in _unique([self._programs.program, *_INTERPRETERS]):
            self._run_paths(name)
        # The RPATH of programs often leads to the lib beside their bin, as with conda.
        for prefix in self.prefixes():
            for stem in self._stems:
                self._file(f"{prefix}/lib/{stem}")
                self._file(f"{prefix}/lib/{stem}.1")

    def prefixes(self) -> list[str]:
        """The folders whose `bin` is in the spec's PATH: where whole environments are installed."""
        paths = [path.rstrip("/") for path in self._programs.bins]
        return _unique([path[: -len("/bin")] for path in paths if path.endswith("/bin")])

    def _run_paths(self, name: str, depth: int = 0) -> None:
        """Searches the RPATH or RUNPATH of a program; if it is a script, those of its interpreter."""
        fd = self._program(name)
        if fd is None:
            return
        try:
            real = self._real(fd)
            if real is None or not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            readable = os.open(by_fd(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(fd)
        try:
            start = os.pread(readable, _SCRIPT_LINE, 0)
            if not start.startswith(b"#!"):
                from xpu_runtime.linux.elf import elf_search_path

                found = elf_search_path(readable)
                for folder in _unique(found.split(":")) if found else ():
                    for path in self._expanded(folder, [os.path.dirname(real)]):
                        self.folder(path)
                return
        finally:
            os.close(readable)
        words = os.fsdecode(start[2:].partition(b"\n")[0]).split()
        # `env` runs its first argument that is neither an option nor a variable.
        words = words[:1] + [word for word in words[1:] if not word.startswith("-") and "=" not in word][:1]
        for word in words if depth < _SCRIPTS else ():
            self._run_paths(word, depth + 1)

    def _program(self, name: str) -> int | None:
        """Opens the program with this name as execvp(3) does; None if there is none."""
        if not name or "/" in name:
            paths = [os.path.join(self._programs.cwd, name)] if name else []
        else:
            paths = [f"{folder}/{name}" for folder in self._programs.bins]
        for path in paths:
            fd = self._open(path, os.O_PATH)
            if fd is not None:
                return fd
        return None

    def folder(self, path: str, *, deep: bool = False) -> None:
        """Searches a folder and the subfolders that a loader searches; with `deep` everything below it."""
        todo = [(path, deep)]
        while todo:
            here, everything = todo.pop()
            fd = self._open(here, os.O_RDONLY | os.O_DIRECTORY)
            if fd is None:
                continue
            try:
                real = self._real(fd)
                if real is None or real in self._seen:
                    continue
                self._seen.add(real)
                with os.scandir(fd) as entries:
                    for entry in entries:
                        name = entry.name
                        self._spend(1)
                        if name.startswith(self._stems) or name in self._preloaded:
                            self._file(f"{real}/{name}")
                        elif name in _FOR_HARDWARE:
                            todo.append((f"{real}/{name}", everything or name == _LEVELS))
                        elif everything and not entry.is_file(follow_symlinks=False):
                            todo.append((f"{real}/{name}", True))
            finally:
                os.close(fd)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        fd = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
        if fd is None:
            return []
        try:
            found = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._spend(1)
                    found.append(entry.name)
            return sorted(found)
        finally:
            os.close(fd)

    def _file(self, path: str) -> None:
        """Adds the file at `path` if a loader would load it for one of the stems, by its name or its
        SONAME."""
        fd = self._open(path, os.O_PATH)
        if fd is None:
            self._link(path, self._leads_to(path))
            return
        try:
            real = self._real(fd)
            if self._link(path, real):
                return
            if real is None or not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            stem = self._stem(os.path.basename(path)) or self._stem(os.path.basename(real))
            if stem is None:
                from xpu_runtime.linux.elf import elf_soname  # rarely needed, on a container's start

                readable = os.open(by_fd(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    stem = self._stem(elf_soname(readable))
                finally:
                    os.close(readable)
            if stem is not None:
                self.files.setdefault(real, stem)
        finally:
            os.close(fd)

    def _stem(self, name: str) -> str | None:
        return next((stem for stem in self._stems if name == stem or name.startswith(stem + ".")), None)

    def _link(self, path: str, leads_to: str | None) -> bool:
        """Adds a link that leads to a hidden path; returns whether it does."""
        hidden = self._hidden.get(leads_to or "")
        if hidden is None or path == leads_to:
            return False
        self.links[path] = hidden
        return True

    def _leads_to(self, path: str) -> str | None:
        """The path with all links resolved; its end need not exist. None for a loop."""
        todo = names_in(path)[::-1]
        done: list[str] = []
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                del done[-1:]
                continue
            target = self._readlink("/".join([*done, name]))
            if target is None:
                done.append(name)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                done = []
            todo += names_in(target)[::-1]
        return "/" + "/".join(done)

    def _readlink(self, path: str) -> str | None:
        fd = self._open(path, os.O_PATH | os.O_NOFOLLOW)
        if fd is None:
            return None
        try:
            return os.readlink("", dir_fd=fd) if stat.S_ISLNK(os.fstat(fd).st_mode) else None
        finally:
            os.close(fd)

    def _expanded(self, path: str, origins: list[str] | None = None) -> list[str]:
        """All paths that one with dynamic string tokens may expand to (ld.so(8))."""
        found = [path]
        origins = self._programs.origins if origins is None else origins
        for name, values in (("ORIGIN", origins), ("LIB", _LIB), ("PLATFORM", _PLATFORM)):
            for token in (f"${{{name}}}", f"${name}"):
                if token in path:
                    # Charged before the work is done: an image's PATH may have very many folders.
                    self._spend(len(found) * len(values))
                    found = [
                        each.replace(token, value)
                        for each in found
                        for value in values
                        if len(each) + each.count(token) * len(value) <= _LONGEST
                    ]
        return [each if each.startswith("/") else f"{self._programs.cwd}/{each}" for each in found]

    def _configured(self) -> list[str]:
        """The folders of /etc/ld.so.conf, which an ldconfig in the container would use, and of musl's
        file."""
        found: list[str] = []
        todo, read = [_CONF], set()
        while todo:
            path = todo.pop()
            for line in self._lines(path) if path not in read else ():
                words = line.split()
                if len(words) > 1 and words[0] == "include":
                    for pattern in words[1:]:
                        todo += self._matching(os.path.join(os.path.dirname(path), pattern))
                elif words and words[0] != "hwcap":
                    # Old files have the C library's name behind a `=`. Today's ldconfig takes a line for one
                    # folder, older ones for several, separated by commas or spaces.
                    found += [
                        each.partition("=")[0].strip() for each in (line, *line.replace(",", " ").split())
                    ]
            read.add(path)
        for line in self._lines(f"/etc/ld-musl-{_MACHINE}.path"):
            found += line.split(":")
        return _unique([folder for folder in found if folder.startswith("/")])

    def _lines(self, path: str) -> list[str]:
        self._spend(_OPENING)
        try:
            text = os.fsdecode(self._root.read(path, _CONF_LIMIT))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._too_much() from None
            return []
        lines = [line.partition("#")[0].strip() for line in text.replace(":", "\n").split("\n")]
        self._spend(len(lines))
        return [line for line in lines if line]

    def _matching(self, pattern: str) -> list[str]:
        """The files that the pattern of an `include` matches."""
        found = ["/"]
        for name_pattern in names_in(pattern):
            # Charged before the work: a pattern may have a million letters, or of parts.
            self._spend(len(found) + len(name_pattern) // _COMPARED)
            if any(letter in name_pattern for letter in _WILD):
                begin, end = fixed(name_pattern)
                found = [
                    os.path.join(folder, name)
                    for folder in found
                    for name in self.names(folder)
                    if name.startswith(begin) and name.endswith(end)
                ]
            else:
                length = _LONGEST - len(name_pattern)
                found = [os.path.join(folder, name_pattern) for folder in found if len(folder) < length]
        return found

    def _open(self, path: str, flags: int) -> int | None:
        self._spend(_OPENING)
        try:
            return self._root.open(path, flags)
        except OSError as error:
            if error.errno in _NOTHING:
                return None
            raise ApplyError(f"cannot look for libraries in {path[:200]}: {error.strerror}") from error
        except ValueError:
            return None  # a NUL in it

    def _real(self, fd: int) -> str | None:
        """The resolved path of an open file in the root; None if it is no longer there."""
        path = os.readlink(by_fd(fd))
        inside = path.startswith(self._top + "/") and not path.endswith(" (deleted)")
        return path[len(self._top) :] if inside else None

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise self._too_much()

    def _too_much(self) -> ApplyError:
        return ApplyError(
            "the folders in which the image's programs look for libraries have too many entries "
            "to be checked, so the memory limit of the interposer libraries could be bypassed",
            f"shorten LD_LIBRARY_PATH, or {_CONF} and the folders that it names",
        )


def fixed(pattern: str) -> tuple[str, str]:
    """The beginning and the end of all names that match a pattern of glob(3): its text before the first
    special letter and behind the last. Other names may have both, too."""
    special = [at for at, letter in enumerate(pattern) if letter in _WILD]
    return pattern[: special[0]], pattern[special[-1] + 1 :]
