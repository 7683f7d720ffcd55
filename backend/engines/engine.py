"""The interface that every engine module fills."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A job with what its engine must know of the model and the device."""

    job: Job
    shape: ModelShape
    gpu: Gpu

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks run without a GPU: the demo, tests."""
        return self.gpu.device == "cpu"


def target_of(job: Job) -> Target:
    """The job with its model and device resolved; raises ProblemsError when one is unknown."""
    return Target(job=job, shape=resolve_model(job.model), gpu=resolve_gpu(job.cluster))


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One training engine: how a job is said in its words."""

    name: str
    """The job's `engine`."""
    config: Callable[[Target, str], dict[str, object]]
    """(target, output folder) -> the engine's configuration, without the job's `extra`."""
    owned: Mapping[str, str]
    """Configuration key -> the job path that decides it; `extra` may not name these."""
    resume: Callable[[Target, str], dict[str, object]]
    """(target, folder of a checkpoint) -> what the configuration says in addition to go on from it."""
    environment: Callable[[Target], Mapping[str, str]] = lambda target: {}
    """Variables that select or tune the engine."""
    notes: Callable[[Target], tuple[Problem, ...]] = lambda target: ()
    """Where the configuration must differ from the letter of the job."""
    plain: Callable[[Target], str] = lambda target: "llamafactory.cli train config.yaml"
    """What `python -m` starts on each node without our entry script: the engine's own launcher of torchrun."""
    files: Callable[[Target], Mapping[str, str]] = lambda target: {}
    """File name -> text of what the configuration names besides itself; ranks start in the folder that holds both."""
