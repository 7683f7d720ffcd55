"""`megaboard estimate` and `plan`: what a job costs, and every way to run it."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from app.cli.output import DONE, FAILED, WRONG_INPUT, print_json, print_object, print_problems
from app.cli.tables import AXES, estimate_text, plans_text, strategies_text
from app.home import home_path
from app.jobfile import folder_of, job_of, load_json, opened, read_job, read_mapping, refuse_errors
from app.text import render_problem, t
from app.text.plans import all_plans, reason_words, why_not_words
from backend.estimate import Estimate, estimate, much_padding, near_the_limit, over_host_memory, over_memory, to_json
from backend.job.batch import planned_batch
from backend.job.job import Job
from backend.job.mapping import MAXIMUM_TEXT
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check
from backend.planning import (
    Candidate,
    Plans,
    Strategy,
    parse_sizes,
    smallest_nodes,
    strategies,
    tokens_per_s,
    unequal_stages,
    why_not,
)
from backend.planning.why_not import SHORT


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    if name == "estimate":
        parser.add_argument("files", nargs="+", metavar="FILE", help=t(lang, "cli.file.help"))
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help=t(lang, "cli.estimate.json.help"))
        form.add_argument("--jsonl", action="store_true", help=t(lang, "cli.estimate.jsonl.help"))
        parser.set_defaults(run=run_estimate)
        return
    parser.add_argument("file", metavar="FILE", help=t(lang, "cli.file.help"))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--top", type=int, metavar="N", help=t(lang, "cli.plan.top.help"))
    form.add_argument("--why-not", metavar="SIZES", help=t(lang, "cli.plan.why_not.help"))
    form.add_argument("--strategies", action="store_true", help=t(lang, "cli.plan.strategies.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run_plan)


def run_estimate(args: argparse.Namespace, lang: str) -> int:
    """Estimate every file: a table each, or JSON; 2 when a job is wrong, 1 when there are no figures for it."""
    if args.jsonl:
        for answer in _answer_lines(_lines(args.files), lang):
            print_json(answer, compact=True)
        return DONE
    answers, status = [], DONE
    for source in args.files:
        found = _estimate(partial(read_mapping, source), folder_of(source), source)
        status = max(status, WRONG_INPUT if errors(found.problems) else DONE if found.figures else FAILED)
        if args.json:
            answers.append(_answer(found, lang))
            continue
        print_problems(lang, found.problems)
        if found.job and found.figures:
            print(estimate_text(found.job, found.figures, lang))
    if args.json:
        print_json(answers if len(answers) > 1 else answers[0])
    return status


def run_plan(args: argparse.Namespace, lang: str) -> int:
    """List the legal plans, best first; 1 when there is none, 2 when something is wrong with every one."""
    job, problems = read_job(args.file, home_path())
    try:
        found = all_plans(job)
    except ProblemsError as error:
        raise ProblemsError(_with(error.problems, [*problems, *check(job)])) from error
    problems += _of_every_plan(job, found)
    print_problems(lang, problems)
    status = _answered(job, found, problems, args, lang)
    return WRONG_INPUT if errors(problems) else status


def _of_every_plan(job: Job, plans: Plans) -> list[Problem]:
    """What choosing another plan does not mend; of warnings only what is said of the learning rate.

    Every plan has the job's global batch, so that holds for all of them.
    """
    alike = {(one.code, one.field) for one in plans[0].warnings} if len(plans) else set()
    return [one for one in check(job) if one.field == "training.learning_rate"
            or (one.severity == "error" and (one.code, one.field) in alike)]  # fmt: skip


def _answered(job: Job, found: Plans, problems: list[Problem], args: argparse.Namespace, lang: str) -> int:
    told = {"problems": [render_problem(lang, problem) for problem in problems]}
    if args.strategies:
        return _strategies(job, told if args.json else None, lang)
    if args.why_not is not None:
        return _why_not(job, found, args.why_not, lang, as_json=args.json)
    if args.top is not None and args.top < 0:
        raise ProblemsError([Problem(code="too_small", field="--top", values={"value": args.top, "limit": 0})])
    top = args.top if args.top is not None else len(found) if args.json else SHOWN
    shown = range(min(len(found), top))
    if args.json:
        # One by one: there may be hundreds of thousands.
        heads = {"count": len(found), "rejected": dict(found.rejected), **told, **_smallest(job, found)}
        print_object(heads, "plans", (_plan(found[rank], lang) for rank in shown))
    else:
        print(plans_text([found[rank] for rank in shown], found, lang))
    return DONE if len(found) else FAILED


def _smallest(job: Job, plans: Plans) -> dict[str, Any]:
    """Where nodes differ in GPU memory: who decides, and what would be without them."""
    found = smallest_nodes(job, plans)
    if found is None:
        return {}
    without = found.without and {"nodes": found.others, "edits": dict(found.without.edits),
                                 "tokens_per_s": tokens_per_s(found.without)}  # fmt: skip
    return {"smallest": {"nodes": list(found.nodes), "gpu_memory_gib": found.least_gib,
                         "others_gib": found.others_gib, "helps": found.helps, "without": without}}  # fmt: skip


SHOWN = 20
"""Plans that a table shows unless more are asked for."""


def _why_not(job: Job, plans: Plans, sizes: str, lang: str, *, as_json: bool) -> int:
    found = why_not(job, parse_sizes(sizes), plans)
    if as_json:
        cost = found.cost and {"over_gib": found.cost.over_gib, "over_host_gib": found.cost.over_host_gib,
                               "slower": found.cost.slower, "part": found.cost.part}  # fmt: skip
        print_json({
            "problems": [render_problem(lang, problem) for problem in found.problems],
            "rank": None if found.rank is None else found.rank + 1,
            "cost": cost,
            "plan": _plan(found.best, lang) if found.best else None,
            "legal": {SHORT[path]: list(sizes) for path, sizes in found.legal.items()},
            "nearest": _plan(found.nearest, lang) if found.nearest else None,
        })  # fmt: skip
    else:
        print(why_not_words(found, plans, lang))
    return DONE


def _strategies(job: Job, told: Mapping[str, Any] | None, lang: str) -> int:
    """A table; JSON, with what is `told` of the job, where there is such."""
    rows = strategies(job)
    if told is not None:
        batches = {"global_batch_size": rows[0].global_batch, "job_global_batch_size": planned_batch(job)}
        print_json({**told, **batches, "strategies": [_strategy(row, lang) for row in rows]})
    else:
        print(strategies_text(job, rows, lang))
    return DONE if any(row.best for row in rows) else FAILED


def _strategy(row: Strategy, lang: str) -> dict[str, Any]:
    return {
        "strategy": row.key,
        "engine": row.engine,
        "method": row.method,
        "fits": row.fits,
        "recommended": row.recommended,
        "memory_gib": row.memory_gib,
        "tokens_per_s_per_gpu": row.tokens_per_s_per_gpu,
        "hours": row.hours,
        "reason": {"code": row.reason, "message": reason_words(row, lang)},
        "plan": _plan(row.best, lang) if row.best else None,
    }


@dataclass(kw_only=True, slots=True)
class _Estimated:
    """One job and what can be said of it."""

    name: str
    """The job's own, if only it could be read."""
    job: Job | None = None
    figures: Estimate | None = None
    problems: list[Problem] = field(default_factory=list)


def _estimate(read: Callable[[], Mapping[str, Any]], folder: Path, unnamed: str) -> _Estimated:
    found = _Estimated(name=unnamed)
    try:
        mapping = read()
        if isinstance(name := mapping.get("name"), str):
            found.name = name
        found.job, found.problems = job_of(mapping, home_path(), folder)
        found.problems += check(found.job)
        refuse_errors(found.problems)
        found.figures = estimate(found.job)
        found.problems += over_memory(found.job, found.figures)
        found.problems += near_the_limit(found.job, found.figures)
        found.problems += [*over_host_memory(found.job, found.figures), *much_padding(found.job, found.figures)]
        found.problems += unequal_stages(found.job, found.figures)
    except ProblemsError as error:
        found.problems = _with(error.problems, found.problems)
    return found


def _with(refusal: Iterable[Problem], others: list[Problem]) -> list[Problem]:
    """Why there are no figures; where that is no error, after what else is said of the job."""
    refusal = list(refusal)
    return refusal if errors(refusal) else [*others, *(problem for problem in refusal if problem not in others)]


def _plan(candidate: Candidate, lang: str) -> dict[str, Any]:
    figures, parallel = candidate.estimate, candidate.job.parallel
    problems = [*candidate.warnings, *over_memory(candidate.job, figures), *over_host_memory(candidate.job, figures)]
    return {
        **to_json(figures, (render_problem(lang, problem) for problem in problems)),
        "parallel": {axis: getattr(parallel, axis) if candidate.job.traits.is_megatron else 1 for axis in AXES},
        "engine": candidate.job.engine,
        "micro_batch_size": candidate.job.training.micro_batch_size,
        "recompute": candidate.job.recompute,
        "is_pareto": candidate.is_pareto,
        "edits": dict(candidate.edits),
    }


def _answer(found: _Estimated, lang: str) -> dict[str, Any]:
    return to_json(found.figures, (render_problem(lang, problem) for problem in found.problems), name=found.name)


def _answer_lines(lines: Iterable[str], lang: str) -> Iterator[dict[str, Any]]:
    """An answer for every line, in order, whatever the line holds; one without a name is called by its number."""
    for number, line in enumerate(lines, 1):
        yield _answer(_estimate(partial(_json_mapping, line), Path.cwd(), str(number)), lang)


def _json_mapping(line: str) -> Mapping[str, Any]:
    if len(line) > MAXIMUM_TEXT:
        raise ProblemsError([Problem(code="file_too_large", values={"limit": MAXIMUM_TEXT})])
    try:
        mapping = load_json(line)
    except json.JSONDecodeError as error:
        values = {"column": error.colno, "reason": error.msg}
        raise ProblemsError([Problem(code="bad_json_line", values=values)]) from error
    if not isinstance(mapping, dict):
        raise ProblemsError([Problem(code="not_a_mapping")])
    return mapping


def _lines(sources: Iterable[str]) -> Iterator[str]:
    """Lines as they come, so that a program at the other end of a pipe can ask and wait; blank ones are no question."""
    for source in sources:
        with opened(source) as file:
            while part := file.readline(MAXIMUM_TEXT + 1):
                line = part
                while part and not part.endswith("\n"):  # the rest of one that is too long
                    part = file.readline(MAXIMUM_TEXT + 1)
                if line.strip():
                    yield line
