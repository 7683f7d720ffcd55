"""No command starts a program on a node with a secret in its arguments: options of containers are such arguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.main import main
from backend.job.cluster import Container, Environment, Host
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.runs.node_tasks import NodeTasks
from tests.engines.jobs import ddp

CONTAINER = Container(image="train:1", options=("--env=HF_TOKEN=hunter2",))


class NoConnections:
    def get(self, host: Host) -> None:
        raise AssertionError(f"a connection to {host.address}")


@pytest.mark.parametrize("environment", ["llamafactory", "swift"])
@pytest.mark.parametrize(
    "task",
    [
        lambda tasks, job: tasks.model_profile(job),
        lambda tasks, job: tasks.memory(job),
        lambda tasks, job: tasks.data_size(job),
        lambda tasks, job: tasks.data_preview(job, 1),
        lambda tasks, job: tasks.dataset_info(job),
        lambda tasks, job: tasks.measure_speed(job),
        lambda tasks, job: tasks.pull_image(job, print),
        lambda tasks, job: tasks.download(job, print),
        lambda tasks, job: tasks.install(job, print),
    ],
)
def test_no_task_reaches_a_node_with_a_secret_in_the_options_of_a_container(
    task: Callable[[NodeTasks, Job], Any], environment: str
) -> None:
    """Nor with one in a container of the environment that the job does not use."""
    environments = {"llamafactory": Environment(python="/p")}
    environments[environment] = Environment(python="/p", container=CONTAINER)
    job = with_values(ddp(), {"cluster.environments": environments, "model.path": "/m", "model.hub": "a/b"})
    connections: Any = NoConnections()
    tasks = NodeTasks(connections, lambda: 5.0, lambda *action, **fields: None)
    with pytest.raises(ProblemsError) as raised:
        task(tasks, job)
    assert [problem.code for problem in raised.value.problems] == ["container_secret"]


@pytest.mark.parametrize("environment", ["llamafactory", "swift"])
@pytest.mark.parametrize("command", ["benchmark", "install"])
def test_a_command_refuses_the_file_before_it_connects(
    command: str, environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEGABOARD_HOME", str(tmp_path / "home"))
    container = {"image": "train:1", "options": list(CONTAINER.options)}
    cluster = {
        "gpu": "cpu",
        "nodes": 1,
        "gpus_per_node": 1,
        "hosts": [{"address": "192.0.2.1"}],
        "environments": {"llamafactory": {"python": "/p"}, environment: {"python": "/p", "container": container}},
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"name": "a", "engine": "llamafactory-ddp", "cluster": cluster}))
    assert main([command, str(file)]) == 2
    output = "".join(capsys.readouterr())
    assert "`HF_TOKEN`" in output
    assert output.count("container.options:") == 1
    assert "hunter2" not in output
