"""One tiny training run of an engine on demo nodes, through `megaboard launch --wait` or by the plain scripts."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app.demo import tiny_model
from app.demo.local_nodes import LocalNodes
from backend.engines import export
from backend.job.mapping import dump_mapping, parse_job, to_mapping, with_values
from tools import tiny_data
from tools.programs import NODE_ENVIRONMENT, NODE_PYTHON, swift_python

ROOT = Path(__file__).parents[2]
EXTRA = NODE_ENVIRONMENT / "extra"
"""Packages that only some engine runs import: tools/engine_packages.sh."""
EXTENSIONS = NODE_ENVIRONMENT / "torch_extensions"
"""The folder in which DeepSpeed builds its C++ parts once."""
PROOF = Path(__file__).with_name("proof")
STEPS = 6


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run: its engine, its nodes with one rank each, and the changes to the plain job."""

    engine: str
    nodes: int = 2
    values: Mapping[str, Any] = field(default_factory=dict)
    model: Literal["text", "vision", "experts", "predicting"] = "text"
    needs: str = ""
    """A package of EXTRA."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables."""
    paths: Sequence[str] = ()
    """Further folders of Python packages."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a finished run. Lists have one entry per rank."""

    run: str
    state: int
    output: str
    steps: list[list[dict[str, Any]]]
    proofs: list[dict[str, Any]]
    nodes: list[Path]
    """The run folder of each node."""
    results: Path
    """The folder of checkpoints and logs that the engine wrote."""

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.steps[0]]

    @property
    def last_checkpoint(self) -> Path:
        return max(self.results.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))


class DemoCluster:
    """Demo nodes with models and data, and a home folder for `megaboard`. `tiny` is the fixture of conftest.py."""

    def __init__(self, cluster: LocalNodes, tiny: Path) -> None:
        self.cluster = cluster
        self.folder = cluster.folder
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        (self.home / "known_hosts").write_text((self.folder / "known_hosts").read_text())
        shutil.copytree(tiny, self.folder, dirs_exist_ok=True)
        tiny_data.write_datasets(self.folder)

    def model(self, kind: str) -> Path:
        """Return the folder of a tiny model. The first call creates it."""
        if kind == "text":
            return self.folder / tiny_model.MODEL_FOLDER
        folder = self.folder / tiny_data.MODELS[kind]
        if not folder.exists():
            _node_python(tiny_data.__file__, self.folder, kind)
        return folder

    def job(self, name: str, case: Case) -> dict[str, Any]:
        """Return the job file of a case."""
        model, pictures = self.model(case.model), case.model == "vision"
        is_swift = case.engine.startswith("swift")
        python = swift_python() if is_swift else None
        cluster = self.cluster.cluster_mapping(python or str(NODE_PYTHON))
        cluster["environments"]["llamafactory"]["setup"] = str(self._setup(case))
        cluster["environments"]["swift"] = cluster["environments"]["llamafactory"]
        mapping = {
            "name": name,
            "cluster": {**cluster, "nodes": case.nodes, "hosts": cluster["hosts"][: case.nodes]},
            "model": {"hf_config": json.loads((model / "config.json").read_text()), "path": str(model)},
            "engine": case.engine,
            "training": {
                "dataset": (tiny_data.PICTURES if pictures else tiny_model.DATASET) + (".json" if is_swift else ""),
                "dataset_dir": str(self.folder / tiny_model.DATA_FOLDER),
                "template": tiny_data.VISION_TEMPLATE if pictures else tiny_model.TEMPLATE,
                "output_dir": str(self.folder / "out"),
                "precision": "fp32",
                "cutoff_len": 128 if pictures else 64,
                "image_max_pixels": 4096,
                "micro_batch_size": 2,
                "gradient_accumulation_steps": 1,
                "learning_rate": 5.0e-3,
                "lr_scheduler": "constant",
                "warmup_ratio": 0,
                "max_steps": STEPS,
                "save_steps": STEPS // 2,
                "workers": {"preprocessing": 1, "data_loader": 0},
                "report_to": [],
            },
            "environment": case.environment | {"PYTHONPATH": _path(case), "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)},
        }
        job, problems = parse_job(mapping)
        assert job is not None, problems
        assert not problems
        return dict(to_mapping(with_values(job, dict(case.values))))

    def _setup(self, case: Case) -> Path:
        """Return the lines that a user's environment modules would run. With them the engine's packages are found, also
        in the preflight."""
        text = "".join(
            f"export {name}={value}\n" for name, value in {**case.environment, "PYTHONPATH": _path(case)}.items()
        )
        file = self.folder / f"setup-{hashlib.sha256(text.encode()).hexdigest()[:8]}.sh"
        file.write_text(text)
        return file

    def run(self, name: str, case: Case) -> Outcome:
        """Launch and wait for the end."""
        file = self.folder / f"{name}.yaml"
        file.write_text(dump_mapping(self.job(name, case)))
        process = subprocess.run(
            [sys.executable, "-m", "app.main", "--lang", "en", "launch", str(file), "--wait"],
            env={**os.environ, "MEGABOARD_HOME": str(self.home)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        match = re.search(rf"\d{{8}}-\d{{6}}-{name}-\w{{4}}", process.stdout)
        assert match, process.stdout
        nodes = [self.folder / "run" / match[0] / "1" / f"node{rank}" for rank in range(case.nodes)]
        return Outcome(
            run=match[0],
            state=process.returncode,
            output=process.stdout + _tail(nodes),
            steps=[_steps(node / f"steps.rank{rank}.jsonl") for rank, node in enumerate(nodes)],
            proofs=[_read(node / f"proof.rank{rank}.json") for rank, node in enumerate(nodes)],
            nodes=nodes,
            results=self.folder / "out" / match[0],
        )

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run `megaboard WORDS` with this cluster's home folder."""
        command = [sys.executable, "-m", "app.main", "--lang", "en", *words]
        environment = {**os.environ, "MEGABOARD_HOME": str(self.home)}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    def go_on(self, name: str, case: Case, outcome: Outcome, step: int) -> list[dict[str, Any]]:
        """Launch a case from the checkpoint of a step of its run, wait, and return the steps of rank 0."""
        file = self.folder / f"{name}.yaml"
        file.write_text(dump_mapping(self.job(name, case)))
        done = self.call("launch", str(file), "--from", f"{outcome.run}:{step}", "--wait", "--accept-warnings")
        match = re.search(rf"\d{{8}}-\d{{6}}-{name}-\w{{4}}", done.stdout)
        assert match, done.stdout + done.stderr
        node = self.folder / "run" / match[0] / "1" / "node0"
        assert done.returncode == 0, done.stdout + done.stderr + _tail([node])
        return _steps(node / "steps.rank0.jsonl")

    def continue_plainly(self, name: str, case: Case, steps: int) -> list[dict[str, Any]]:
        """Run the exported launch.sh up to `steps` and return the lines of the engine's log. The engine resumes from
        its newest checkpoint."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        changed = {"training.max_steps": steps, "cluster.port_range": (port, port)}
        longer = replace(case, values={**case.values, **changed})
        job, _ = parse_job(self.job(name, longer))
        assert job is not None
        scripts = self.folder / f"{name}-{steps}"
        scripts.mkdir()
        for file, text in export(job).items():
            (scripts / file).write_text(text)
        ssh = scripts / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F none -o UserKnownHostsFile={self.home}/known_hosts "$@"\n')
        ssh.chmod(0o700)
        environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
        process = subprocess.run(
            ["bash", scripts / "launch.sh"], env=environment, capture_output=True, text=True, check=False
        )
        logs = "".join(log.read_text()[-3000:] for log in (scripts / "logs").glob("*.log"))
        assert process.returncode == 0, process.stdout + process.stderr + logs
        return _rows(self.folder / "out" / name / "trainer_log.jsonl")


def _path(case: Case) -> str:
    return ":".join([str(PROOF), *case.paths, *([str(EXTRA)] if case.needs else [])])


def _node_python(script: str, *arguments: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXTRA}", "HF_HUB_OFFLINE": "1"}
    subprocess.run([NODE_PYTHON, "-W", "ignore", script, *arguments], env=environment, check=True, timeout=600)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _steps(path: Path) -> list[dict[str, Any]]:
    """Return the lines of steps, without those of numbers that were logged later."""
    return [row for row in _rows(path) if "step_s" in row]


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _tail(nodes: list[Path]) -> str:
    """Return the end of every rank's log, for the reader of a failure."""
    logs = [log for node in nodes for log in node.glob("rank*.log")]
    return "".join(f"\n--- {log.parent.name}/{log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
