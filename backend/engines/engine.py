"""The interface of every engine module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, known_model, resolve_gpu
from backend.job.problems import Problem
from backend.job.unestimated import UnestimatedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A job with the facts of model and device that its engine needs."""

    job: Job
    shape: ModelShape | UnestimatedModel
    gpu: Gpu

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts, by its shape or, if it has none, also by the job's sizes."""
        parallel = self.job.parallel
        return bool(self.shape.experts) or parallel.expert > 1 or parallel.expert_tensor > 1

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks run without a GPU: in the demo and in tests."""
        return self.gpu.device == "cpu"


def target_of(job: Job) -> Target:
    """Return the job with its model and its device. Raises ProblemsError if one is unknown."""
    return Target(job=job, shape=known_model(job.model), gpu=resolve_gpu(job.cluster))


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One training engine: how it expresses a job in its own keys."""

    name: str
    """The job's `engine`."""
    config: Callable[[Target, str], dict[str, object]]
    """(target, output folder) -> the engine's configuration, without the job's `extra`."""
    owned: Mapping[str, str]
    """Configuration key -> the job path that decides it. `extra` may not have these keys."""
    resume: Callable[[Target, str], dict[str, object]]
    """(target, folder of a checkpoint) -> the additional keys to resume from it."""
    environment: Callable[[Target], Mapping[str, str]] = lambda target: {}
    """Variables that select or tune the engine."""
    notes: Callable[[Target], tuple[Problem, ...]] = lambda target: ()
    """Notes on where the configuration must differ from the job."""
    plain: Callable[[Target], str] = lambda target: "llamafactory.cli train config.yaml"
    """Module that `python -m` starts on each node without our entry script: the engine's own torchrun launcher."""
    files: Callable[[Target], Mapping[str, str]] = lambda target: {}
    """File name -> text of other files that the configuration names. Ranks start in the folder that holds both."""
