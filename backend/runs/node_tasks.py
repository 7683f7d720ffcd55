"""Short work on the nodes of a job, without a run: discovery, data sets, copies, downloads, environments, speed.

Every method connects to the nodes of the job. Each raises ProblemsError.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from backend.cluster.inventory.dataset_size import DataSize
from backend.cluster.program_answers.data import DataPreview, DatasetChecked, DatasetInfoRead, DatasetProposal
from backend.cluster.slurm import Partition
from backend.job.environment_sets import EnvironmentSet
from backend.job.job import Job
from backend.job.job_secrets import check_containers
from backend.job.launch_rules import check_nodes, needs_template, on_login_node, own_field, with_spares
from backend.job.problems import Problem, ProblemsError, errors
from backend.runs.connections import Connections
from backend.runs.launch.launch import new_run_id
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport, connect_nodes
from backend.runs.tasks import dataset_info, discovery, environment_install, file_copy, hub_download, image_pull
from backend.runs.tasks.benchmark import Measurement, measure
from backend.runs.tasks.dataset_info import Change as DatasetChange
from backend.runs.tasks.discovery import Discovery, NodeMemory, refuse_scheduler, refuse_without
from backend.runs.tasks.environment_install import check_installation, with_node_python


class NodeTasks:
    """Short work on the nodes of a job. `audit(action, **fields)` records each action before it is done."""

    def __init__(self, connections: Connections, clock: Callable[[], float], audit: Callable[..., None]) -> None:
        self._connections = connections
        self._clock = clock
        self._audit = audit

    def _connect(self, job: Job) -> ConnectedNodes:
        """Connect to the job's nodes. Raises ProblemsError if options of a container, which are arguments of programs
        there, hold a secret.
        """
        if problems := check_containers(job.cluster):
            raise ProblemsError(problems)
        return connect_nodes(job, self._connections)

    def model_config(self, job: Job, limit: int) -> Discovery[bytes]:
        """Read `limit` bytes of the model's config.json on every node.

        Raises ProblemsError without hosts or a folder.
        """
        refuse_without(job, "cluster.hosts", "model.path")
        return discovery.model_config(on_login_node(job), self._connect(job), limit)

    def model_profile(self, job: Job) -> Discovery[Mapping[str, Any]]:
        """Make the profile of the job's model on a node. Raises ProblemsError without hosts."""
        refuse_without(job, "cluster.hosts")
        return discovery.model_profile(on_login_node(job), self._connect(job))

    def memory(self, job: Job) -> Discovery[NodeMemory]:
        """Read the memory of every node and of its GPUs. Raises ProblemsError without hosts, or with a scheduler."""
        refuse_scheduler(job)
        refuse_without(job, "cluster.hosts")
        return discovery.memory(job, self._connect(job))

    def partitions(self, job: Job) -> Discovery[tuple[Partition, ...]]:
        """Read the partitions of the job's scheduler from its login node. Raises ProblemsError without a scheduler."""
        refuse_without(job, "cluster.scheduler.login.address")
        return discovery.partitions(self._connect(job))

    def data_size(self, job: Job) -> Discovery[DataSize]:
        """Count the samples of the job's data sets on a node. Raises ProblemsError without hosts or data sets."""
        refuse_without(job, "cluster.hosts", "training.dataset", "training.dataset_dir")
        return discovery.data_size(on_login_node(job), self._connect(job))

    def data_preview(self, job: Job, seed: int) -> Discovery[DataPreview]:
        """Encode rows of the job's data sets on a node.

        Raises ProblemsError without hosts, model folder, data or template.
        """
        needed = ["cluster.hosts", "model.path", "training.dataset", "training.dataset_dir"]
        refuse_without(job, *needed, *(["training.template"] if needs_template(job) else []))
        return discovery.data_preview(on_login_node(job), self._connect(job), seed)

    def dataset_info(self, job: Job) -> Discovery[DatasetInfoRead]:
        """Read dataset_info.json on every node. Raises ProblemsError without hosts or a folder."""
        return dataset_info.read(on_login_node(job), self._data_nodes(job))

    def propose_dataset(self, job: Job, path: str) -> Discovery[DatasetProposal]:
        """Propose an entry of dataset_info.json for a file on a node.

        Raises ProblemsError without hosts or a folder.
        """
        return dataset_info.propose(on_login_node(job), self._data_nodes(job), path)

    def check_dataset(self, job: Job, name: str, entry: Mapping[str, Any]) -> Discovery[DatasetChecked]:
        """Let LLaMA-Factory on every node check an entry and rows of its file. Nothing changes."""
        return dataset_info.check(on_login_node(job), self._data_nodes(job), name, entry)

    def change_dataset(self, job: Job, change: DatasetChange) -> Discovery[bool]:
        """Change an entry of dataset_info.json on every node.

        Raises ProblemsError, and changes nothing, if a node refuses it.
        """
        connected = self._data_nodes(job)
        self._audit("change_dataset", name=change.name, folder=job.training.dataset_dir, removed=change.entry is None)
        return dataset_info.write(on_login_node(job), connected, change)

    def upload_dataset(self, job: Job, name: str, data: bytes) -> Discovery[bool]:
        """Write a new file into the folder of the data sets on every node."""
        connected = self._data_nodes(job)
        self._audit("upload_dataset", file=name, folder=job.training.dataset_dir, bytes=len(data))
        return dataset_info.upload(on_login_node(job), connected, name, data)

    def _data_nodes(self, job: Job) -> ConnectedNodes:
        refuse_without(job, "cluster.hosts", "training.dataset_dir")
        return self._connect(job)

    def measure_speed(self, job: Job) -> Measurement:
        """Benchmark the job's nodes. No file stays on them. Raises ProblemsError when the benchmark cannot run."""
        refuse_scheduler(job)
        if problems := errors(check_nodes(job)):
            raise ProblemsError(problems)
        run = new_run_id(replace(job, name="speed"), self._clock())
        self._audit("measure_speed", run=run, nodes=[host.address for host in job.cluster.hosts])
        return measure(job, self._connect(job), run)

    def copy_missing(self, job: Job, report: PreflightReport, progress: file_copy.ReportBytes) -> tuple[Problem, ...]:
        """Copy the missing model and data from node 0 to the other nodes; return warnings of the clean-up.

        Raises ProblemsError, which names the node that failed. The node keeps the part that it received, and the next
        copy continues there.
        """
        run = new_run_id(replace(job, name="copy"), self._clock())
        self._audit("copy_missing", run=run, nodes=[host.address for host in job.cluster.hosts])
        connected = self._connect(job).with_spares()
        with own_fields(job):
            return file_copy.copy(with_spares(job), connected, report, run, progress)

    def download(self, job: Job, progress: hub_download.ReportBytes, dataset: str | None = None) -> tuple[Problem, ...]:
        """Download the job's model, or the data set `dataset`, from its hub to node 0; return warnings of the clean-up.

        Raises ProblemsError, which says why it failed. Complete files are kept, and the next download continues there.
        """
        repository = hub_download.dataset_repository(job, dataset) if dataset else hub_download.model_repository(job)
        run = new_run_id(replace(job, name="download"), self._clock())
        self._audit("download", run=run, repository=repository.id if repository else None)
        connected = self._connect(job)
        with own_fields(job):
            return hub_download.download(on_login_node(job), connected, repository, run, progress)

    def pull_image(
        self, job: Job, progress: image_pull.ReportLayers, archive: str | None = None
    ) -> tuple[Problem, ...]:
        """Pull the container image on all nodes, or load it from a file there; return warnings of the clean-up.

        Raises ProblemsError, which names the nodes that failed.
        """
        run = new_run_id(replace(job, name="pull"), self._clock())
        refuse_scheduler(job)
        self._audit("pull_image", run=run, nodes=[host.address for host in job.cluster.hosts])
        connected = self._connect(job).with_spares()
        with own_fields(job):
            return image_pull.pull(with_spares(job), connected, run, progress, archive)

    def install(
        self,
        job: Job,
        progress: environment_install.ReportInstall,
        sets: Mapping[str, EnvironmentSet] | None = None,
    ) -> environment_install.Installed:
        """Make the environment of the job's engine on all nodes, and return its interpreter.

        `sets` replaces the shipped sets. Raises ProblemsError, which names the nodes that failed; the next call goes on
        there.
        """
        if problems := errors(check_installation(job)):
            raise ProblemsError(problems)
        job = with_node_python(job)
        run = new_run_id(replace(job, name="install"), self._clock())
        connected, wide = self._connect(job).with_spares(), with_spares(on_login_node(job))
        self._audit("install", run=run, nodes=[host.address for host in wide.cluster.hosts])
        with own_fields(job):
            return environment_install.install(wide, connected, run, progress, sets)


@contextmanager
def own_fields(job: Job) -> Iterator[None]:
    """Name the fields of `job` itself in problems of nodes that are its spares or its login node."""
    try:
        yield
    except ProblemsError as error:
        problems = [replace(problem, field=own_field(job, problem.field)) for problem in error.problems]
        raise ProblemsError(problems) from error
