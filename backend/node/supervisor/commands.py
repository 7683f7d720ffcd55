"""Command line of the supervisor, and its answers."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import time
import traceback
from typing import Any, NoReturn

from backend.node.container import WITH_DAEMON, container_command
from backend.node.tools import MARK

from .allocation import allocated_argv, folder_of_node, set_interface
from .files import PROTOCOL, free_reserve, is_full, read_json, say, write_json
from .gpus import gpus_given_back
from .heartbeat import last_members
from .keeper import Supervisor
from .locks import holder, release_lock
from .processes import GIVE_UP_S, boot_id, end_tree, find_process, members
from .shutdown import PIPES, containers_left, drop_secrets, has_pipes, write_exit

PR_SET_CHILD_SUBREAPER = 36


def start(folder: str) -> dict[str, Any]:
    """Start a supervisor of FOLDER/spec.json in the background, and return its report of the start."""
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
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(reader)
            _supervise(folder, spec, writer, log)
        os._exit(0)
    os.close(writer)
    os.wait()
    with open(reader) as file:
        answer = file.read()
    return json.loads(answer) if answer else {"ok": False, "reason": "start_failed", "detail": "see supervisor.log"}


def _supervise(folder: str, spec: dict[str, Any], answer_to: int, log: int) -> None:
    try:
        # The starting process waits for the end of these streams.
        for number, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(target, number)
        # The supervisor outlives these signals. The child would inherit SIG_IGN, so they get a handler.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        supervisor = Supervisor(folder, spec)
        try:
            answer = supervisor.start()
        except OSError as error:  # a full disk, or a run root of another user
            say(traceback.format_exc())
            answer = {"ok": False, "reason": "start_failed", "detail": str(error)}
        with open(answer_to, "w") as file:
            file.write(json.dumps(answer))
        if answer["ok"]:
            supervisor.run()
    except BaseException:
        say(traceback.format_exc())
    finally:
        os._exit(0)


def run(attempt_folder: str) -> NoReturn:
    """Supervise this node's part of an attempt in the foreground, as a task of a batch system, and end with its status.

    SIGTERM from the batch system ends the run on this node. This process guards the supervisor, which is its child: not
    every batch system finds the processes of a supervisor that was killed.
    """
    folder = folder_of_node(attempt_folder)
    spec = read_json(f"{folder}/spec.json")
    if spec is None or spec["protocol"] > PROTOCOL:
        raise SystemExit(f"{folder}/spec.json is missing or newer than this program")
    if os.path.exists(f"{folder}/control/kill"):
        drop_secrets(spec)
        raise SystemExit("stop was requested")
    try:
        log = os.open(f"{folder}/supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except FileExistsError:
        raise SystemExit(f"{folder} was already started") from None
    for request in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(request, lambda *_: None)
    child = os.fork()
    if child == 0:
        _supervise_in_foreground(folder, spec, log)
    os.waitpid(child, 0)
    if not os.path.exists(f"{folder}/exit"):
        stop(folder, spec["grace_s"])
    ended = read_json(f"{folder}/exit") or {}
    raise SystemExit(0 if ended.get("code") == 0 else 1)


def _supervise_in_foreground(folder: str, spec: dict[str, Any], log: int) -> NoReturn:
    supervisor = Supervisor(folder, spec)

    def note_end(*_: object) -> None:
        supervisor.told_to_end = True

    for request in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(request, note_end)
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        answer = supervisor.start()
        if not answer["ok"]:
            os.write(2, f"{folder}: {answer}\n".encode())
            os._exit(1)
        for number, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(target, number)
        supervisor.run()
    except BaseException:
        say(traceback.format_exc())
    finally:
        os._exit(0)


def execute(folder: str) -> NoReturn:
    """Replace this process by the spec's program, with its environment and its secrets. Remove the secrets' file.

    The node's `setup` has run before.
    """
    spec = read_json(f"{folder}/spec.json") or {}
    names_before = set(os.environ)
    os.environ.update(spec["environment"])
    if spec.get("secrets"):
        with open(spec["secrets"]) as file:
            os.environ.update(json.load(file))
        os.unlink(spec["secrets"])
    if "TORCH_NCCL_DUMP_ON_TIMEOUT" in spec["environment"] and has_pipes(folder):
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", f"{folder}/{PIPES}")
    set_interface(spec)
    os.environ[MARK] = spec["mark"]
    argv, container = allocated_argv(spec), spec.get("container")
    if container:
        names = [name for name in os.environ if name not in names_before or name in spec.get("inherit", ())]
        argv = container_command(container, argv, variables=[*names, *spec["environment"], "LANG"], mark=spec["mark"])
    if container and container["runtime"] in WITH_DAEMON:
        # Its client is no process of the run: SIGTERM goes to the program, and the client passes on the last output.
        os.environ[MARK] = container["runtime"]
    os.execvp(argv[0], argv)  # noqa: S606 - the job itself, no shell wanted


def status(folder: str) -> dict[str, Any]:
    spec, keeper = read_json(f"{folder}/spec.json") or {}, read_json(f"{folder}/pid") or {}
    same_boot = keeper.get("boot") == boot_id()
    alive = same_boot and find_process(keeper["pid"], keeper["start"]) is not None
    known = last_members(folder) if same_boot else ()
    processes = members(spec["mark"], known, keeper["pid"] if alive else -1) if spec else []
    return {
        "supervisor": bool(alive),
        "rebooted": bool(keeper) and not same_boot,
        "members": [[p.pid, p.start, p.name] for p in processes],
        "exit": read_json(f"{folder}/exit"),
    }


def stop(folder: str, grace_s: float, mark: str = "") -> dict[str, Any]:
    """End the run on this node through its supervisor, or directly where the supervisor is gone or does not answer.

    `mark` is the mark of the run's processes for a folder whose spec somebody removed.
    """
    spec, keeper = read_json(f"{folder}/spec.json"), read_json(f"{folder}/pid") or {}
    if spec is None:
        left = end_tree(mark, (), -1, grace_s) if mark else []
        return {"left": [[p.pid, p.name, p.state] for p in left], "exit": None}
    os.makedirs(f"{folder}/control", mode=0o700, exist_ok=True)
    if not os.path.exists(f"{folder}/exit"):
        if is_full(folder):
            free_reserve(folder)
        write_json(f"{folder}/control/kill", {"grace_s": grace_s})
    same_boot = keeper.get("boot") == boot_id()
    gone = ""  # what ended before the supervisor could write `exit`
    if keeper and not same_boot:
        gone = "restart"
    elif keeper and not find_process(keeper["pid"], keeper["start"]):
        gone = "supervisor"
    deadline = time.monotonic() + grace_s + GIVE_UP_S + 5
    while same_boot and find_process(keeper["pid"], keeper["start"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    drop_secrets(spec)
    left = end_tree(spec["mark"], last_members(folder) if same_boot else (), -1, 0 if same_boot else grace_s)
    left = left or containers_left(spec)
    if not os.path.exists(f"{folder}/exit"):
        write_exit(folder, "stopped", None, left, gone=gone, gpus=gpus_given_back(folder) if same_boot else [])
        if not left:
            release_lock(spec["lock"], spec["mark"])
    return {"left": [[p.pid, p.name, p.state] for p in left], "exit": read_json(f"{folder}/exit")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("start", "status", "stop", "holder", "exec", "run"))
    parser.add_argument("path")
    parser.add_argument("--token", default="")
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("--mark", default="")
    options = parser.parse_args()
    path = os.path.abspath(os.path.expanduser(options.path))
    if options.action == "exec":
        execute(path)
    if options.action == "run":
        run(path)
    if options.action == "start":
        answer = start(path)
    elif options.action == "stop":
        answer = stop(path, options.grace, options.mark)
    elif options.action == "status":
        answer = status(path)
    else:
        answer = {"holder": holder(path)}
    print(options.token + json.dumps({"protocol": PROTOCOL, **answer}), flush=True)


if __name__ == "__main__":
    main()
