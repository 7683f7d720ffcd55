"""Training engines: they turn a job into the files, environment and command of each node.

Each engine has one module with the interface of engine.py; ENGINES lists them. backend.job.traits has the facts of an
engine, backend.job.rules its rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.engines import (
    llamafactory_ddp,
    llamafactory_fsdp,
    llamafactory_megatron,
    llamafactory_zero,
    swift_megatron,
    swift_trainer,
)
from backend.engines.checks import check_passed_on
from backend.engines.engine import Engine, Target, target_of
from backend.engines.environment import merged, node_variables, shared_variables
from backend.engines.export import exported_files, for_plain_scripts, with_placeholders
from backend.engines.kubernetes import manifests
from backend.engines.placement import NodeCommand, NodePlacement, Placement, Rendered
from backend.engines.slurm import exported_slurm_files
from backend.engines.torchrun import ENTRY, torchrun_command
from backend.engines.yaml_text import to_yaml
from backend.job.job import Job
from backend.job.launch_rules import check_launch, environment_of
from backend.job.mapping import MAXIMUM_TEXT, dump_job
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check

__all__ = [
    "CONFIG",
    "ENGINES",
    "ENTRY",
    "CheckedJob",
    "NodeCommand",
    "NodePlacement",
    "Placement",
    "Rendered",
    "check_all",
    "check_engine",
    "engine_notes",
    "export",
    "export_kubernetes",
    "export_slurm",
    "render",
    "results_folder",
]

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        llamafactory_megatron.ENGINE,
        llamafactory_ddp.ENGINE,
        *llamafactory_zero.ENGINES,
        llamafactory_fsdp.ENGINE,
        swift_megatron.ENGINE,
        *swift_trainer.ENGINES,
    )
}
"""Engines by the job's `engine`."""

CONFIG = "config.yaml"
"""Name of the engine's configuration, which the entry script reads."""


def check_engine(job: Job) -> list[Problem]:
    """Return the problems of what the job passes directly to its engine: `extra`, `environment`, folders."""
    return check_passed_on(job, ENGINES[job.engine])


def check_all(job: Job) -> list[Problem]:
    """Return all problems of a launch that need no answer of a node, warnings and notes included."""
    return [*check(job), *check_launch(job), *check_engine(job)]


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job without errors that a check without nodes can find. The constructor checks it and raises ProblemsError."""

    job: Job
    remarks: tuple[Problem, ...] = field(init=False, compare=False)
    """Warnings and notes."""

    def __post_init__(self) -> None:
        problems = check_all(self.job)
        object.__setattr__(self, "remarks", tuple(problems))
        refusals = errors(problems)
        if len(dump_job(self.job)) > MAXIMUM_TEXT:
            # The store keeps the job as its file. A run whose file cannot be read back could not be monitored.
            refusals.append(Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT}))
        if refusals:
            raise ProblemsError(refusals)

    @classmethod
    def of(cls, job: "Job | CheckedJob") -> "CheckedJob":
        """Return the job itself when it was checked before."""
        return job if isinstance(job, CheckedJob) else cls(job)


def results_folder(job: Job, run: str) -> str:
    """Return the output folder of a run. No two runs share one, because engines resume from what they find there."""
    return f"{(job.training.output_dir or '').rstrip('/')}/{run}"


def engine_notes(job: Job) -> tuple[Problem, ...]:
    """Return notes on where the files differ from the job, and on what a launch adds from the nodes' answers."""
    prepared = Problem(code="data_prepared", field="training.prepare.tokenize", severity="note")
    return (*ENGINES[job.engine].notes(target_of(job)), *([prepared] if job.prepares_data else ()))


def render(job: Job | CheckedJob, placement: Placement) -> Rendered:
    """Return the job's files, and the command and environment of each node.

    The same job and placement give the same bytes. Raises ProblemsError if the job is not ready for a launch.
    """
    job = CheckedJob.of(job).job
    engine, target = ENGINES[job.engine], target_of(job)
    commands = tuple(
        NodeCommand(
            rank=node.rank,
            argv=torchrun_command(placement, node, ranks=job.cluster.gpus_per_node),
            environment=merged(
                target,
                shared_variables(target, engine),
                node_variables(target, interface=node.interface, folder=node.folder),
            ),
        )
        for node in placement.nodes
    )
    resume_keys = engine.resume(target, placement.checkpoint) if placement.checkpoint else {}
    files = {CONFIG: _config_text(engine, target, placement.run_id, resume_keys), **engine.files(target)}
    return Rendered(files=files, commands=commands, notes=engine_notes(job))


def export(job: Job, *, placeholders: bool = False, checkpoint: str | None = None) -> Mapping[str, str]:
    """Return files that launch the job without Megaboard: the configuration, a script per node, and launch.sh over ssh.

    The engine's own launcher starts it. With `placeholders`, nodes and paths that the job lacks become `fill-in` names.
    `checkpoint` is the folder of the checkpoint to begin with. Raises ProblemsError as `render` does.
    """
    if job.cluster.scheduler is not None:
        return export_slurm(job, checkpoint=checkpoint)
    job = with_placeholders(job) if placeholders else job
    if problems := errors(check_all(job)):
        raise ProblemsError(problems)
    if any((environment := environment_of(job, rank)) and environment.container for rank in range(job.cluster.nodes)):
        raise ProblemsError([Problem(code="container_not_exported", field="cluster.environments")])
    engine, target = ENGINES[job.engine], target_of(job)
    variables = merged(target, shared_variables(target, engine))
    resume_keys = engine.resume(target, checkpoint) if checkpoint else {}
    files = {CONFIG: _config_text(engine, target, job.name, resume_keys), **engine.files(target)}
    return files | exported_files(job, variables, files, engine.plain(target))


def export_slurm(job: Job, *, checkpoint: str | None = None) -> Mapping[str, str]:
    """Return files for `sbatch`: the configuration, a batch script and the script of a node. Raises ProblemsError.

    What the job lacks becomes `fill-in` names.
    """
    job = with_placeholders(job)
    if problems := errors(check_all(job)):
        raise ProblemsError(problems)
    if (environment := environment_of(job, 0)) and environment.container:
        raise ProblemsError([Problem(code="container_not_exported", field="cluster.environments")])
    engine, target = ENGINES[job.engine], target_of(job)
    resume_keys = engine.resume(target, checkpoint) if checkpoint else {}
    files = {CONFIG: _config_text(engine, target, job.name, resume_keys), **engine.files(target)}
    variables = for_plain_scripts(merged(target, shared_variables(target, engine)))
    return files | exported_slurm_files(job, variables, engine.plain(target))


def export_kubernetes(job: Job) -> Mapping[str, str]:
    """Return manifests that start the job on Kubernetes. What the job lacks becomes `fill-in` names.

    Raises ProblemsError.
    """
    job = with_placeholders(job)
    if problems := errors(check_all(job)):
        raise ProblemsError(problems)
    engine, target = ENGINES[job.engine], target_of(job)
    files = {CONFIG: _config_text(engine, target, job.name, {}), **engine.files(target)}
    variables = for_plain_scripts(merged(target, shared_variables(target, engine)))
    return manifests(job, variables, files, engine.plain(target))


def data_config(job: Job) -> dict[str, object]:
    """Return the engine's configuration for a program that only reads the data. What the job lacks is `fill-in`."""
    engine, target = ENGINES[job.engine], target_of(with_placeholders(job))
    return {**engine.config(target, results_folder(target.job, "preview")), **job.extra}


def _config_text(engine: Engine, target: Target, run: str, resume_keys: Mapping[str, object]) -> str:
    config = engine.config(target, results_folder(target.job, run))
    return to_yaml({**config, **target.job.extra, **resume_keys})
