"""Nodes of one provoked run: their files, their torchrun processes, and the logs that are kept."""

import contextlib
import getpass
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.demo import tiny_model
from backend.engines import CONFIG, NodePlacement, Placement, render
from backend.job.mapping import parse_job, with_values
from tools import tiny_data
from tools.programs import NODE_ENVIRONMENT, NODE_PYTHON

ROOT = Path(__file__).parents[3]
PROOF = ROOT / "tests" / "e2e" / "proof"
LIMIT_S = 120.0
"""A run that has not ended by then is killed."""
ALONE_S = 15.0
"""Nodes that are left after the first failure get this time to end by themselves. Then the gang is ended."""
HEAD_BYTES, KEPT_BYTES = 5 * 1024, 40 * 1024
HIDDEN = (
    (str(NODE_ENVIRONMENT), "/opt/env"),
    (str(NODE_ENVIRONMENT.resolve()), "/opt/env"),
    (str(ROOT), "/opt/megaboard"),
    (str(Path.home() / ".pyenv/versions"), "/opt/python"),
    (str(Path.home()), "/home/user"),
)
"""Paths of this machine, and what stands for them in the kept logs."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One way to fail. Values are those of the job, keys those of the engine's config.yaml."""

    category: str | None
    """Of the list of failure categories. None: the list has none for it."""
    how: str
    """One sentence about what was done."""
    node: int | None = None
    rank: int | None = None
    """The node and the global rank to blame. None: all alike."""
    engine: str = "llamafactory-ddp"
    nodes: int = 2
    ranks: int = 1
    model: str = "text"
    values: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.yaml that replace the rendered ones on all nodes. None removes a key."""
    node_keys: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    node_environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    """Folders of Python packages under the work folder."""
    prepare: Callable[["Gang"], None] | None = None
    """Changes files before the start."""
    program: str = ""
    """Function `train(folder, rank)` in place of the engine's training."""
    prefix: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Node -> command in front of torchrun."""
    arguments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Node -> torchrun options that replace the launch's own."""
    during: Callable[["Gang"], None] | None = None
    """Does something to the running nodes."""
    ends_well: bool = False
    """All nodes exit with 0."""
    packages: tuple[str, ...] = ("torch", "transformers", "llamafactory")


class Gang:
    """The nodes of one cause, in folders under `work`/NAME."""

    def __init__(self, work: Path, name: str, cause: Cause) -> None:
        self.work, self.name, self.cause = work, name, cause
        self.run = work / "run" / name
        self.folders = [self.run / f"node{node}" for node in range(cause.nodes)]
        self.configs: dict[int, dict[str, Any]] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.servers = contextlib.ExitStack()
        """Servers of other programs, which end with the run."""
        self.variables: dict[str, str] = {}
        """Further environment variables of all nodes."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def path(self, *parts: str) -> Path:
        """Return a path in the run's own folder."""
        return self.run.joinpath(*parts)

    def model(self, kind: str) -> Path:
        """Return a tiny model. The first call creates it."""
        if kind == "text":
            return self.work / tiny_model.MODEL_FOLDER
        folder = self.work / tiny_data.MODELS[kind]
        if not folder.exists():
            path = f"{ROOT}:{self.work / 'packages' / 'torchvision'}"
            run_node_python(tiny_data.__file__, self.work, kind, PYTHONPATH=path)
        return folder

    def start(self) -> None:
        """Write the files of all nodes and start their torchrun processes."""
        cause = self.cause
        rendered = render(self._job(), self._placement())
        for node, folder in enumerate(self.folders):
            folder.mkdir(parents=True)
            for program in ("entry.py", "rank_facts.py", "step_lines.py"):
                (folder / program).write_text((ROOT / "backend" / "node" / "training" / program).read_text())
            for file, text in rendered.files.items():
                (folder / file).write_text(text)
            config = yaml.safe_load(rendered.files[CONFIG]) | cause.keys | cause.node_keys.get(node, {})
            self.configs[node] = {key: value for key, value in config.items() if value is not None}
            if cause.program:
                text = f"import entry\n\n{cause.program}\n\nentry._train = train\nentry.main()\n"
                (folder / "train.py").write_text(text)
        if cause.prepare:
            cause.prepare(self)
        for node, command in enumerate(rendered.commands):
            (self.folders[node] / CONFIG).write_text(self._with_paths(yaml.safe_dump(self.configs[node])))
            self.processes.append(self._start_node(node, list(command.argv), dict(command.environment)))

    def _start_node(self, node: int, argv: list[str], variables: dict[str, str]) -> "subprocess.Popen[bytes]":
        cause, folder = self.cause, self.folders[node]
        for option, value in cause.arguments.get(node, {}).items():
            if option in argv:
                argv[argv.index(option) + 1] = value
            else:
                argv[-2:-2] = [option, value]
        if cause.program:
            argv[-2] = f"{folder}/train.py"
        variables = {
            "HOME": str(Path.home()),
            "PATH": f"{NODE_PYTHON.parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join([str(self.work / path) for path in cause.paths]),
            **variables,
            **cause.environment,
            **self.variables,
            **cause.node_environment.get(node, {}),
        }
        variables = {name: self._with_paths(value) for name, value in variables.items()}
        prefix = [self._with_paths(part) for part in cause.prefix.get(node, ())]
        with (folder / "out.log").open("ab") as log:
            return subprocess.Popen(
                [*prefix, *argv], env=variables, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def _with_paths(self, text: str) -> str:
        return text.replace("$WORK", str(self.work)).replace("$RUN", str(self.run))

    def _placement(self) -> Placement:
        nodes = tuple(
            NodePlacement(rank=node, folder=str(folder), python=str(NODE_PYTHON), interface="lo", address="127.0.0.1")
            for node, folder in enumerate(self.folders)
        )
        return Placement(run_id=self.name, attempt=1, master_address="127.0.0.1", master_port=self.port, nodes=nodes)

    def _job(self) -> Any:
        cause, pictures, model = self.cause, self.cause.model == "vision", self.model(self.cause.model)
        host = {"address": "127.0.0.1", "user": getpass.getuser()}
        mapping = {
            "version": 1,
            "name": self.name,
            "cluster": {
                "gpu": "cpu",
                "nodes": cause.nodes,
                "gpus_per_node": cause.ranks,
                "run_root": str(self.work / "run"),
                "environments": {"llamafactory": {"python": str(NODE_PYTHON)}},
                "hosts": [{**host, "port": 2200 + node} for node in range(cause.nodes)],
            },
            "model": {"hf_config": json.loads((model / "config.json").read_text()), "path": str(model)},
            "engine": cause.engine,
            "training": {
                "dataset": tiny_data.PICTURES if pictures else tiny_model.DATASET,
                "dataset_dir": str(self.work / tiny_model.DATA_FOLDER),
                "template": tiny_data.VISION_TEMPLATE if pictures else tiny_model.TEMPLATE,
                "output_dir": str(self.work / "out"),
                "precision": "fp32",
                "cutoff_len": 128 if pictures else 64,
                "image_max_pixels": 4096,
                "micro_batch_size": 2,
                "gradient_accumulation_steps": 1,
                "learning_rate": 5.0e-3,
                "max_steps": 6,
                "save_steps": 3,
                "workers": {"preprocessing": 1, "data_loader": 0},
                "report_to": [],
            },
        }
        job, problems = parse_job(mapping)
        if job is None:
            raise ValueError(problems)
        return with_values(job, dict(cause.values))

    def finish(self) -> dict[str, int]:
        """Wait for the end of all nodes and return the exit status of each torchrun."""
        deadline = time.monotonic() + LIMIT_S
        try:
            if self.cause.during:
                self.cause.during(self)
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                if any(process.poll() for process in self.processes):
                    deadline = min(deadline, time.monotonic() + ALONE_S)
                time.sleep(0.1)
        finally:
            self._end()
            self.servers.close()
        return {f"node{node}": process.wait() for node, process in enumerate(self.processes)}

    def _end(self) -> None:
        """End the sessions that this gang started, first by SIGTERM as a supervisor does."""
        for number, wait_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            for process in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + wait_s
            while time.monotonic() < end and any(process.poll() is None for process in self.processes):
                time.sleep(0.1)

    def wait_for(self, node: int, file: str, text: str) -> None:
        """Wait until a log of a node has the text."""
        deadline, path = time.monotonic() + LIMIT_S / 2, self.folders[node] / file
        while not (path.exists() and text in path.read_text(errors="replace")):
            if time.monotonic() > deadline or self.processes[node].poll() is not None:
                raise TimeoutError(f"{path} never had {text!r}")
            time.sleep(0.05)

    def pid_of(self, node: int, rank: int) -> int:
        """Return the process id of a rank."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes()
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if str(self.folders[node]).encode() in command and parent == self.processes[node].pid:
                        return int(entry.name)
        raise LookupError(f"rank {rank} of node {node}")

    def keep(self, target: Path, exits: Mapping[str, int]) -> None:
        """Write the kept logs and case.yaml to `target`."""
        for node, folder in enumerate(self.folders):
            (target / folder.name).mkdir(parents=True, exist_ok=True)
            for log in sorted(folder.glob("*.log")):
                text = cut(self.hide(log.read_text(errors="replace"), node))
                (target / folder.name / log.name).write_text(text)
        cause = self.cause
        case = {
            "category": cause.category,
            "how": cause.how,
            "node": cause.node,
            "rank": cause.rank,
            "exits": dict(exits),
            "versions": {package: version_of(package) for package in cause.packages},
        }
        (target / "case.yaml").write_text(yaml.safe_dump(case, sort_keys=False, width=120))

    def keep_healthy(self, target: Path) -> None:
        """Write the kept logs of all ranks to `target`."""
        target.mkdir(parents=True, exist_ok=True)
        for node, folder in enumerate(self.folders):
            for log in folder.glob("rank*.log"):
                text = cut(self.hide(log.read_text(errors="replace"), node))
                (target / f"{self.name}-{log.name}").write_text(text)

    def hide(self, text: str, node: int) -> str:
        """Return the text without paths and names of this machine."""
        extra = (
            (str(self.run), "/workspace/run/demo/1"),
            (str(self.work / "packages"), "/opt/env/packages"),
            (str(self.work), "/workspace"),
        )
        # datasets makes names of lock files from paths.
        lock_names = ((path.replace("/", "_"), shown.replace("/", "_")) for path, shown in extra)
        for path, shown in (*extra, *HIDDEN, *lock_names):
            text = text.replace(path, shown)
        host = re.escape(socket.gethostname())
        text = re.sub(rf"(\[|\bnode ){host}(?=[\]:,])", rf"\g<1>node{node}", text)
        return re.sub(rf"(host\s*: ){host}$", rf"\g<1>node{node}", text, flags=re.MULTILINE)


def cut(text: str) -> str:
    """Return the head and the tail of a long log."""
    data = text.encode()
    if len(data) <= KEPT_BYTES:
        return text
    tail = KEPT_BYTES - HEAD_BYTES - 100
    left_out = len(data) - HEAD_BYTES - tail
    parts = data[:HEAD_BYTES], f"\n[{left_out} bytes are left out here]\n".encode(), data[-tail:]
    return b"".join(parts).decode(errors="ignore")


def version_of(package: str) -> str:
    """Return the version of a package in the nodes' environment."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    answer = subprocess.run([NODE_PYTHON, "-c", code, package], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "not installed"


def run_node_python(*arguments: str | Path, **variables: str) -> None:
    """Run a script with the nodes' Python."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **variables}
    subprocess.run([NODE_PYTHON, "-W", "ignore", *arguments], env=environment, check=True, timeout=600)
