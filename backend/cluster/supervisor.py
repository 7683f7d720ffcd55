"""Runs on a node: starts one node's part of a run, watches it, ends it. Standard library only, Linux, Python >= 3.8.

    supervisor.py start|status|stop FOLDER --token T [--grace S]
    supervisor.py holder LOCK --token T

Prints one line, `T{json}`. FOLDER/spec.json says what to run. `start` returns as soon as it runs; the supervisor stays
behind, detached, and writes `pid`, `heartbeat.jsonl` and, at the end, `exit`. `stop` works with and without it.
What belongs to the run is known by the mark in its environment, by descent and session, and by the members of the last
heartbeat; never by name.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import glob
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any, Iterable, NamedTuple, NoReturn  # noqa: UP035 - Python 3.8

PROTOCOL = 1
MARK = "MEGABOARD_RUN"
HEARTBEAT_S = 2.0
HEARTBEATS_BYTES = 16 << 20
"""A larger heartbeat.jsonl is put aside, over the one put aside before: a run may last for weeks."""
TICK_S = 0.1
GIVE_UP_S = 20.0
"""After the first SIGKILL; what is left then is stuck in a driver and is reported."""
STUCK_SCANS = 3
"""A process found standing still (stopped, or waiting in the kernel) by so many scans in a row is reported."""
STACKS_S = 2.0
"""For a stalled program to write its stacks, where it listens for the request."""
RECORD_S = 20.0
"""For its ranks to write NCCL's flight records: torch looks once a second whether one is wanted."""
PIPES = "nccl_wanted_"
"""torch makes a pipe of it for each rank, `<rank>.pipe` behind it; a byte there asks for the rank's flight record."""
RECORDS = "nccl_trace_rank_"
RESERVE_BYTES = 64 << 10
"""Held for the last words of a run whose disk is full."""
GPU_BACK_S = 10.0
"""A driver takes its time to give the memory of a process back."""
GPU_BACK_MIB = 256
LOGS = ("out.log", "rank*.log", "steps.rank*.jsonl")
"""What grows while a run is alive."""
PR_SET_CHILD_SUBREAPER = 36
GPU_QUERY = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
GPU_KEYS = ("index", "utilization", "memory_used_mib", "memory_total_mib", "power_w", "temperature_c")


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    start: int
    """Clock ticks since boot: with the id, the identity of a process."""
    state: str
    name: str


def read_process(pid: int) -> Process | None:
    """The process with this id, or None."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may itself hold some.
    values = text[text.rindex(")") + 2 :].split()
    name = text[text.index("(") + 1 : text.rindex(")")]
    return Process(pid, int(values[1]), int(values[3]), int(values[19]), values[0], name)


def find_process(pid: int, start: int) -> Process | None:
    """The living process with this identity; an id alone may meanwhile be another's."""
    process = read_process(pid)
    return process if process and process.start == start and process.state not in "ZX" else None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def send_signal(process: Process, number: int) -> bool:
    """Signal this very process, not another that got its id; False where it is gone or not ours to signal."""
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


def members(mark: str, known: Iterable[tuple[int, int]] = (), keeper: int = -1) -> list[Process]:
    """Every living process of the run, except the keeper (the supervisor), this process and its ancestors.

    `known`: identities that were members before. A process that shows no mark (it cleared or overwrote its environment,
    or forbids reading it) belongs to the run when it was known, when its parent is a member or the keeper, which adopts
    orphans, or when a member leads its session.
    """
    wanted = f"{MARK}={mark}".encode()
    alive, silent, found = {}, {}, set()
    for name in os.listdir("/proc"):
        process = read_process(int(name)) if name.isdigit() else None
        if process is None or process.state in "ZX" or process.parent == 2:  # 2: kernel threads
            continue
        alive[process.pid] = process
        environment = _environment_of(process.pid)
        if wanted in environment:
            found.add(process.pid)
        elif not any(entry.startswith(MARK.encode() + b"=") for entry in environment):
            silent[process.pid] = process
    found.update(pid for pid, start in known if pid in silent and silent[pid].start == start)
    grown = True
    while grown:
        leaders = {pid for pid in found if alive[pid].session == pid}
        more = {p.pid for p in silent.values() if p.parent in found or p.parent == keeper or p.session in leaders}
        grown = not more <= found
        found |= more
    return [alive[pid] for pid in sorted(found - _self_and_ancestors(alive) - {keeper})]


def _environment_of(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _self_and_ancestors(alive: dict[int, Process]) -> set[int]:
    chain, pid = {1}, os.getpid()
    while pid in alive and pid not in chain:
        chain.add(pid)
        pid = alive[pid].parent
    return chain


def end_tree(mark: str, known: Iterable[tuple[int, int]], keeper: int, grace_s: float) -> list[Process]:
    """TERM, after `grace_s` KILL, until two looks find none; what could not be ended.

    TERM goes to the tops of the tree: torchrun, which passes it on and waits; orphans get it as they appear.
    """
    seen, told, quiet, begun = set(known), set(), 0, time.monotonic()
    while True:
        alive = members(mark, seen, keeper)
        seen.update((p.pid, p.start) for p in alive)
        quiet = 0 if alive else quiet + 1
        elapsed_s = time.monotonic() - begun
        if quiet == 2 or elapsed_s > grace_s + GIVE_UP_S:
            return alive
        pids = {p.pid for p in alive}
        for process in alive:
            if elapsed_s >= grace_s:
                send_signal(process, signal.SIGKILL)
            elif process.parent not in pids and process.pid not in told:
                told.add(process.pid)
                send_signal(process, signal.SIGTERM)
            # A stopped process sees no SIGTERM.
            send_signal(process, signal.SIGCONT)
        time.sleep(0.05)


def write_json(path: str, content: dict[str, Any]) -> None:
    """Readers see the old file or the whole new one."""
    part = f"{path}.{secrets.token_hex(4)}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"protocol": PROTOCOL, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def holder(lock: str) -> dict[str, Any] | None:
    """Who holds the node: the lock's content while its supervisor or any process of its run lives."""
    content = read_json(lock)
    if content is None or content.get("boot") != boot_id():
        return None
    alive = find_process(content["pid"], content["start"]) or members(content["mark"])
    return content if alive else None


def take_lock(lock: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Take the node for one run, or answer who holds it. A lock appears whole, by a link, never half written."""
    os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
    mine = f"{lock}.{secrets.token_hex(4)}"
    write_json(mine, content)
    try:
        while True:
            try:
                os.link(mine, lock)
                return None
            except FileExistsError:
                held = holder(lock)
                if held:
                    return held
            stale = f"{mine}.stale"
            os.replace(lock, stale)
            # Another starter may have replaced the stale lock since we looked: then it is his, and goes back.
            if holder(stale):
                os.link(stale, lock)
            os.unlink(stale)
    finally:
        os.unlink(mine)


def release_lock(lock: str, mark: str) -> None:
    """Only one's own."""
    if (read_json(lock) or {}).get("mark") == mark:
        os.unlink(lock)


def last_members(folder: str) -> list[tuple[int, int]]:
    """The members that the newest heartbeat names."""
    try:
        with open(f"{folder}/heartbeat.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 18)))
            lines = file.read().splitlines()
        return [(pid, start) for pid, start in json.loads(lines[-1])["members"]]
    except (OSError, ValueError, IndexError):
        return []


def is_full(folder: str) -> bool:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < RESERVE_BYTES


def catches(process: Process, number: int) -> bool:
    """Whether the process has a handler for the signal; without one it might die of it."""
    try:
        with open(f"/proc/{process.pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (number - 1) & 1)


class GpuReader(threading.Thread):
    """Asks nvidia-smi again and again beside the supervisor: it takes a second, and hangs with a broken driver."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gpus = []  # type: list[dict[str, float | None]]

    def run(self) -> None:
        while shutil.which("nvidia-smi"):
            self.gpus = read_gpus()
            time.sleep(HEARTBEAT_S)


def read_gpus(timeout_s: float = 30.0) -> list[dict[str, float | None]]:
    """What nvidia-smi says of each GPU now; none where it says nothing."""
    program = shutil.which("nvidia-smi")
    command = [str(program), f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits"]
    try:
        # A mark of its own: it is no member of the run.
        environment = {**os.environ, MARK: "nvidia-smi"}
        answer = (
            subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)
            if program
            else None
        )
        rows = [map(_number, line.split(",")) for line in answer.stdout.splitlines()] if answer else []
        return [dict(zip(GPU_KEYS, row)) for row in rows]  # noqa: B905 - Python 3.8
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def gpus_given_back(folder: str) -> list[list[float]]:
    """[index, MiB in use when the run began, MiB in use now] of each GPU, once it is back or does not come back."""
    began = {gpu["index"]: gpu["memory_used_mib"] or 0.0 for gpu in first_gpus(folder)}
    deadline = time.monotonic() + GPU_BACK_S
    while began:
        now = [(gpu["index"], gpu["memory_used_mib"] or 0.0) for gpu in read_gpus(GPU_BACK_S) if gpu["index"] in began]
        if all(used <= began[index] + GPU_BACK_MIB for index, used in now) or time.monotonic() > deadline:
            return [[index or 0.0, began[index], used] for index, used in now]
        time.sleep(0.5)
    return []


def first_gpus(folder: str) -> list[dict[str, float | None]]:
    """What the first heartbeat with GPUs says of them: the run had not yet come to use any."""
    try:
        with open(f"{folder}/gpus") as file:
            gpus = json.load(file)["gpus"]  # type: list[dict[str, float | None]]
            return gpus
    except (OSError, ValueError, KeyError):
        return []


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


def host_facts(folder: str) -> dict[str, Any]:
    with open("/proc/meminfo") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in file if line.startswith("Mem")}
    disk = os.statvfs(folder)
    return {
        "load1": os.getloadavg()[0],
        "memory_used_mib": memory["MemTotal"] - memory["MemAvailable"],
        "memory_total_mib": memory["MemTotal"],
        "disk_free_mib": disk.f_bavail * disk.f_frsize >> 20,
    }


class Supervisor:
    """Runs the child of one spec to its end, in this process, which adopts the child's orphans."""

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder, self.spec, self.mark = folder, spec, spec["mark"]
        self.gpus = GpuReader()
        self.known = []  # type: list[tuple[int, int]]
        self.next_scan = self.next_beat = 0.0
        self.log_bytes, self.log_grew = -1, time.monotonic()
        self.still = {}  # type: dict[tuple[int, int], int]
        self.stuck = []  # type: list[list[Any]]

    def start(self) -> dict[str, Any]:
        """Take the node and start the child; the answer for whoever asked."""
        me = {"pid": os.getpid(), "start": _own_start(), "boot": boot_id(), "mark": self.mark}
        who = {name: self.spec[name] for name in ("run", "attempt", "node_rank")}
        held = take_lock(self.spec["lock"], {**me, **who, "folder": self.folder})
        if held:
            self.write_exit("lock_held")
            return {"ok": False, "reason": "lock_held", "holder": held}
        try:
            with open(f"{self.folder}/reserve", "wb") as file:
                file.write(bytes(RESERVE_BYTES))
            # Kept, because subprocess buries the children of forgotten objects, and their exit status with them.
            self.child = self._spawn()
        except OSError as error:
            release_lock(self.spec["lock"], self.mark)
            self.write_exit("start_failed")
            return {"ok": False, "reason": "start_failed", "detail": str(error)}
        write_json(f"{self.folder}/pid", {**me, "child": {"pid": self.child.pid}})
        return {"ok": True, **me}

    def _spawn(self) -> subprocess.Popen[bytes]:
        program = self.spec["argv"][0]
        if not os.access(program, os.X_OK):
            raise FileNotFoundError(f"{program} is not there or cannot be run")
        command = [sys.executable, os.path.abspath(__file__), "exec", self.folder]
        if self.spec.get("setup"):
            command = ["/bin/bash", "-c", '. "$0" && exec "$@"', self.spec["setup"], *command]
        environment = {name: os.environ[name] for name in ("HOME", "USER", "LANG") if name in os.environ}
        environment["PATH"] = os.path.dirname(program) + os.pathsep + os.environ.get("PATH", os.defpath)
        with open(os.open(f"{self.folder}/out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            return subprocess.Popen(
                command,
                env={"LANG": "C.UTF-8", **environment, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def run(self) -> None:
        """Until the child and all that belongs to it have ended; then the node is free and `exit` is there."""
        self.gpus.start()
        status, reason = None, ""
        left: list[Process] = []
        ended, stuck = 0.0, []  # type: tuple[float, list[list[Any]]]
        while status is None and not left:
            time.sleep(TICK_S)
            status = self._reap()
            self._beat()
            if os.path.exists(f"{self.folder}/control/kill"):
                reason = "stopped"
            elif status is None and time.monotonic() - self.log_grew > self.spec["stall_s"]:
                reason = "stalled"
                self._ask_for_stacks()
                ask_for_records(self.folder)
            if status is not None or reason:
                # Which node ended first is asked for, and what stood still then; clearing up wakes and takes its time.
                ended, stuck = ended or time.time(), stuck or self.stuck
                left = self._end()
        gpus = gpus_given_back(self.folder)
        # What cannot be ended still holds the GPUs: the node is free once it is gone (see `holder`).
        if not left:
            release_lock(self.spec["lock"], self.mark)
        self.write_exit(reason, status, left, time=ended, stuck=stuck, gpus=gpus)

    def _ask_for_stacks(self) -> None:
        """entry.py answers SIGUSR1 with the stacks of all threads, in the rank's log."""
        asked = [p for p in members(self.mark, self.known, os.getpid()) if catches(p, signal.SIGUSR1)]
        for process in asked:
            send_signal(process, signal.SIGUSR1)
        time.sleep(STACKS_S if asked else 0)

    def _reap(self) -> int | None:
        """Buries what has ended, orphans too; the exit status of the child once it is among them."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self.child.pid:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if pid == 0:
                return None

    def _end(self) -> list[Process]:
        grace_s = (read_json(f"{self.folder}/control/kill") or self.spec)["grace_s"]
        return end_tree(self.mark, self.known, os.getpid(), grace_s)

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self.next_beat:
            return
        self.next_beat = now + HEARTBEAT_S
        if now >= self.next_scan:
            found = members(self.mark, self.known, os.getpid())
            self.known = [(p.pid, p.start) for p in found]
            self._note_stuck(found)
            # A node with thousands of processes takes long to look through: at most a twentieth of a core for it.
            self.next_scan = now + 20 * (time.monotonic() - now)
        try:
            paths = [path for logs in LOGS for path in glob.glob(f"{self.folder}/{logs}")]
            size = sum(map(os.path.getsize, paths))
            if size != self.log_bytes:
                self.log_bytes, self.log_grew = size, now
            line = {"protocol": PROTOCOL, "time": time.time(), "members": self.known, "gpus": self.gpus.gpus}
            line["stuck"] = self.stuck
            if self.gpus.gpus and not os.path.exists(f"{self.folder}/gpus"):
                write_json(f"{self.folder}/gpus", {"gpus": self.gpus.gpus})
            beats = f"{self.folder}/heartbeat.jsonl"
            if os.path.exists(beats) and os.path.getsize(beats) > HEARTBEATS_BYTES:
                os.replace(beats, f"{self.folder}/heartbeat.old.jsonl")
            with open(beats, "a") as file:
                file.write(json.dumps({**line, **host_facts(self.folder)}) + "\n")
        except OSError as error:  # A full disk, a log that someone removed: no reason to lose the run.
            say("no heartbeat:", error)

    def _note_stuck(self, found: Iterable[Process]) -> None:
        """`T`: someone stopped it. `D`: it waits in the kernel for a driver or a file server, and no signal ends it."""
        still = [process for process in found if process.state in "TtD"]
        self.still = {(p.pid, p.start): self.still.get((p.pid, p.start), 0) + 1 for p in still}
        self.stuck = [[p.pid, p.name, p.state] for p in still if self.still[p.pid, p.start] >= STUCK_SCANS]

    def write_exit(self, reason: str, status: int | None = None, left: Iterable[Process] = (), **more: Any) -> None:
        """`reason` is empty for a child that ended by itself."""
        drop_secrets(self.spec)
        if not reason and os.path.exists(f"{self.folder}/control/stopped"):
            reason = "stopped"
        write_exit(self.folder, reason or ("failed" if status else "finished"), status, left, **more)


def ask_for_records(folder: str) -> None:
    """Wait until every rank that listens has written the flight record of its collectives, or takes too long.

    By itself it does so when a collective times out; a stall may be seen before. Who stops the run waits for none.
    """
    asked = [pipe for pipe in glob.glob(f"{glob.escape(folder)}/{PIPES}*.pipe") if send_byte(pipe)]
    files = [f"{folder}/{RECORDS}{os.path.basename(pipe)[len(PIPES) : -len('.pipe')]}" for pipe in asked]
    sizes, deadline = [], time.monotonic() + RECORD_S  # type: tuple[list[int], float]
    while files and time.monotonic() < deadline and not os.path.exists(f"{folder}/control/kill"):
        time.sleep(0.5)
        before, sizes = sizes, [os.path.getsize(file) if os.path.exists(file) else 0 for file in files]
        if all(sizes) and sizes == before:
            break


def send_byte(pipe: str) -> bool:
    """Whether somebody reads the pipe; nobody is waited for."""
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(handle, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(handle)


def has_pipes(folder: str) -> bool:
    """Whether the file system has named pipes: torch, told to make one where there are none, takes the rank with it."""
    probe = f"{folder}/.pipe.{secrets.token_hex(4)}"
    try:
        os.mkfifo(probe, 0o600)
        os.unlink(probe)
        return True
    except OSError:
        return False


def drop_secrets(spec: dict[str, Any]) -> None:
    """Remove the file where the child did not, and what a connection that broke left of one on its way."""
    if spec.get("secrets"):
        folder, name = os.path.split(spec["secrets"])
        for path in (spec["secrets"], *glob.glob(f"{glob.escape(folder)}/.{name}.*")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def write_exit(folder: str, reason: str, status: int | None, left: Iterable[Process], **more: Any) -> None:
    """`code` and `signal` are null where unknown; `left`: id, name and state of what could not be ended.

    `more`: `time` when the program ended, `stuck` as `left` but of what stood still at a stall, `gpus` as
    gpus_given_back, `gone` where the supervisor ended before it could write this: itself alone ("supervisor") or the
    machine ("restart"). `disk_full`: nobody could write any more, the reason itself not either.
    """
    disk_full = is_full(folder)
    free_reserve(folder)
    by_signal = status is not None and status < 0
    content = {
        "code": None if by_signal else status,
        "signal": -status if by_signal and status else None,
        "stopped": reason == "stopped",
        "reason": reason,
        "left": [[p.pid, p.name, p.state] for p in left],
        "disk_full": disk_full,
        "time": time.time(),
        **more,
    }
    write_json(f"{folder}/exit", content)


def free_reserve(folder: str) -> None:
    """Room for a few more words on a full disk."""
    if os.path.exists(f"{folder}/reserve"):
        os.unlink(f"{folder}/reserve")


def _own_start() -> int:
    process = read_process(os.getpid())
    if process is None:
        raise OSError("/proc does not show this process; the supervisor needs Linux")
    return process.start


def start(folder: str) -> dict[str, Any]:
    """Leave a supervisor behind that runs FOLDER/spec.json, and answer what it says of the start."""
    spec = read_json(f"{folder}/spec.json")
    if spec is None or spec["protocol"] > PROTOCOL:
        return {"ok": False, "reason": "start_failed", "detail": "spec.json is missing or newer than this program"}
    if os.path.exists(f"{folder}/control/kill"):
        drop_secrets(spec)
        return {"ok": False, "reason": "start_failed", "detail": "stop was requested"}
    try:
        log = os.open(f"{folder}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except FileExistsError:
        return {"ok": False, "reason": "start_failed", "detail": "this attempt was already started"}
    here, there = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(here)
            _supervise(folder, spec, there, log)
        os._exit(0)
    os.close(there)
    os.wait()
    with open(here) as file:
        answer = file.read()
    return json.loads(answer) if answer else {"ok": False, "reason": "start_failed", "detail": "see supervisor.log"}


def _supervise(folder: str, spec: dict[str, Any], answer_to: int, log: int) -> None:
    try:
        # Whoever started us waits for the end of these streams.
        for number, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(target, number)
        # Ours to outlive; not SIG_IGN, which the child would inherit.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        supervisor = Supervisor(folder, spec)
        answer = supervisor.start()
        with open(answer_to, "w") as file:
            file.write(json.dumps(answer))
        if answer["ok"]:
            supervisor.run()
    except BaseException:
        say(traceback.format_exc())
    finally:
        os._exit(0)


def say(*words: object) -> None:
    """In the log, if there is room for it: nothing may depend on that."""
    with contextlib.suppress(OSError):
        os.write(1, (" ".join(map(str, words)) + "\n").encode())


def execute(folder: str) -> NoReturn:
    """Becomes the spec's program, after the node's `setup`: its environment, then the secrets, which leave the disk."""
    spec = read_json(f"{folder}/spec.json") or {}
    os.environ.update(spec["environment"])
    if spec.get("secrets"):
        with open(spec["secrets"]) as file:
            os.environ.update(json.load(file))
        os.unlink(spec["secrets"])
    if "TORCH_NCCL_DUMP_ON_TIMEOUT" in spec["environment"] and has_pipes(folder):
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{folder}/{PIPES}")
    os.environ[MARK] = spec["mark"]
    os.execv(spec["argv"][0], spec["argv"])  # noqa: S606 - the job itself, no shell wanted


def status(folder: str) -> dict[str, Any]:
    spec, me = read_json(f"{folder}/spec.json") or {}, read_json(f"{folder}/pid") or {}
    here = me.get("boot") == boot_id()
    alive = here and find_process(me["pid"], me["start"]) is not None
    found = members(spec["mark"], last_members(folder) if here else (), me["pid"] if alive else -1) if spec else []
    return {
        "supervisor": bool(alive),
        "rebooted": bool(me) and not here,
        "members": [[p.pid, p.start, p.name] for p in found],
        "exit": read_json(f"{folder}/exit"),
    }


def stop(folder: str, grace_s: float) -> dict[str, Any]:
    """End the run on this node: by its supervisor, or in its place where it is gone or does not answer."""
    spec, me = read_json(f"{folder}/spec.json"), read_json(f"{folder}/pid") or {}
    if spec is None:
        return {"left": [], "exit": None}
    os.makedirs(f"{folder}/control", mode=0o700, exist_ok=True)
    if not os.path.exists(f"{folder}/exit"):
        disk_full = is_full(folder)
        if disk_full:
            free_reserve(folder)
        write_json(f"{folder}/control/kill", {"grace_s": grace_s})
    here = me.get("boot") == boot_id()
    # Whose end this is, when the node itself cannot say so any more.
    gone = "" if not me else "restart" if not here else "" if find_process(me["pid"], me["start"]) else "supervisor"
    deadline = time.monotonic() + grace_s + GIVE_UP_S + 5
    while here and find_process(me["pid"], me["start"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    drop_secrets(spec)
    left = end_tree(spec["mark"], last_members(folder) if here else (), -1, 0 if here else grace_s)
    if not os.path.exists(f"{folder}/exit"):
        write_exit(folder, "stopped", None, left, gone=gone, gpus=gpus_given_back(folder) if here else [])
        if not left:
            release_lock(spec["lock"], spec["mark"])
    return {"left": [[p.pid, p.name, p.state] for p in left], "exit": read_json(f"{folder}/exit")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("start", "status", "stop", "holder", "exec"))
    parser.add_argument("path")
    parser.add_argument("--token", default="")
    parser.add_argument("--grace", type=float, default=10.0)
    options = parser.parse_args()
    path = os.path.abspath(os.path.expanduser(options.path))
    if options.action == "exec":
        execute(path)
    elif options.action == "start":
        answer = start(path)
    elif options.action == "stop":
        answer = stop(path, options.grace)
    elif options.action == "status":
        answer = status(path)
    else:
        answer = {"holder": holder(path)}
    print(options.token + json.dumps({"protocol": PROTOCOL, **answer}), flush=True)


if __name__ == "__main__":
    main()
