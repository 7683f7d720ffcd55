"""A cluster without machines. Its nodes start, train, fail and die as real ones do, by a clock that tests move.

The code of launch, collection, gang monitor and reaper that runs against it is real. A gang trains in lockstep. If one
node's processes end, those of the others end with the message of a closed connection. If they hang, the others wait.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from backend.cluster.node import NodeError, Result
from backend.engines import CONFIG
from tests.fakes import FakeNode
from tests.runs.simulated_disk import STEPS_A_SECOND, Disk

BEAT_S = 2


@dataclass(kw_only=True)
class Part:
    """The part of one attempt on one node."""

    run: str
    attempt: int
    folder: str
    rank: int
    results: str = ""
    """The folder of the run's checkpoints."""
    alive: bool = True
    supervisor: bool = True
    wedged: bool = False
    """It hangs in a driver: no signal ends it."""
    step: int = 0
    half: str = ""
    """The end of a line that a buffer has not yet written to the disk."""

    @property
    def trains(self) -> bool:
        return self.alive and not self.wedged


@dataclass
class Machine:
    """One simulated node: its state, and the FakeNode that the server sees."""

    rank: int
    node: FakeNode
    parts: dict[str, Part] = field(default_factory=dict)
    """The parts of this boot, by run folder."""
    powered: bool = True
    cut: bool = False
    away_s: int = 0
    there_s: int = 0
    """The periods in which the server could not reach the node, and could."""

    @property
    def reachable(self) -> bool:
        return self.powered and not self.cut

    def connect(self) -> None:
        """Let the server reach the node, or fail to reach it, as `reachable` says."""
        away = NodeError("unreachable", self.node.name, address=self.node.name, port=22, detail="down")
        self.node.broken = None if self.reachable else away

    def holder(self) -> Part | None:
        """Return the part that holds the node. A lock is stale after all of its processes have ended."""
        return next((part for part in self.parts.values() if part.alive or part.supervisor), None)

    def append(self, part: Part, file: str, text: str) -> None:
        path = f"{part.folder}/{file}"
        self.node.files[path] = self.node.files.get(path, b"") + text.encode()

    def exit(self, part: Part, now: float, code: int | None, **more: object) -> None:
        """End a part. Its supervisor writes the exit file if it still runs."""
        part.alive = part.wedged
        if part.supervisor and f"{part.folder}/exit" not in self.node.files:
            self.write_exit(part, now, code, **more)
        part.supervisor = False

    def write_exit(self, part: Part, now: float, code: int | None, **more: object) -> None:
        reason = {0: "finished", None: "stopped"}.get(code, "failed")
        left = [[77, "python", "D"]] if part.wedged else []
        record = {"code": code, "stopped": code is None, "reason": reason, "left": left, "time": now, **more}
        self.node.files[f"{part.folder}/exit"] = json.dumps(record).encode()


class Cluster:
    """The machines, and the time."""

    def __init__(self, nodes: int, steps: int) -> None:
        self.now = 1000.0
        self.steps = steps
        self.disk = Disk(nodes)
        self.machines = [Machine(rank, FakeNode(f"10.0.0.{rank + 1}")) for rank in range(nodes)]
        for machine in self.machines:
            for action in ("start", "stop", "status", "list", "set_aside"):
                machine.node.on(action, reply=self._reply(machine, action))

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        """Advance by one second: every whole gang does two steps, and what must end ends."""
        self.now += 1.0
        for machine in self.machines:
            machine.away_s = 0 if machine.reachable else machine.away_s + 1
            machine.there_s = machine.there_s + 1 if machine.reachable else 0
        for gang in self._gangs():
            began = any(f"{part.folder}/began" in machine.node.files for machine, part in gang)
            if len(gang) == len(self.machines) and all(part.trains for _, part in gang):
                self._train(gang)
            elif (began and any(not part.alive for _, part in gang)) or (began and len(gang) < len(self.machines)):
                self._break_up(gang)
        for machine in self.machines:
            for part in machine.parts.values():
                if part.supervisor and self.now % BEAT_S == 0:
                    beat = {"time": self.now, "members": [[77, 1]] if part.alive else [], "gpus": []}
                    machine.append(part, "heartbeat.jsonl", json.dumps(beat) + "\n")

    def _gangs(self) -> list[list[tuple[Machine, Part]]]:
        """Return the parts of each attempt, ended or not."""
        gangs: dict[tuple[str, int], list[tuple[Machine, Part]]] = {}
        for machine in self.machines:
            for part in machine.parts.values():
                gangs.setdefault((part.run, part.attempt), []).append((machine, part))
        return list(gangs.values())

    def _train(self, gang: Sequence[tuple[Machine, Part]]) -> None:
        stops = any(f"{part.folder}/control/stop" in machine.node.files for machine, part in gang)
        for machine, part in gang:
            machine.node.files[f"{part.folder}/began"] = b""
            for _ in range(min(STEPS_A_SECOND, self.steps - part.step)):
                part.step += 1
                row = {"step": part.step, "total_steps": self.steps, "time": self.now, "loss": 1.0}
                line = part.half + json.dumps(row) + "\n"
                written = len(line) if part.step >= self.steps or stops else len(line) // 2 + len(part.half)
                machine.append(part, f"steps.rank{part.rank}.jsonl", line[:written])
                part.half = line[written:]
                machine.append(part, f"rank{part.rank}.log", f"step {part.step}\n")
            is_last = part.step >= self.steps or stops
            self.disk.save(part.results, part.rank, part.step, at_once=is_last)
            if is_last:
                machine.exit(part, self.now, 0, stopped=stops)

    def _break_up(self, gang: Sequence[tuple[Machine, Part]]) -> None:
        """Write half a line and the traceback as the last output of a rank."""
        for machine, part in gang:
            if part.trains:
                words = "step\nTraceback (most recent call last):\nConnectionError: Connection closed by peer\n"
                machine.append(part, f"rank{part.rank}.log", words)
                machine.exit(part, self.now, 1)

    def kill_worker(self, rank: int) -> bool:
        """Kill a worker. Return True if there was one."""
        return self._end(rank, lambda machine, part: machine.exit(part, self.now, None, signal=9, **FAILED))

    def kill_supervisor(self, rank: int) -> bool:
        return self._end(rank, lambda machine, part: setattr(part, "supervisor", False))

    def wedge(self, rank: int) -> bool:
        """Let the processes hang in a driver."""
        return self._end(rank, lambda machine, part: setattr(part, "wedged", True))

    def free(self, rank: int) -> None:
        """End the hang in the driver. A process with a pending SIGKILL ends; a process without one continues."""
        machine = self.machines[rank]
        for part in machine.parts.values():
            if part.wedged:
                part.wedged = False
                if f"{part.folder}/control/kill" in machine.node.files:
                    part.alive = False

    def _end(self, rank: int, act: Any) -> bool:
        machine = self.machines[rank]
        parts = [part for part in machine.parts.values() if part.trains] if machine.powered else []
        for part in parts:
            act(machine, part)
        return bool(parts)

    def power_off(self, rank: int) -> bool:
        """End everything on the node at once. Its disk stays. Return True if something trained."""
        machine = self.machines[rank]
        trained = any(part.alive for part in machine.parts.values())
        machine.parts.clear()
        machine.powered = False
        machine.connect()
        return trained

    def processes(self, run: str | None = None) -> int:
        """Return the living parts of one run or of all runs."""
        return sum(part.alive for m in self.machines for part in m.parts.values() if run in (None, part.run))

    def _reply(self, machine: Machine, action: str) -> Any:
        def reply(argv: Sequence[str], stdin: bytes) -> Result:
            operand = argv[list(argv).index(action) + 1]
            token = argv[list(argv).index("--token") + 1]
            return Result(code=0, out=token + json.dumps(getattr(self, f"_{action}")(machine, operand)) + "\n", err="")

        return reply

    def _start(self, machine: Machine, folder: str) -> dict[str, Any]:
        part = self._part(machine, folder)
        if f"{folder}/control/kill" in machine.node.files:
            return {"ok": False, "reason": "start_failed", "detail": "stop was requested"}
        holder = machine.holder()
        if holder:
            machine.write_exit(part, self.now, None, reason="lock_held", stopped=False)
            return {"ok": False, "reason": "lock_held", "holder": {"run": holder.run}}
        config = yaml.safe_load(machine.node.files[f"{folder}/{CONFIG}"])
        part.results = config["output_dir"]
        part.step = self.disk.load(part.results, config.get("resume_from_checkpoint"))
        machine.parts[folder] = part
        return {"ok": True}

    def _part(self, machine: Machine, folder: str, **values: Any) -> Part:
        spec = json.loads(machine.node.files[f"{folder}/spec.json"])
        return Part(run=spec["run"], attempt=spec["attempt"], folder=folder, rank=spec["node_rank"], **values)

    def _status(self, machine: Machine, folder: str) -> dict[str, Any]:
        part = machine.parts.get(folder)
        exit_file = machine.node.files.get(f"{folder}/exit")
        alive = bool(part and part.supervisor)
        return {
            "supervisor": alive,
            "rebooted": part is None,
            "members": [],
            "exit": json.loads(exit_file) if exit_file else None,
        }

    def _stop(self, machine: Machine, folder: str) -> dict[str, Any]:
        if f"{folder}/spec.json" not in machine.node.files:
            return {"left": [], "exit": None}
        machine.node.files.setdefault(f"{folder}/control/kill", b"{}")
        part = machine.parts.get(folder) or self._part(machine, folder, alive=False, supervisor=False)
        part.alive = part.wedged
        if f"{folder}/exit" not in machine.node.files:
            gone = "restart" if folder not in machine.parts else "" if part.supervisor else "supervisor"
            machine.write_exit(part, self.now, None, gone=gone)
        part.supervisor = False
        left = [[77, "python", "D"]] if part.wedged else []
        return {"left": left, "exit": json.loads(machine.node.files[f"{folder}/exit"])}

    def _list(self, _: Machine, request: str) -> dict[str, Any]:
        return self.disk.look(json.loads(request)["folder"])

    def _set_aside(self, _: Machine, request: str) -> dict[str, Any]:
        values = json.loads(request)
        return self.disk.set_aside(values["folder"], values["steps"])


FAILED = {"reason": "failed", "stopped": False}
