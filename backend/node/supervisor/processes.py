"""Processes of a run, and their end. No process is ended by its name.

A process of a run is identified by the mark in its environment, by its parent and session, and by the members of the
last heartbeat.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Iterable, NamedTuple

from backend.node.tools import MARK

RANK = b"RANK="
GIVE_UP_S = 20.0
"""Time from the first SIGKILL until a process counts as stuck in a driver and is reported."""


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    start: int
    """Clock ticks since boot. The start and the id together identify a process."""
    state: str
    name: str


def read_process(pid: int) -> Process | None:
    """Return the process with this id, or None."""
    name, values = read_stat(pid)
    return Process(pid, int(values[1]), int(values[3]), int(values[19]), values[0], name) if values else None


def read_stat(pid: int) -> tuple[str, list[str]]:
    """Return the name in /proc/PID/stat and the values after it. Empty: the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "", []
    # The name is in parentheses, and may contain parentheses.
    first, last = text.index("("), text.rindex(")")
    return text[first + 1 : last], text[last + 2 :].split()


def find_process(pid: int, start: int) -> Process | None:
    """Return the living process with this identity, or None. Another process may have the same id."""
    process = read_process(pid)
    return process if process and process.start == start and process.state not in "ZX" else None


def own_start() -> int:
    """Return the start of this process."""
    process = read_process(os.getpid())
    if process is None:
        raise OSError("/proc does not show this process; the supervisor needs Linux")
    return process.start


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def send_signal(process: Process, number: int) -> bool:
    """Signal this process, not another process with its id. Return False if it has ended or is another user's."""
    handle = None
    try:
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            handle = os.pidfd_open(process.pid)
        if find_process(process.pid, process.start) is None:
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def catches(process: Process, number: int) -> bool:
    """Return whether the process handles the signal. Without a handler the signal could end it."""
    try:
        with open(f"/proc/{process.pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (number - 1) & 1)


def members(mark: str, known: Iterable[tuple[int, int]] = (), keeper: int = -1) -> list[Process]:
    """Return every living process of the run, except the keeper (the supervisor), this process and its ancestors.

    `known` has the identities of earlier members. A process may show no mark, because it cleared or overwrote its
    environment or forbids reading it. It belongs to the run if it is in `known`, if its parent is a member, if its
    parent is the keeper, which adopts orphans, or if a member leads its session.
    """
    own_mark = f"{MARK}={mark}".encode()
    alive, unmarked, pids = {}, {}, set()
    for name in os.listdir("/proc"):
        process = read_process(int(name)) if name.isdigit() else None
        if process is None or process.state in "ZX" or process.parent == 2:  # 2: kernel threads
            continue
        alive[process.pid] = process
        environment = _environment_of(process.pid)
        if own_mark in environment:
            pids.add(process.pid)
        elif not any(entry.startswith(MARK.encode() + b"=") for entry in environment):
            unmarked[process.pid] = process
    pids.update(pid for pid, start in known if pid in unmarked and unmarked[pid].start == start)
    grown = True
    while grown:
        leaders = {pid for pid in pids if alive[pid].session == pid}
        more = {p.pid for p in unmarked.values() if p.parent in pids or p.parent == keeper or p.session in leaders}
        grown = not more <= pids
        pids |= more
    return [alive[pid] for pid in sorted(pids - _self_and_ancestors(alive) - {keeper})]


def _environment_of(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def rank_of(pid: int) -> int | None:
    """Return the global rank of the process, or None. torchrun sets it in the environment of a rank's processes."""
    values = [entry[len(RANK) :] for entry in _environment_of(pid) if entry.startswith(RANK)]
    return int(values[0]) if values and values[0].isdigit() else None


def _self_and_ancestors(alive: dict[int, Process]) -> set[int]:
    chain, pid = {1}, os.getpid()
    while pid in alive and pid not in chain:
        chain.add(pid)
        pid = alive[pid].parent
    return chain


def end_tree(mark: str, known: Iterable[tuple[int, int]], keeper: int, grace_s: float) -> list[Process]:
    """End the run's processes with SIGTERM, and after `grace_s` with SIGKILL. Return those that could not be ended.

    The function returns when two scans in a row find no process. SIGTERM goes to the roots of the process tree:
    torchrun, which passes it on and waits, and orphans when they appear.
    """
    seen, terminated, empty_scans, begun = set(known), set(), 0, time.monotonic()
    while True:
        alive = members(mark, seen, keeper)
        seen.update((p.pid, p.start) for p in alive)
        empty_scans = 0 if alive else empty_scans + 1
        elapsed_s = time.monotonic() - begun
        if empty_scans == 2 or elapsed_s > grace_s + GIVE_UP_S:
            return alive
        pids = {p.pid for p in alive}
        for process in alive:
            if elapsed_s >= grace_s:
                send_signal(process, signal.SIGKILL)
            elif process.parent not in pids and process.pid not in terminated:
                terminated.add(process.pid)
                send_signal(process, signal.SIGTERM)
            # A stopped process does not react to SIGTERM.
            send_signal(process, signal.SIGCONT)
        time.sleep(0.05)
