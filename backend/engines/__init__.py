"""Training engines: a job in, the files, environment and command of each node out.

One module an engine, on the interface of engine.py; ENGINES lists them. An engine's facts stand in
backend.job.traits, its rules in backend.job.rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.engines import (
    llamafactory_ddp,
    llamafactory_fsdp,
    llamafactory_megatron,
    llamafactory_zero,
    swift_megatron,
)
from backend.engines.checks import check_passed_on
from backend.engines.engine import Engine, Target, target_of
from backend.engines.environment import merged, node_variables, shared_variables
from backend.engines.export import exported_files, with_placeholders
from backend.engines.placement import NodeCommand, NodePlacement, Placement, Rendered
from backend.engines.torchrun import ENTRY, torchrun_command
from backend.engines.yaml_text import to_yaml
from backend.job.job import Job
from backend.job.launch_rules import check_launch
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
    )
}
"""By the job's `engine`."""

CONFIG = "config.yaml"
"""The engine's configuration, which the entry script reads."""


def check_engine(job: Job) -> list[Problem]:
    """What is wrong with what the job says to its engine directly: `extra`, `environment`, folders."""
    return check_passed_on(job, ENGINES[job.engine])


def check_all(job: Job) -> list[Problem]:
    """What can be said against a launch of the job without asking a node, warnings and notes included."""
    return [*check(job), *check_launch(job), *check_engine(job)]


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job without errors as far as checks without nodes can tell. The constructor checks; raises ProblemsError."""

    job: Job
    remarks: tuple[Problem, ...] = field(init=False, compare=False)
    """Warnings and notes."""

    def __post_init__(self) -> None:
        problems = check_all(self.job)
        object.__setattr__(self, "remarks", tuple(problems))
        found = errors(problems)
        if len(dump_job(self.job)) > MAXIMUM_TEXT:
            # The store keeps the job as its file. A run whose file cannot be read back could not be monitored.
            found.append(Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT}))
        if found:
            raise ProblemsError(found)

    @classmethod
    def of(cls, job: "Job | CheckedJob") -> "CheckedJob":
        """Return the job itself when it was checked before."""
        return job if isinstance(job, CheckedJob) else cls(job)


def results_folder(job: Job, run: str) -> str:
    """Where the engine of a run writes: no two runs share a folder, engines resume from what they find."""
    return f"{(job.training.output_dir or '').rstrip('/')}/{run}"


def engine_notes(job: Job) -> tuple[Problem, ...]:
    """Where the files differ from the letter of the job, and what a launch adds once it has asked the nodes."""
    prepared = Problem(code="data_prepared", field="training.prepare.tokenize", severity="note")
    return (*ENGINES[job.engine].notes(target_of(job)), *([prepared] if job.prepares_data else ()))


def render(job: Job | CheckedJob, place: Placement) -> Rendered:
    """The job's files, and the command and environment of each node; the same job and place give the same bytes.

    Raises ProblemsError when the job is not ready to be launched.
    """
    job = CheckedJob.of(job).job
    engine, target = ENGINES[job.engine], target_of(job)
    commands = tuple(
        NodeCommand(
            rank=node.rank,
            argv=torchrun_command(place, node, ranks=job.cluster.gpus_per_node),
            environment=merged(
                target,
                shared_variables(target, engine),
                node_variables(target, interface=node.interface, folder=node.folder),
            ),
        )
        for node in place.nodes
    )
    goes_on = engine.resume(target, place.checkpoint) if place.checkpoint else {}
    files = {CONFIG: _config_text(engine, target, place.run_id, goes_on), **engine.files(target)}
    return Rendered(files=files, commands=commands, notes=engine_notes(job))


def export(job: Job, *, placeholders: bool = False, checkpoint: str | None = None) -> Mapping[str, str]:
    """Files that launch the job without Megaboard: the configuration, a script a node, and launch.sh over ssh.

    The engine is started in its plain form, by its own launcher. Raises ProblemsError as `render` does; with
    `placeholders`, nodes and paths that the job does not say yet stand as `fill-in` names instead. `checkpoint`: the
    folder of the one to begin with.
    """
    job = with_placeholders(job) if placeholders else job
    if found := errors(check_all(job)):
        raise ProblemsError(found)
    engine, target = ENGINES[job.engine], target_of(job)
    variables = merged(target, shared_variables(target, engine))
    goes_on = engine.resume(target, checkpoint) if checkpoint else {}
    files = {CONFIG: _config_text(engine, target, job.name, goes_on), **engine.files(target)}
    return files | exported_files(job, variables, files, engine.plain(target))


def _config_text(engine: Engine, target: Target, run: str, goes_on: Mapping[str, object]) -> str:
    config = engine.config(target, results_folder(target.job, run))
    return to_yaml({**config, **target.job.extra, **goes_on})
