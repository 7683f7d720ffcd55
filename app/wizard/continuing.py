"""The checkpoint that a launch of the draft begins with, and the problems of loading it into the draft's plan.

engines/resharding.py decides which plans can load a checkpoint. It is asked at every edit and again at the launch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.calibration import as_mapping, today
from app.services import Services
from app.wizard.fields import Form, label_of, table
from app.wizard.problems import in_words
from app.wizard.start import JobEdits, from_text
from backend.engines.resharding import check_source
from backend.job.job import Job
from backend.job.mapping import dump_job, with_values
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import calibration_of_run, fixes_of_cause


def continue_run(
    services: Services, run: str, step: int, fix: int | None = None, *, is_measured: bool = False
) -> JobEdits:
    """Mark the checkpoint of `step` (0: none), and return the edits for the run's job. Raises ProblemsError.

    `fix`: number of the change that the cause of the run's failure offers (fixes_of_cause). `is_measured`: the job's
    cluster is calibrated with the run.
    """
    with services.database.read() as reader:
        name, job_file = reader.job_file(run)
        job = reader.job(run) if fix is not None else None
    if is_measured:
        job_file = _calibrated(services, run)
    job_edits = from_text(services, job_file if job is None or fix is None else _fixed(services, run, job, fix))
    services.draft.set_source(services.controller.find_source(run, step) if step else None)
    # A job file does not contain a name that the user did not choose.
    return replace(job_edits, edits={**job_edits.edits, "name": name})


def _calibrated(services: Services, run: str) -> str:
    """Return the job file with the measurements of the run. Raises ProblemsError if it has none."""
    job, measured = services.controller.measured(run)
    calibration = calibration_of_run(job, measured, today(services.clock()))
    services.audit.record("calibrate", **as_mapping(calibration))
    return dump_job(replace(job, cluster=replace(job.cluster, calibration=calibration)))


def _fixed(services: Services, run: str, job: Job, fix: int) -> str:
    """Return the job file with the change that the run's cause offers."""
    cause = services.controller.snapshot(run).cause
    changes = fixes_of_cause(cause.code, job) if cause else []
    return dump_job(with_values(job, changes[fix])) if fix < len(changes) else dump_job(job)


def load_problems(services: Services, job: Job | None) -> list[Problem]:
    """Return why the marked checkpoint cannot be loaded into the draft's plan. Empty without a mark."""
    source = services.draft.source
    if source is None or job is None:
        return []
    try:
        return check_source(services.database.job(source.run), job, source.bound)
    except ProblemsError as error:
        return list(error.problems)


def can_load(services: Services, job: Job) -> bool:
    """Return whether the marked checkpoint can be loaded into a job's plan. True without a mark."""
    return not load_problems(services, job)


def launch_source(services: Services) -> tuple[str, int] | None:
    """Return the run and the step of the marked checkpoint, as Controller.launch takes them."""
    source = services.draft.source
    return (source.run, source.step) if source else None


def load_check(services: Services, job: Job) -> Callable[..., bool] | None:
    """Return (engine, **sizes and switches) -> whether the checkpoint can be loaded. None without a mark."""
    source = services.draft.source
    if source is None:
        return None
    try:
        before = services.database.job(source.run)
    except ProblemsError:
        return None

    def can_load_plan(engine: str, **parallel: Any) -> bool:
        plan = replace(job, engine=engine, parallel=replace(job.parallel, **parallel))  # type: ignore[arg-type]
        return not check_source(before, plan, source.bound)

    return can_load_plan


def banner(services: Services, form: Form, problems: list[Problem]) -> dict[str, Any] | None:
    """Return the page's banner about the marked checkpoint. `problems` says why it cannot be loaded."""
    source = services.draft.source
    if source is None:
        return None
    return {
        "run": source.run,
        "step": source.step,
        "bound": [label_of(form.lang, table()[path]) for path in source.bound if path in table()],
        "problems": [in_words(form, problem) for problem in problems],
    }
