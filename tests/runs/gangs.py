"""Whole gangs over real sshd with the real supervisor. torchrun is a stand-in (engine/), so a run takes a second."""

from pathlib import Path
from typing import Any

from backend.job.job import Job
from backend.job.mapping import with_values
from backend.node.supervisor.processes import members
from backend.runs.controller import Controller
from backend.runs.store import attempts
from backend.runs.store.store import Store
from backend.runs.supervise.gang_rules import Timing

NODES = 2
QUICK = Timing(poll_s=0.2, grace_s=2.0, drain_s=0.5, retry_s=0.2)
ENGINE = Path(__file__).with_name("engine")


def with_mode(job: Job, mode: str, *, steps: int = 20, step_s: float = 0.02, save: int = 0) -> Job:
    """Return the job with the TRAINER_ variables of the stand-in's mode."""
    mapping = {"TRAINER_MODE": mode, "TRAINER_STEPS": str(steps), "TRAINER_STEP_S": str(step_s)}
    mapping |= {"TRAINER_SAVE": str(save)}
    return with_values(job, {"environment": mapping})


def stand_in_job(folder: Path, script: str) -> dict[str, Any]:
    """Write an empty model and data set and the nodes' `python`, a shell script, into `folder`; return a job with them.

    The job has no cluster. Its engine is the stand-in.
    """
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    for name, text in {
        "model/config.json": '{"model_type": "qwen3"}',
        "data/dataset_info.json": '{"d": {"file_name": "d.json"}}',
        "data/d.json": "[]",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {
        "version": 1,
        "name": "job",
        "model": {"hf_config": {"model_type": "qwen3", **shape, "vocab_size": 512}, "path": f"{folder}/model"},
        "training": {
            "dataset": "d",
            "dataset_dir": f"{folder}/data",
            "template": "qwen3_nothink",
            "output_dir": f"{folder}/out",
            "precision": "fp32",
            "cutoff_len": 64,
        },
        "engine": "llamafactory-ddp",
    }


def marked(home: Path, run: str) -> int:
    """Return the living processes of any attempt of a run."""
    store = Store(home / "megaboard.db")
    with store.read() as connection:
        numbers = range(1, attempts.newest(connection, run) + 1)
        records = [record for number in numbers for record in attempts.nodes(connection, run, number)]
    store.close()
    assert records
    return sum(len(members(record.mark)) for record in records)


def steps_of(controller: Controller, run: str) -> dict[int, list[int]]:
    """Return global rank -> the stored steps in order."""
    steps: dict[int, list[int]] = {}
    for point in controller.points(run, rank=None):
        steps.setdefault(point.rank, []).append(point.step)
    return steps
