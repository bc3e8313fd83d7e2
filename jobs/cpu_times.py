"""How much CPU the processes of a measurement have used, by what they are: of Linux's /proc; elsewhere nothing."""

import os
import re
from pathlib import Path


def cpu_s(top: int | None = None) -> dict[str, float]:
    """CPU seconds so far of a process (default: this one) and all that descend from it, by name; its own are called "clients"."""
    top = os.getpid() if top is None else top
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / ticks
    found: dict[str, float] = {}
    for pid, seconds in used.items():
        at = pid
        while at not in (top, 0, 1) and at in parents:
            at = parents[at]
        if at == top:
            name = "clients" if pid == top else _name(pid)
            found[name] = found.get(name, 0.0) + seconds
    return found


def _name(pid: int) -> str:
    """What a process is: "ray::ServeReplica", "raylet", else "server"."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return "server"
    actor = re.match(r"ray::\w+", command)
    return actor[0] if actor else "Ray's own" if "/site-packages/ray/" in command else "server"
