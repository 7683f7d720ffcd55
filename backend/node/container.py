"""Containers of an engine: the command that runs a program in one, its image, and its end.

    container-facts JSON --token T                 prints the image as this node has it: one line `T{json}`
    container-run JSON PROGRAM ARGUMENTS...        replaces this process by the program in a container
    container-pull JSON ARCHIVE                    pulls the image, or loads it from the file ARCHIVE if it has a name

JSON has `runtime`, `image`, `options`, `mounts`. The supervisor has this module too, and runs outside of containers.
Sources of the options: https://docs.docker.com/reference/cli/docker/container/run/ and
https://docs.podman.io/en/latest/markdown/podman-run.1.html (network, ipc, user, device, mount),
https://apptainer.org/docs/user/latest/cli/apptainer_exec.html (nv, bind, pwd),
https://github.com/NVIDIA/enroot/blob/master/doc/cmd/start.md (mount, env). Docker was run with real containers; podman,
apptainer, enroot and GPUs were not. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backend.node.tools import MARK, run_tool

WITH_DAEMON = ("docker", "podman")
"""Runtimes that list their containers. apptainer and enroot only start processes, which the supervisor finds itself."""
LABEL = "megaboard.mark"
ASK_RUNTIME_S = 20.0
END_CONTAINER_S = 10.0
NO_RUNTIME, NO_DAEMON, NO_IMAGE = 93, 94, 95
"""Exit statuses of container-run before the program starts."""
CDI = ("/etc/cdi/*", "/var/run/cdi/*")


def container_command(
    container: Mapping[str, Any],
    argv: Sequence[str],
    *,
    variables: Iterable[str] = (),
    mark: str = "",
    interactive: bool = False,
) -> list[str]:
    """Return the command that runs `argv` in a container as this user, with the node's network and shared memory.

    `variables` are the names of environment variables that the program gets from this process, so that no value is in
    a command line. The job's folders and the home folder have the same paths inside. `mark` is the mark of the run's
    processes, and names the container.
    """
    folders = mounted_folders(container["mounts"])
    names = sorted({*variables, "HOME", "USER", "LOGNAME"} & set(os.environ))
    if container["runtime"] == "apptainer":
        options = _apptainer_options(folders)
    elif container["runtime"] == "enroot":
        options = _enroot_options(folders, names)
        # enroot has no option for the working folder.
        argv = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *argv]
    else:
        options = _daemon_options(container, folders, names, mark, interactive)
    return [container["runtime"], *options, *container["options"], container["image"], *argv]


def _apptainer_options(folders: Iterable[str]) -> list[str]:
    """apptainer passes the environment on, binds the home folder and /dev, and keeps user and network."""
    gpus = ["--nv"] if has_nvidia() else []
    binds = [word for folder in folders for word in ("--bind", folder)]
    return ["exec", *gpus, *binds, "--pwd", os.getcwd()]


def _enroot_options(folders: Iterable[str], names: Iterable[str]) -> list[str]:
    binds = [word for folder in folders for word in ("--mount", f"{folder}:{folder}:none:x-create=dir,rbind")]
    env = [word for name in names for word in ("--env", name)]
    return ["start", "--rw", *binds, *env]


def _daemon_options(
    container: Mapping[str, Any], folders: Iterable[str], names: Iterable[str], mark: str, interactive: bool
) -> list[str]:
    """Return the options of docker and podman."""
    runtime = container["runtime"]
    options = ["run", "--rm", "--pull", "never", "--network", "host", "--ipc", "host", "--workdir", os.getcwd()]
    options += ["--interactive"] if interactive else []
    if mark:
        # This process has another mark: SIGTERM goes to the program in the container, not to its client.
        options += ["--name", container_name(mark), "--label", f"{LABEL}={mark}", "--env", f"{MARK}={mark}"]
    options += ["--init"] if runtime == "docker" else []
    options += user_options(runtime) + device_options(runtime, container["options"])
    options += [word for folder in folders for word in ("--mount", bind_mount(folder))]
    return [*options, *(word for name in names for word in ("--env", name))]


def bind_mount(folder: str) -> str:
    """Return the value of `--mount`, which is a line of CSV."""
    fields = [f"source={folder}", f"target={folder}"]
    return ",".join(["type=bind", *(f'"{field}"' if "," in field else field for field in fields)])


def container_name(mark: str) -> str:
    return "megaboard-" + re.sub(r"[^A-Za-z0-9_.-]", "-", mark)


def user_options(runtime: str) -> list[str]:
    """Return the options that keep the user, so that files belong to the user and the supervisor sees the processes."""
    if runtime == "podman":
        return ["--userns", "keep-id"] if os.getuid() else []
    groups = [word for group in sorted(set(os.getgroups()) - {os.getgid()}) for word in ("--group-add", str(group))]
    return ["--user", f"{os.getuid()}:{os.getgid()}", *groups]


def device_options(runtime: str, options: Sequence[str]) -> list[str]:
    """Return the options for GPUs and InfiniBand, where the node has them and the job's own options do not name them.

    NCCL locks memory for InfiniBand. Without it, no limit is raised, because not every daemon may do that.
    """
    devices = []
    has_own = any(word.startswith("--gpus") or "nvidia.com/gpu" in word for word in options)
    if has_nvidia() and not has_own:
        has_cdi = any("nvidia" in os.path.basename(path) for pattern in CDI for path in glob.glob(pattern))
        by_cdi = runtime == "podman" or has_cdi
        devices += ["--device", "nvidia.com/gpu=all"] if by_cdi else ["--gpus", "all"]
    if os.path.isdir("/dev/infiniband"):
        devices += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1:-1"]
    return devices


def has_nvidia() -> bool:
    return os.path.exists("/dev/nvidiactl")


def mounted_folders(paths: Iterable[str]) -> list[str]:
    """Return the home folder and the job's folders, each with its nearest existing parent, without those inside others.

    The program may create a folder that does not exist yet, so its parent is mounted. `/` never is.
    """
    folders = set()
    for path in ("~", *paths):
        folder = os.path.abspath(os.path.expanduser(path))
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        folders.add(folder)
    folders.discard("/")
    return sorted(f for f in folders if not any(f != other and f.startswith(other + "/") for other in folders))


def refusal_of(container: Mapping[str, Any]) -> tuple[int, str]:
    """Return why no container can start here: the exit status and the runtime's own words. (0, ""): it can."""
    runtime, image = container["runtime"], container["image"]
    if shutil.which(runtime) is None:
        return NO_RUNTIME, f"{runtime}: not found in PATH {os.environ.get('PATH', '')}"
    if runtime not in WITH_DAEMON:
        if image.startswith(("/", "~/")) and not os.path.exists(os.path.expanduser(image)):
            return NO_IMAGE, f"{image}: no such file"
        return 0, ""
    status, out = ask_runtime(runtime, "version", "--format", "{{.Server.Version}}" if runtime == "docker" else "json")
    if status:
        return NO_DAEMON, out
    status, out = ask_runtime(runtime, "image", "inspect", "--format", "{{.Id}}", image)
    return (NO_IMAGE, out) if status else (0, "")


def ask_runtime(runtime: str, *words: str) -> tuple[int, str]:
    """Return the exit status of a command of the runtime, and its answer, or the end of all output if it failed.

    124: it did not answer. A command that succeeds may still print warnings, which are no part of the answer.
    """
    output = run_tool([runtime, *words], ASK_RUNTIME_S)
    if output.code == 0:
        return 0, output.out.strip()
    return 124 if output.code is None else output.code, (output.out + output.err).strip()[-2000:]


def image_facts(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return `image`, which identifies the content of the image on this node, or `refusal` and `detail`."""
    status, detail = refusal_of(container)
    if status:
        return {"refusal": status, "detail": detail}
    runtime, image = container["runtime"], container["image"]
    if runtime in WITH_DAEMON:
        _, out = ask_runtime(runtime, "image", "inspect", "--format", "{{.Id}}", image)
        return {"image": out.splitlines()[-1] if out else ""}
    if image.startswith(("/", "~/")):
        # A hash of tens of GiB takes minutes. Size and time of change differ between two builds.
        file = os.stat(os.path.expanduser(image))
        return {"image": f"{file.st_size} bytes"}
    return {"image": image}


def left_containers(container: Mapping[str, Any] | None, mark: str) -> list[str]:
    """Return the names of the run's containers that still exist; with the reason if the runtime does not answer."""
    if container is None or container["runtime"] not in WITH_DAEMON:
        return []
    runtime = container["runtime"]
    status, out = ask_runtime(runtime, "ps", "--all", "--filter", f"label={LABEL}={mark}", "--format", "{{.Names}}")
    if status:
        return [f"{container_name(mark)} ({runtime}: {out.splitlines()[-1][:200] if out else status})"]
    return out.split()


def end_containers(container: Mapping[str, Any] | None, mark: str) -> list[str]:
    """Remove the run's containers and return those that are left after END_CONTAINER_S.

    Their processes have ended before. A daemon that was killed may be back within this time.
    """
    deadline = time.monotonic() + END_CONTAINER_S
    while True:
        left = left_containers(container, mark)
        if not left or container is None or time.monotonic() > deadline:
            return left
        # `run --rm` removes the container of a program that ended. This is for one whose client was killed.
        ask_runtime(container["runtime"], "rm", "--force", container_name(mark))
        time.sleep(0.2)


def run_in_container(container: Mapping[str, Any], argv: Sequence[str]) -> None:
    """Replace this process by a program in a container, with standard input. Exit with a status of refusal_of."""
    os.environ.setdefault("HOME", os.path.expanduser("~"))
    status, detail = refusal_of(container)
    if status:
        print(detail, file=sys.stderr, flush=True)
        sys.exit(status)
    command = container_command(container, argv, interactive=True)
    os.execvp(command[0], command)  # noqa: S606 - no shell wanted


def get_image(container: Mapping[str, Any], archive: str) -> None:
    """Replace this process by the runtime's command that pulls the image, or loads it from a file."""
    runtime = container["runtime"]
    load = [runtime, "load", "--input", os.path.expanduser(archive)]
    command = load if archive else [runtime, "pull", container["image"]]
    os.execvp(command[0], command)  # noqa: S606 - no shell wanted


def container_main() -> None:
    action, container = sys.argv[1], json.loads(sys.argv[2])
    if action == "container-run":
        run_in_container(container, sys.argv[3:])
    if action == "container-pull":
        get_image(container, sys.argv[3])
    print(sys.argv[-1] + json.dumps(image_facts(container)), flush=True)
