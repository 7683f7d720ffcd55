"""Reads the draft as a job and lists its problems. The draft keeps what the user typed without a change."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.home import with_cluster, with_readable_cluster
from app.text.plans import all_plans
from app.wizard.correct_plan import with_correct_plan
from app.wizard.scheduler import kind_of
from app.wizard.texts import owner_of, read_texts
from backend.engines import check_engine
from backend.estimate import (
    Estimate,
    MemoryEstimate,
    estimate_memory,
    estimate_resolved,
    much_padding,
    near_the_limit,
    over_host_memory,
    over_memory,
    waits_for_host,
)
from backend.job.job import Job
from backend.job.launch_rules import check_launch
from backend.job.mapping import parse_job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, known_model, resolve_gpu
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.job.rules.following import with_following_edits
from backend.job.unestimated import UnestimatedModel
from backend.planning import unequal_stages

NO_FIGURES = frozenset({"model_not_estimated", "estimate_not_modelled"})
"""Warnings that replace all figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftState:
    """The draft at one moment: its job, estimate and problems."""

    job: Job | None
    """None if an error prevents reading the job."""
    model: ModelShape | UnestimatedModel | None
    gpu: Gpu | None
    estimate: Estimate | None
    """None if the job has an error, or if its memory is not modelled."""
    memory: MemoryEstimate | None
    """Input of `estimate` and of the pictures of the plan. None if `estimate` is None."""
    problems: tuple[Problem, ...]
    """Problems of the plan."""
    missing: tuple[Problem, ...]
    """Problems that prevent only a launch, not a plan."""
    scheduler: str | None = None
    """Which scheduler the draft chooses, also if its values cannot be read; None for SSH nodes."""

    @property
    def shape(self) -> ModelShape | None:
        """Return the shape for the estimate. None if the model is unknown or cannot be estimated."""
        return None if isinstance(self.model, UnestimatedModel) else self.model

    @property
    def no_figures(self) -> Problem | None:
        """Return why a job without errors has no figures: its model or its engine's memory is not modelled."""
        return next((problem for problem in self.problems if problem.code in NO_FIGURES), None)

    @property
    def is_sound(self) -> bool:
        """Return whether there is a job without an error, so that figures are valid."""
        return self.job is not None and not errors(self.problems)

    @property
    def can_launch(self) -> bool:
        """Return whether only the preflight checks remain before a launch."""
        return self.is_sound and not errors(self.missing)


def read(draft: Mapping[str, Any], home: Path) -> DraftState:
    """Return the draft as a job, with all its problems.

    A wrong value that only a launch needs, such as a host or a folder, is reported and left out of the job.
    """
    job, problems = job_of(draft, home)
    if job is None:
        return _unread(_with_following_fixes(draft, home, problems))
    gpu, model = _try(lambda: resolve_gpu(job.cluster), problems), _try(lambda: known_model(job.model), problems)
    if gpu and model:
        check = partial(_check, gpu=gpu, model=model)
        problems += with_following_edits(job, check(job), check)
    memory, figures = None, None
    shape = None if isinstance(model, UnestimatedModel) else model
    if gpu and shape and not errors(p for p in problems if not _is_for_launch(p.field)):
        memory = _try(lambda: estimate_memory(job, shape, gpu), problems)
    if memory and shape:
        figures = estimate_resolved(job, shape, gpu, memory)
        problems += near_the_limit(job, figures)
        problems += [*over_memory(job, figures), *over_host_memory(job, figures), *much_padding(job, figures)]
        problems += [*unequal_stages(job, figures), *waits_for_host(job, figures)]
    problems = with_correct_plan(job, problems, lambda: all_plans(job))
    reported = {_without_index(problem.field) for problem in errors(problems)}
    scheduler = scheduler_of(draft, home)
    if scheduler and job.cluster.scheduler is None:  # its values cannot be read, and it takes the place of the hosts
        reported.add("cluster.hosts")
    problems += [problem for problem in check_launch(job) if _without_index(problem.field) not in reported]
    current, missing = _split(problems)
    return DraftState(
        job=job,
        model=model,
        gpu=gpu,
        estimate=figures,
        memory=memory,
        problems=current,
        missing=missing,
        scheduler=scheduler,
    )


def scheduler_of(draft: Mapping[str, Any], home: Path) -> str | None:
    """Return which scheduler the draft chooses; None for SSH nodes."""
    cluster = with_readable_cluster(draft, home).get("cluster")
    return kind_of(cluster.get("scheduler")) if isinstance(cluster, Mapping) else None


def job_of(draft: Mapping[str, Any], home: Path) -> tuple[Job | None, list[Problem]]:
    """Return the draft as a job without wrong values that only a launch needs. None if it cannot be read."""
    try:
        mapping, problems = read_texts(with_cluster(draft, home))
    except ProblemsError as error:
        return None, list(error.problems)
    job, job_problems = parse_job(mapping)
    if job is None:
        job, _ = parse_job(_without(mapping, [p.field for p in errors(job_problems) if _is_for_launch(p.field)]))
    return job, [*problems, *job_problems]


LAUNCH_FIELDS = (
    "name", "cluster.hosts", "cluster.spares", "cluster.scheduler", "cluster.environments", "cluster.run_root",
    "cluster.port_range", "model.path", "training.dataset", "training.dataset_dir", "training.template",
    "training.output_dir", "environment", "extra",
)  # fmt: skip
"""Keys that no plan depends on."""


def _with_following_fixes(draft: Mapping[str, Any], home: Path, problems: Iterable[Problem]) -> list[Problem]:
    """Extend each fix of a value out of range by the fixes that other rules then need, so that one click is enough.

    The job can be read only with all of these fixes. They change no other value: the user may still mend those.
    """
    listed = list(problems)
    edits = {path: value for problem in listed for path, value in problem.edit.items()}
    if not edits:
        return listed
    mapping = with_cluster(draft, home)
    for path, value in edits.items():
        owner, name = owner_of(mapping, path)
        if owner is not None:
            owner[name] = value
    job, _ = job_of(mapping, home)
    if job is None:
        return listed

    def check(job: Job) -> list[Problem]:
        return [error for error in _broken_rules(job) if error.edit and error.edit.keys() <= edits.keys()]

    extended = with_following_edits(job, listed, check)
    return [
        replace(problem, edit={path: whole.edit.get(path, value) for path, value in problem.edit.items()})
        for problem, whole in zip(listed, extended, strict=True)
    ]


def _broken_rules(job: Job) -> list[Problem]:
    """Return the errors of a job. Empty if its GPU or model cannot be resolved."""
    try:
        gpu, model = resolve_gpu(job.cluster), known_model(job.model)
    except ProblemsError:
        return []
    return errors(_check(job, gpu, model))


def _check(job: Job, gpu: Gpu, model: ModelShape | UnestimatedModel) -> list[Problem]:
    return [*check_resolved(job, model, gpu), *check_engine(job)]


def _unread(problems: Iterable[Problem]) -> DraftState:
    current, missing = _split(problems)
    return DraftState(job=None, model=None, gpu=None, estimate=None, memory=None, problems=current, missing=missing)


def _split(problems: Iterable[Problem]) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Return (problems of the plan, problems of a launch)."""
    listed = tuple(problems)
    return (
        tuple(problem for problem in listed if not _is_for_launch(problem.field)),
        tuple(problem for problem in listed if _is_for_launch(problem.field)),
    )


def _is_for_launch(field: str) -> bool:
    return any(field == known or field.startswith((f"{known}.", f"{known}[")) for known in LAUNCH_FIELDS)


def _without_index(field: str) -> str:
    return field.partition("[")[0]


def _without(mapping: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the mapping without the keys that these fields belong to."""
    mapping = dict(mapping)
    for field in fields:
        key = next(known for known in LAUNCH_FIELDS if field == known or field.startswith((f"{known}.", f"{known}[")))
        owner, name = owner_of(mapping, key)
        if owner is not None:
            owner.pop(name, None)
    return mapping


def _try(resolve: Callable[[], Any], problems: list[Problem]) -> Any:
    try:
        return resolve()
    except ProblemsError as error:
        problems += error.problems
        return None
