"""Planning's questions to real SSH nodes: host keys first, then a model's config.json and the memory of each."""

from pathlib import Path

import pytest

from backend.cluster.demo import DemoCluster
from backend.cluster.hostkeys import KnownHosts
from backend.job.job import Cluster, Job, Model
from backend.jobs.controller import Controller
from backend.jobs.store import Store

pytestmark = pytest.mark.contract


def test_a_configuration_and_the_memory_are_read_once_the_keys_are_confirmed(
    cluster: DemoCluster, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}')
    store = Store(tmp_path / "megaboard.db")
    controller = Controller(tmp_path, store, KnownHosts(tmp_path / "known"))
    hosts = Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8, hosts=tuple(cluster.hosts()))
    job = Job(cluster=hosts, model=Model(path=str(tmp_path / "model")))
    try:
        unknown = controller.model_config(job, 1000)
        assert not unknown.answers
        assert len(unknown.unknown_host_keys) == 4
        controller.accept_host_keys(unknown.unknown_host_keys)
        assert controller.model_config(job, 1000).answers == {0: b'{"model_type": "qwen3"}'}
        assert controller.model_config(job, 5).answers == {0: b'{"mod'}
        memory = controller.host_memory(job).answers
        assert sorted(memory) == [0, 1, 2, 3]
        assert all(0.1 < gib < 2**20 for gib in memory.values())
    finally:
        controller.close()
        store.close()
