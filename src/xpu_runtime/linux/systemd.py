"""Device rules of a cgroup that systemd manages: systemd has to know them, or it drops them.

At each `systemctl daemon-reload` systemd writes the rules of its units again, by what it knows of them: a
rule that somebody else has put into the cgroup is lost. So it is told, as `systemctl set-property --runtime`
would (D-Bus: SetUnitProperties of org.freedesktop.systemd1.Manager). Knows devices only by their numbers.
"""

from __future__ import annotations

from xpu_runtime.errors import ApplyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.linux.device_rule import DeviceRule

#: Seconds that systemd may take: at a boot it does much else.
_ANSWER_S = 20
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


def allow_devices(unit: str, rules: list[DeviceRule]) -> None:
    """Makes systemd allow the unit the devices, until the unit ends. ApplyError if systemd cannot be
    asked."""
    import subprocess  # few containers come here

    devices = [
        word
        for rule in rules
        for word in (f"/dev/{'char' if rule.kind == 'c' else 'block'}/{rule.major}:{rule.minor}", rule.access)
    ]
    call = ["busctl", "call", *_MANAGER, "SetUnitProperties", "sba(sv)", unit, "true", "1"]
    call += ["DeviceAllow", "a(ss)", str(len(rules)), *devices]
    try:
        done = subprocess.run(
            call,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        why = f"it did not answer within {_ANSWER_S} s"
    except OSError as error:
        why = f"busctl cannot be started ({error.strerror})"
    else:
        if not done.returncode:
            return
        why = done.stderr.strip() or f"busctl ended with {done.returncode}"
    raise ApplyError(
        f"systemd manages the container's cgroup ({unit}) and cannot be told of its devices, which it would "
        f"take away at the next daemon-reload: {why}",
        "start the container with the runtime xpu (--runtime=xpu)",
    )
