"""The run that the draft goes on from: its job in the draft, its checkpoint beside it, and what does not go together.

What a checkpoint can be loaded into is said by engines/resharding.py: here at every edit, and again at the launch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.services import Services
from app.wizard.fields import Form, label_of, table
from app.wizard.problems import in_words
from app.wizard.start import Begun, from_text
from backend.engines.resharding import check_source
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError


def begin(services: Services, run: str, step: int) -> Begun:
    """A run's job for the draft, to go on from its checkpoint of a step; 0: from the beginning. ProblemsError."""
    with services.database.read() as reader:
        name, job_file = reader.job_file(run)
    begun = from_text(services, job_file)
    services.draft.begin_with(services.controller.find_source(run, step) if step else None)
    # The file of a job does not say a name that nobody chose.
    return replace(begun, edits={**begun.edits, "name": name})


def against(services: Services, job: Job | None) -> list[Problem]:
    """Why the marked checkpoint cannot be loaded into the draft's plan; nothing without a mark."""
    source = services.draft.source
    if source is None or job is None:
        return []
    try:
        return check_source(_job_of(services, source.run), job, source.bound)
    except ProblemsError as error:
        return list(error.problems)


def fits(services: Services, job: Job) -> bool:
    """Whether the marked checkpoint can be loaded into a job's plan; always without a mark."""
    return not against(services, job)


def chosen(services: Services) -> tuple[str, int] | None:
    """What a launch of the draft begins with, as Controller.launch takes it."""
    source = services.draft.source
    return (source.run, source.step) if source else None


def loads(services: Services, job: Job) -> Callable[..., bool] | None:
    """(engine, parallel sizes and switches by name) -> whether the checkpoint can be loaded into such a plan.

    None without a mark.
    """
    source = services.draft.source
    if source is None:
        return None
    try:
        before = _job_of(services, source.run)
    except ProblemsError:
        return None

    def fits(engine: str, **parallel: Any) -> bool:
        plan = replace(job, engine=engine, parallel=replace(job.parallel, **parallel))  # type: ignore[arg-type]
        return not check_source(before, plan, source.bound)

    return fits


def shown(services: Services, form: Form, problems: list[Problem]) -> dict[str, Any] | None:
    """The mark as the page's banner shows it, with why it does not go together with the draft."""
    source = services.draft.source
    if source is None:
        return None
    return {
        "run": source.run,
        "step": source.step,
        "bound": [label_of(form.lang, table()[path]) for path in source.bound if path in table()],
        "problems": [in_words(form, problem) for problem in problems],
    }


def _job_of(services: Services, run: str) -> Job:
    with services.database.read() as reader:
        return reader.job(run)
