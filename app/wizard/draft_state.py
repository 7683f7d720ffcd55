"""From the draft to a Job: what was typed is kept in the draft as it is, and read here, with what is wrong with it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.home import with_cluster
from app.text.plans import all_plans
from app.wizard.correct_plan import with_right_plan
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
)
from backend.job.job import Job
from backend.job.launch_rules import check_launch
from backend.job.mapping import parse_job, with_values
from backend.job.model import ModelShape
from backend.job.presets import Gpu, known_model, resolve_gpu
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.job.unestimated import UnestimatedModel
from backend.planning import unequal_stages

NO_FIGURES = frozenset({"model_not_estimated", "estimate_not_modelled"})
"""Warnings that stand in place of all figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What the draft says at one moment."""

    job: Job | None
    """None while an error stands in the way of reading it."""
    model: ModelShape | UnestimatedModel | None
    gpu: Gpu | None
    estimate: Estimate | None
    """None while the job is not sound, or where its memory is not modelled."""
    memory: MemoryEstimate | None
    """What `estimate` and the pictures of the plan are computed from; None like `estimate`."""
    problems: tuple[Problem, ...]
    """What is wrong with the plan."""
    missing: tuple[Problem, ...]
    """What a launch needs beyond the plan."""

    @property
    def shape(self) -> ModelShape | None:
        """The shape that figures are computed from; None where the model is not known or cannot be estimated."""
        return None if isinstance(self.model, UnestimatedModel) else self.model

    @property
    def no_figures(self) -> Problem | None:
        """Why a job without errors has no figures: its model, or its engine's memory, cannot be estimated."""
        return next((problem for problem in self.problems if problem.code in NO_FIGURES), None)

    @property
    def is_sound(self) -> bool:
        """Whether there is a job without an error, so that figures mean something."""
        return self.job is not None and not errors(self.problems)

    @property
    def can_launch(self) -> bool:
        """Whether nothing but the nodes' own answers stands before a launch."""
        return self.is_sound and not errors(self.missing)


def read(draft: Mapping[str, Any], home: Path) -> Reading:
    """The draft as a job, with everything that is wrong with it.

    What only a launch needs does not stop a plan: wrong hosts or folders are reported and left out of the job.
    """
    job, problems = job_of(draft, home)
    if job is None:
        return _unread(_followed(draft, home, problems))
    gpu, model = _try(lambda: resolve_gpu(job.cluster), problems), _try(lambda: known_model(job.model), problems)
    if gpu and model:
        problems += [*check_resolved(job, model, gpu), *check_engine(job)]
    memory, figures = None, None
    shape = None if isinstance(model, UnestimatedModel) else model
    if gpu and shape and not errors(p for p in problems if not _is_for_launch(p.field)):
        memory = _try(lambda: estimate_memory(job, shape, gpu), problems)
    if memory and shape:
        figures = estimate_resolved(job, shape, gpu, memory)
        problems += near_the_limit(job, figures)
        problems += [*over_memory(job, figures), *over_host_memory(job, figures), *much_padding(job, figures)]
        problems += unequal_stages(job, figures)
    problems = with_right_plan(job, problems, lambda: all_plans(job))
    reported = {_bare(problem.field) for problem in errors(problems)}
    problems += [problem for problem in check_launch(job) if _bare(problem.field) not in reported]
    now, later = _split(problems)
    return Reading(job=job, model=model, gpu=gpu, estimate=figures, memory=memory, problems=now, missing=later)


def job_of(draft: Mapping[str, Any], home: Path) -> tuple[Job | None, list[Problem]]:
    """The draft as a job, without the wrong parts that only a launch needs; None while it cannot be read."""
    try:
        mapping, problems = read_texts(with_cluster(draft, home))
    except ProblemsError as error:
        return None, list(error.problems)
    job, found = parse_job(mapping)
    if job is None:
        job, _ = parse_job(_without(mapping, [p.field for p in errors(found) if _is_for_launch(p.field)]))
    return job, [*problems, *found]


LAUNCH_FIELDS = (
    "name", "cluster.hosts", "cluster.environments", "cluster.run_root", "cluster.port_range", "model.path",
    "training.dataset", "training.dataset_dir", "training.template", "training.output_dir", "environment", "extra",
)  # fmt: skip
"""What no plan depends on."""


_FOLLOWED = 4
"""Fixes in a row at most; three were seen (experts above 256: the range, the model's experts, the ranks)."""


def _followed(draft: Mapping[str, Any], home: Path, problems: Iterable[Problem]) -> list[Problem]:
    """Fixes of values beyond their range end where the rules then leave these fields: one press mends a field."""
    found = list(problems)
    edits = {path: value for problem in found for path, value in problem.edit.items()}
    if not edits:
        return found
    mapping = with_cluster(draft, home)
    for path, value in edits.items():
        owner, name = owner_of(mapping, path)
        if owner is not None:
            owner[name] = value
    job, _ = job_of(mapping, home)
    for _ in range(_FOLLOWED):
        further = next((one.edit for one in _broken_rules(job) if one.edit and one.edit.keys() <= edits.keys()), None)
        if job is None or further is None:
            break
        edits |= further
        job = with_values(job, further)
    return [replace(problem, edit={path: edits[path] for path in problem.edit}) for problem in found]


def _broken_rules(job: Job | None) -> list[Problem]:
    """Errors of a job that can be read; none where its GPU or model cannot be resolved."""
    if job is None:
        return []
    try:
        gpu, model = resolve_gpu(job.cluster), known_model(job.model)
    except ProblemsError:
        return []
    return errors([*check_resolved(job, model, gpu), *check_engine(job)])


def _unread(problems: Iterable[Problem]) -> Reading:
    now, later = _split(problems)
    return Reading(job=None, model=None, gpu=None, estimate=None, memory=None, problems=now, missing=later)


def _split(problems: Iterable[Problem]) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """(those of the plan, those that matter at a launch)."""
    found = tuple(problems)
    return (
        tuple(problem for problem in found if not _is_for_launch(problem.field)),
        tuple(problem for problem in found if _is_for_launch(problem.field)),
    )


def _is_for_launch(field: str) -> bool:
    return any(field == known or field.startswith((f"{known}.", f"{known}[")) for known in LAUNCH_FIELDS)


def _bare(field: str) -> str:
    return field.partition("[")[0]


def _without(mapping: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The mapping without the keys that these fields belong to."""
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
