"""Real Docker daemons for tests, each with its own folder, and an image that holds only links.

The daemons need no network of their own, no kernel module and no registry, so they also run inside a container.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from tests.waiting import wait_for

IMAGE = "megaboard-test:1"
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
START_S = 60.0


class DockerDaemon:
    """One daemon. `setup` is a shell file that makes its node use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The path of a socket has at most 107 bytes.
        self.address = f"unix://{folder}/s"
        self.setup = folder / "setup.sh"
        folder.mkdir(parents=True, mode=0o700)
        self.setup.write_text(f"export DOCKER_HOST={self.address}\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        options = ["--bridge=none", "--iptables=false", "--storage-driver=vfs", "--host", self.address]
        options += ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        with (self.folder / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", *options, "--pidfile", f"{self.folder}/pid"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": PATH},
                start_new_session=True,
            )
        wait_for(lambda: not self.try_docker("version").returncode, START_S)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the daemon by a signal. SIGKILL leaves its containers running."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(START_S)
        (self.folder / "pid").unlink(missing_ok=True)

    def try_docker(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "PATH": PATH, "DOCKER_HOST": self.address}
        return subprocess.run(["docker", *words], input=stdin, capture_output=True, env=environment, check=False)

    def docker(self, *words: str, stdin: bytes = b"") -> str:
        """Return the output of a docker command, which must succeed."""
        done = self.try_docker(*words, stdin=stdin)
        assert not done.returncode, done.stderr.decode()
        return done.stdout.decode().strip()

    def containers(self) -> list[str]:
        """Return the names of all containers, also of those that have ended."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()


def image_of_links(*more_folders: str) -> bytes:
    """Return an image in which the usual folders are empty. A container mounts the machine's /usr."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("usr", "sbin", "etc", "tmp", "proc", "sys", "dev", "var", *more_folders):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(entry)
    return packed.getvalue()


@contextmanager
def docker_daemons(folder: Path, count: int) -> Iterator[list[DockerDaemon]]:
    """Yield running daemons that have IMAGE. Skip the test where no daemon can run."""
    if os.getuid() != 0:
        pytest.skip("dockerd needs root")
    if not shutil.which("dockerd", path=PATH) or not shutil.which("docker", path=PATH):
        pytest.skip("no dockerd: apt-get install docker.io")
    daemons = [DockerDaemon(folder / f"d{number}") for number in range(count)]
    started: list[DockerDaemon] = []
    try:
        for daemon in daemons:
            daemon.start()
            started.append(daemon)
        # A second import would be another image.
        daemons[0].docker("import", "-", IMAGE, stdin=image_of_links())
        saved = daemons[0].try_docker("save", IMAGE).stdout
        for daemon in daemons[1:]:
            daemon.docker("load", stdin=saved)
        yield daemons
    finally:
        for daemon in started:
            daemon.stop()


@contextmanager
def image_registry(daemon: DockerDaemon, folder: Path, name: str, content: str = "opt") -> Iterator[str]:
    """Yield the full name of an image in a real registry, which no daemon has. `content` is a folder in the image."""
    if shutil.which("docker-registry", path=PATH) is None:
        pytest.skip("no docker-registry: apt-get install docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    settings = folder / "registry.yml"
    settings.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": address}}))
    command = ["docker-registry", "serve", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={"PATH": PATH}) as server:
        try:
            image = f"{address}/{name}"
            daemon.docker("import", "-", image, stdin=image_of_links(content))
            wait_for(lambda: not daemon.try_docker("push", image).returncode)
            daemon.docker("rmi", image)
            yield image
        finally:
            server.terminate()


def in_containers(cluster: LocalNodes, daemons: list[DockerDaemon], python: str, *folders: str) -> dict[str, object]:
    """Return `cluster` of a job whose engine runs in containers: node n uses daemon n. `folders` are mounted too."""
    mapping = cluster.cluster_mapping(python)
    options = [f"--volume={folder}:{folder}:ro" for folder in ("/usr", *folders)]
    for host, daemon in zip(mapping["hosts"], daemons, strict=True):
        container = {"runtime": "docker", "image": IMAGE, "options": list(options)}
        environment = {"python": python, "setup": str(daemon.setup), "container": container}
        host["environments"] = {"llamafactory": environment}
    return mapping
