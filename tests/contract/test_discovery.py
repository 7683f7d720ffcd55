"""Requests of planning to real SSH nodes: host keys first, then a model's config.json and the memory of each node."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.cluster import Cluster, Environment
from backend.job.job import Job, Model
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.runs.api import DatasetChange
from backend.runs.controller import Controller
from backend.runs.store.store import Store

pytestmark = pytest.mark.contract


def test_a_configuration_and_the_memory_are_read_once_the_keys_are_confirmed(
    cluster: LocalNodes, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}')
    store = Store(tmp_path / "megaboard.db")
    controller = Controller(tmp_path, store, KnownHosts(tmp_path / "known"))
    hosts = Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8, hosts=tuple(cluster.hosts()))
    job = Job(cluster=hosts, model=Model(path=str(tmp_path / "model")))
    try:
        unknown = controller.tasks.model_config(job, 1000)
        assert not unknown.answers
        assert len(unknown.unknown_host_keys) == 4
        controller.accept_host_keys(unknown.unknown_host_keys)
        assert controller.tasks.model_config(job, 1000).answers == dict.fromkeys(range(4), b'{"model_type": "qwen3"}')
        assert controller.tasks.model_config(job, 5).answers == dict.fromkeys(range(4), b'{"mod')
        (tmp_path / "model" / "config.json").unlink()
        problems = controller.tasks.model_config(job, 5).problems
        assert [(problem.code, problem.field) for problem in problems] == [("model_missing", "model.path")] * 4
        counted = controller.tasks.data_size(with_values(job, _data(tmp_path)))
        assert (counted.answers[0].samples, dict(counted.answers[0].rows)) == (7, {"few": 7})
        memory = controller.tasks.memory(job).answers
        assert sorted(memory) == [0, 1, 2, 3]
        assert all(0.1 < result.host_gib < 2**20 for result in memory.values())
        has_gpu = shutil.which("nvidia-smi") is not None
        assert all((result.gpu_gib is not None) == has_gpu for result in memory.values())
    finally:
        controller.close()
        store.close()


def _data(folder: Path) -> dict[str, Any]:
    """Return the part of the job that says where its data lies."""
    (folder / "few.json").write_text(json.dumps([{"instruction": str(number)} for number in range(7)]))
    (folder / "dataset_info.json").write_text(json.dumps({"few": {"file_name": "few.json"}}))
    environments = {"llamafactory": Environment(python=sys.executable)}
    return {"training.dataset": "few", "training.dataset_dir": str(folder), "cluster.environments": environments}


def test_dataset_info_is_changed_on_all_nodes_or_on_none(cluster: LocalNodes, tmp_path: Path) -> None:
    """The nodes share the disk. Their Python has no LLaMA-Factory, so it refuses every new entry."""
    store = Store(tmp_path / "megaboard.db")
    controller = Controller(tmp_path, store, KnownHosts(tmp_path / "known"))
    hosts = Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8, hosts=tuple(cluster.hosts()))
    job = with_values(Job(cluster=hosts, model=Model(path=str(tmp_path))), _data(tmp_path))
    before = {"file_name": "few.json"}
    try:
        controller.accept_host_keys(controller.tasks.dataset_info(job).unknown_host_keys)
        assert [dict(answer["entries"]) for answer in controller.tasks.dataset_info(job).answers.values()] == 4 * [
            {"few": before}
        ]
        with pytest.raises(ProblemsError):
            controller.tasks.change_dataset(job, DatasetChange(name="new", entry=before, seen=(None,)))
        assert json.loads((tmp_path / "dataset_info.json").read_text()) == {"few": before}
        uploaded = controller.tasks.upload_dataset(job, "new.jsonl", b'{"instruction": "1", "output": "2"}\n')
        assert uploaded.answers == {0: True, 1: False, 2: False, 3: False}
        other = controller.tasks.upload_dataset(job, "new.jsonl", b"{}\n")
        assert {problem.code for problem in other.problems} == {"dataset_file_exists"}
        proposal = controller.tasks.propose_dataset(job, "new.jsonl").answers[0]
        assert proposal["entry"]["columns"] == {"prompt": "instruction", "response": "output"}
        removed = controller.tasks.change_dataset(job, DatasetChange(name="few", entry=None, seen=(before,)))
        assert removed.answers == {0: True, 1: False, 2: False, 3: False}
        assert json.loads((tmp_path / "dataset_info.json").read_text()) == {}
    finally:
        controller.close()
        store.close()


def test_nodes_without_a_shared_disk_are_made_equal_from_the_different_entries_that_the_user_saw(
    cluster: LocalNodes, tmp_path: Path
) -> None:
    """Each node has a home folder of its own. Their Python has no LLaMA-Factory, so only a removal is tried."""
    one, other, newer = ({"file_name": f"{name}.json"} for name in ("one", "other", "newer"))
    hosts = []
    for name, host, entry in zip(("a", "b", "c"), cluster.hosts(), (one, other, None), strict=False):
        data = tmp_path / name / "data"
        data.mkdir(parents=True)
        if entry:
            (data / "dataset_info.json").write_text(json.dumps({"few": entry, "kept": one}))
        python = tmp_path / name / "python"
        python.write_text(f'#!/bin/sh\nHOME={tmp_path / name} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        hosts.append(replace(host, environments={"llamafactory": Environment(python=str(python))}))
    job = Job(cluster=Cluster(gpu="h100-80g", nodes=3, gpus_per_node=8, hosts=tuple(hosts)))
    job = with_values(job, {"training.dataset_dir": "~/data"})
    store = Store(tmp_path / "megaboard.db")
    controller = Controller(tmp_path, store, KnownHosts(tmp_path / "known"))

    def entries() -> list[dict[str, Any]]:
        return [dict(answer["entries"]) for answer in controller.tasks.dataset_info(job).answers.values()]

    try:
        controller.accept_host_keys(controller.tasks.dataset_info(job).unknown_host_keys)
        assert entries() == [{"few": one, "kept": one}, {"few": other, "kept": one}, {}]
        (tmp_path / "b" / "data" / "dataset_info.json").write_text(json.dumps({"few": newer}))
        seen = DatasetChange(name="few", entry=None, seen=(one, other, None))
        part = controller.tasks.change_dataset(job, seen)
        assert [(problem.code, problem.node) for problem in part.problems] == [
            ("dataset_entry_changed", cluster.hosts()[1].name)
        ]
        assert (part.answers, entries()) == ({0: True, 2: False}, [{"kept": one}, {"few": newer}, {}])
        whole = controller.tasks.change_dataset(job, DatasetChange(name="few", entry=None, seen=(None, newer)))
        assert (whole.problems, entries()) == ((), [{"kept": one}, {}, {}])
    finally:
        controller.close()
        store.close()
