"""Supervision of one run on this node: start of its program, heartbeats, and the end of all its processes."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Iterable

from backend.node.container import refusal_of
from backend.node.tools import MARK

from .activity import Work
from .files import PROTOCOL, RESERVE_BYTES, read_json, say, write_json
from .gpus import GpuReader, gpus_given_back
from .heartbeat import HEARTBEAT_S, HEARTBEATS_BYTES, LOGS, host_facts
from .locks import release_lock, take_lock
from .masking import LogMask
from .oom_kills import OomKills
from .processes import Process, boot_id, catches, end_tree, members, own_start, rank_of, send_signal
from .shutdown import ask_for_records, containers_left, drop_secrets, write_exit

TICK_S = 0.1
STUCK_SCANS = 3
"""A process that is stopped, or waits in the kernel, in this number of scans in a row is reported."""
RUNTIME_VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST", "XDG_RUNTIME_DIR", "APPTAINER_CACHEDIR", "ENROOT_DATA_PATH")
CLIENT_S = 3.0
STACKS_S = 2.0
"""Time for a stalled program to write its stacks, if it handles the request."""


class Supervisor:
    """Run the child of one spec to its end. This process adopts the child's orphans."""

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder, self.spec, self.mark = folder, spec, spec["mark"]
        self.gpus = GpuReader()
        self.known = []  # type: list[tuple[int, int]]
        self.next_scan = self.next_beat = 0.0
        self.log_bytes, self.log_grew = -1, time.monotonic()
        self.work = Work()
        self.still = {}  # type: dict[tuple[int, int], int]
        self.stuck = []  # type: list[list[Any]]
        self.told_to_end = False
        """Set when the batch system of a foreground supervisor asks it to end."""

    def start(self) -> dict[str, Any]:
        """Lock the node, start the child, and return the answer to the starting process."""
        identity = {"pid": os.getpid(), "start": own_start(), "boot": boot_id(), "mark": self.mark}
        owner = {name: self.spec[name] for name in ("run", "attempt", "node_rank")}
        other = take_lock(self.spec["lock"], {**identity, **owner, "folder": self.folder})
        if other:
            self.write_exit("lock_held")
            return {"ok": False, "reason": "lock_held", "holder": other}
        try:
            with open(f"{self.folder}/reserve", "wb") as file:
                file.write(bytes(RESERVE_BYTES))
            # Before the child starts, because the child removes the file with the secrets.
            self.log_mask = LogMask(self.folder, self.spec)
            # An attribute, because subprocess reaps the children of deleted objects and drops their exit status.
            self.child = self._spawn()
            self.oom_kills = OomKills(self.child.pid)
        except OSError as error:
            release_lock(self.spec["lock"], self.mark)
            self.write_exit("start_failed")
            return {"ok": False, "reason": "start_failed", "detail": str(error)}
        write_json(f"{self.folder}/pid", {**identity, "child": {"pid": self.child.pid}})
        return {"ok": True, **identity}

    def _spawn(self) -> subprocess.Popen[bytes]:
        program, container = self.spec["argv"][0], self.spec.get("container")
        if container:
            status, detail = refusal_of(container)
            if status:
                raise FileNotFoundError(detail)
        elif not os.access(program, os.X_OK):
            raise FileNotFoundError(f"{program} is not there or cannot be run")
        command = [sys.executable, os.path.abspath(__file__), "exec", self.folder]
        if self.spec.get("setup"):
            command = ["/bin/bash", "-c", '. "$0" && exec "$@"', self.spec["setup"], *command]
        names = ("HOME", "USER", "LANG", *self.spec.get("inherit", ()))
        environment = {name: os.environ[name] for name in names if name in os.environ}
        paths = [] if container else [os.path.dirname(program)]
        environment["PATH"] = os.pathsep.join([*paths, os.environ.get("PATH", os.defpath)])
        # The place of the daemon's socket, where it is not the usual one.
        environment.update({name: os.environ[name] for name in RUNTIME_VARIABLES if container and name in os.environ})
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
        """Supervise until the child and all its processes have ended. Then release the node and write `exit`."""
        self.gpus.start()
        status, reason = None, ""
        left: list[Process] = []
        ended, stuck = 0.0, []  # type: tuple[float, list[list[Any]]]
        while status is None and not left:
            time.sleep(TICK_S)
            status = self._reap()
            self.log_mask.mask()
            self._beat()
            if os.path.exists(f"{self.folder}/control/kill"):
                reason = "stopped"
            elif self.told_to_end:
                reason = "scheduler"
            elif status is None and time.monotonic() - self.log_grew > self.spec["stall_s"]:
                reason = "stalled"
                self._ask_for_stacks()
                ask_for_records(self.folder)
            if status is not None or reason:
                # The record has the time of the end and the processes that were stuck then. Ending them takes time.
                ended, stuck = ended or time.time(), stuck or self.stuck
                left = self._end()
        self.log_mask.mask(ended=not left)
        gpus = gpus_given_back(self.folder)
        # A process that cannot be ended holds the GPUs. The node is free when the process is gone (see `holder`).
        if not left:
            release_lock(self.spec["lock"], self.mark)
        self.write_exit(reason, status, left, time=ended, stuck=stuck, gpus=gpus, oom_kills=self.oom_kills.new())

    def _ask_for_stacks(self) -> None:
        """Send SIGUSR1 to all processes that handle it. entry.py then writes the stacks of all threads to its log."""
        processes = [p for p in members(self.mark, self.known, os.getpid()) if catches(p, signal.SIGUSR1)]
        for process in processes:
            send_signal(process, signal.SIGUSR1)
        time.sleep(STACKS_S if processes else 0)

    def _reap(self) -> int | None:
        """Reap ended processes, also orphans. Return the exit status of the child once it has ended."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self.child.pid:
                return self._status_of(status)
            if pid == 0:
                return None

    def _status_of(self, status: int) -> int:
        """Return the exit status of the program, or its signal as a negative number."""
        if os.WIFSIGNALED(status):
            return -os.WTERMSIG(status)
        code = os.WEXITSTATUS(status)
        # The client of a container exits with 128 + n if signal n ended the program.
        return 128 - code if self.spec.get("container") and code > 128 else code

    def _end(self) -> list[Process]:
        grace_s = (read_json(f"{self.folder}/control/kill") or self.spec)["grace_s"]
        left = end_tree(self.mark, self.known, os.getpid(), grace_s)
        if left or not self.spec.get("container"):
            return left
        self._end_client()
        return containers_left(self.spec)

    def _end_client(self) -> None:
        """Let the client of an ended container write the last output, and end it if it does not exit then."""
        deadline, options = time.monotonic() + CLIENT_S, os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            while os.waitid(os.P_PID, self.child.pid, options) is None:
                if time.monotonic() > deadline:
                    os.kill(self.child.pid, signal.SIGKILL)
                    return
                time.sleep(TICK_S)
        except ChildProcessError:
            return

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self.next_beat:
            return
        self.next_beat, zero = now + HEARTBEAT_S, time.time() - now
        if now >= self.next_scan:
            processes = members(self.mark, self.known, os.getpid())
            self.known = [(p.pid, p.start) for p in processes]
            self._note_stuck(processes)
            self.work.note(processes, now)
            # A scan of thousands of processes takes long. Scans use at most a twentieth of a core.
            self.next_scan = now + 20 * (time.monotonic() - now)
        try:
            paths = [path for logs in LOGS for path in glob.glob(f"{self.folder}/{logs}")]
            size = sum(map(os.path.getsize, paths))
            if size != self.log_bytes:
                self.log_bytes, self.log_grew = size, now
            line = {"protocol": PROTOCOL, "time": time.time(), "members": self.known, "gpus": self.gpus.gpus}
            # Times by the present clock, because somebody may have set the clock during the run.
            past = {"wrote": round(zero + self.log_grew, 1), "worked": self.work.last_active(zero)}
            line = {**line, "stuck": self.stuck, **past}
            if self.log_mask.values:
                line["masked"] = self.log_mask.clean
            if self.gpus.gpus and not os.path.exists(f"{self.folder}/gpus"):
                write_json(f"{self.folder}/gpus", {"gpus": self.gpus.named(), "log_end": self.gpus.log_end})
            beats = f"{self.folder}/heartbeat.jsonl"
            if os.path.exists(beats) and os.path.getsize(beats) > HEARTBEATS_BYTES:
                os.replace(beats, f"{self.folder}/heartbeat.old.jsonl")
            with open(beats, "a") as file:
                file.write(json.dumps({**line, **host_facts(self.folder)}) + "\n")
        except OSError as error:  # a full disk or a removed log must not end the run
            say("no heartbeat:", error)

    def _note_stuck(self, processes: Iterable[Process]) -> None:
        """Record the processes that stay in one of two states.

        `T`: somebody stopped it. `D`: it waits in the kernel for a driver or a file server, and no signal ends it.
        """
        still = [process for process in processes if process.state in "TtD"]
        self.still = {(p.pid, p.start): self.still.get((p.pid, p.start), 0) + 1 for p in still}
        stuck = [p for p in still if self.still[p.pid, p.start] >= STUCK_SCANS]
        self.stuck = [[p.pid, p.name, p.state, rank_of(p.pid)] for p in stuck]

    def write_exit(self, reason: str, status: int | None = None, left: Iterable[Process] = (), **more: Any) -> None:
        """Write `exit`. `reason` is empty for a child that ended by itself."""
        drop_secrets(self.spec)
        if not reason and os.path.exists(f"{self.folder}/control/stopped"):
            reason = "stopped"
        write_exit(self.folder, reason or ("failed" if status else "finished"), status, left, **more)
