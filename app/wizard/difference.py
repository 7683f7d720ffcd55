"""Differences between the draft and an earlier run or the recommended plan: keys, files, memory and speed."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from app.services import Services
from app.text import render_problem, t
from app.text.plans import all_plans, need_gib, plan_name, plan_sizes
from app.wizard.draft_state import DraftState
from app.wizard.job_values import label, leaves, text
from backend.engines import export
from backend.estimate import estimate
from backend.job.job import Job
from backend.job.mapping import dump_job
from backend.job.problems import ProblemsError
from backend.planning import recommended

RECOMMENDED = "recommended"
"""The base that is not a run: the plan that the Plan step offers. No run has this id."""
RUNS_OFFERED = 50
_CONTEXT_LINES = 2
_WITH_INTERVAL = {
    "need_gib": "need_gib",
    "speed": "tokens_per_s_per_gpu",
    "iteration_s": "iteration_s",
    "hours": "hours",
}
"""Figures with an interval, and their names in the estimate."""
_OTHER_NODES = re.compile(r"node[1-9]\d*\.sh")
"""These files differ from node0.sh only in the rank."""


def difference_of(services: Services, state: DraftState, base: str | None, lang: str) -> dict[str, Any]:
    """Return {bases, base, fields, files, figures}, or {bases, why} if the draft or the base cannot be read.

    The default base is the first that exists: the run that the draft continues, the newest run with the job's name,
    the newest run, the recommended plan.
    """
    job = state.job
    if job is None or not state.is_sound:
        return {"bases": [], "why": t(lang, "wizard.plan.unread")}
    runs = _runs(services, job.name)
    offered = [*runs, RECOMMENDED]
    origin = services.draft.source.run if services.draft.source else None
    selected = next((name for name in (base, origin) if name in offered), offered[0])
    answer = {"bases": offered, "base": selected, "same_name": sum(name == job.name for name in runs.values())}
    try:
        before = _recommended(job) if selected == RECOMMENDED else services.database.job(selected)
    except ProblemsError as error:
        return {**answer, "why": render_problem(lang, error.problems[0])["message"]}
    except IndexError:
        return {**answer, "why": t(lang, "wizard.plan.none")}
    return {
        **answer,
        "fields": [list(row) for row in _fields(before, job, lang)],
        "files": _files(before, job),
        "figures": {"before": _figures(before), "after": _figures(job)},
    }


def _recommended(job: Job) -> Job:
    plans = all_plans(job)
    return plans[recommended(plans) or 0].job


def _runs(services: Services, name: str) -> dict[str, str]:
    """Return {run id: job name} of the runs to compare with: runs of this name first, then newest first."""
    with services.database.read() as reader:
        return reader.names(name, RUNS_OFFERED)


def _fields(before: Job, after: Job, lang: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (path, label, value before, value after) of every key whose value differs, including defaults."""
    old, new = leaves(before), leaves(after)
    for path in [*new, *(path for path in old if path not in new)]:
        if old.get(path) != new.get(path):
            yield path, label(path, lang), text(old.get(path)), text(new.get(path))


def _files(before: Job, after: Job) -> list[dict[str, Any]]:
    """Return the unified diff of each rendered file that differs, including the job file."""
    old, new = _rendered(before), _rendered(after)
    differences = []
    for name in [*new, *(name for name in old if name not in new)]:
        texts = old.get(name, "").splitlines(), new.get(name, "").splitlines()
        lines = list(difflib.unified_diff(*texts, lineterm="", n=_CONTEXT_LINES))[2:]
        if lines:
            differences.append({"name": name, "lines": lines})
    return differences


def _rendered(job: Job) -> dict[str, str]:
    """Return the job file and the engine's files. Only the job file if the rules refuse the job."""
    files = {"job.yaml": dump_job(job)}
    try:
        files |= export(job, placeholders=True)
    except ProblemsError:
        return files
    return {name: text for name, text in files.items() if not _OTHER_NODES.fullmatch(name)}


def _figures(job: Job) -> dict[str, Any] | None:
    """Return plan, memory, speed and time, with the ends of their intervals. None if the job cannot be estimated.

    An end is None if there is none: an assumed need has no interval, and a time with unknown lengths of samples is an
    upper bound.
    """
    try:
        estimated = estimate(job)
    except ProblemsError:
        return None
    ends = {
        f"{name}_{end}": getattr(estimated, f"{field}_{end}")
        for name, field in _WITH_INTERVAL.items()
        for end in ("low", "high")
    }
    if "lengths" in estimated.time_unknown:
        ends |= {"iteration_s_low": None, "hours_low": None}
    return {
        "plan": plan_name(plan_sizes(job)),
        "engine": job.engine,
        "need_gib": need_gib(estimated),
        "fits": estimated.fits,
        "bubble": estimated.bubble_fraction,
        "speed": estimated.tokens_per_s_per_gpu,
        "iteration_s": estimated.iteration_s,
        "hours": estimated.hours,
        "batch": job.global_batch,
        **ends,
    }
