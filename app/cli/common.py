"""What the commands about runs share: the home folder's services, a job to launch, a run by a part of its id.

They work on the same home folder as the page. Whoever asks about an unfinished run also collects what its nodes have
written since, so that no server has to be up.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from app.cli.host_keys import accepted
from app.cli.output import DONE, FAILED, print_problems
from app.home import home_path, make_home
from app.jobfile import read_job, refuse_errors
from app.services import Services
from app.text import render_problem, t
from backend.engines import CheckedJob, check_all
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import PreflightReport
from backend.runs.records import RunSnapshot, RunSummary
from backend.runs.states import RunState

REFRESH_S = 3.0
"""How long a question about an unfinished run may take to collect what is new."""


@contextmanager
def opened_services() -> Iterator[Services]:
    """The home folder's services, closed afterwards."""
    services = Services.open(make_home(home_path()))
    try:
        yield services
    finally:
        services.close()


def launchable(source: str, lang: str) -> CheckedJob:
    """The job in a file, with its warnings printed; ProblemsError when it cannot be launched, whatever the nodes."""
    job, problems = read_job(source, home_path())
    try:
        checked = CheckedJob(job)
    except ProblemsError:
        refuse_errors([*problems, *check_all(job)])  # the warnings too
        raise
    print_problems(lang, [*problems, *checked.remarks])
    return checked


def preflight(services: Services, job: CheckedJob, fingerprints: list[str], lang: str) -> PreflightReport:
    """The nodes' check, with the host keys accepted whose fingerprint is given."""
    return accepted(services, services.controller.preflight, job, fingerprints, lang)


def add_source_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """`--from`."""
    parser.add_argument("--from", dest="source", metavar="RUN[:STEP]", help=t(lang, "cli.from.help"))


def find_source(services: Services, given: str | None) -> tuple[str, int | None] | None:
    """What that says: a run, and the step of its checkpoint where one is named. ProblemsError."""
    if given is None:
        return None
    name, _, step = given.partition(":")
    if step and not step.isdigit():
        values = {"value": given, "pattern": "RUN:STEP", "format": "source"}
        raise ProblemsError([Problem(code="bad_format", field="--from", values=values)])
    return find_run(services, name), int(step) if step else None


def add_warnings_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """`--accept-warnings`."""
    parser.add_argument("--accept-warnings", action="store_true", help=t(lang, "cli.accept_warnings.help"))


def accepted_warnings(args: argparse.Namespace) -> tuple[()] | None:
    """What that says: all, whatever there are, or none."""
    return None if args.accept_warnings else ()


def find_run(services: Services, given: str) -> str:
    """The id of the one run that `given` is, or is a part of; what an unset variable leaves is a part of none."""
    ids = [one.id for one in services.controller.runs()]
    found = [one for one in ids if one == given] or [one for one in ids if given and given in one]
    if len(found) > 1:
        raise ProblemsError([Problem(code="ambiguous_run", values={"given": given, "runs": found})])
    if not found:
        with services.database.read() as reader:
            reader.refuse_deleted(given)
        raise ProblemsError([Problem(code="unknown_run", values={"run": given})])
    return found[0]


def fresh(services: Services, run: str) -> RunSnapshot:
    """A run's snapshot, with what its nodes have written since."""
    snapshot = services.controller.snapshot(run)
    if snapshot.state.is_final or snapshot.state is RunState.QUEUED:
        return snapshot
    services.controller.wait(run, REFRESH_S)
    return services.controller.snapshot(run)


def wait_for_end(services: Services, run: str, lang: str) -> int:
    """Watch a run to its end, which is told; a queued one is started here when its turn comes."""
    state = services.controller.wait(run, takes_turn=True)
    print(t(lang, "cli.ended", run=run, state=state_words(lang, state)))
    print_cause(services.controller.snapshot(run), lang)
    return DONE if state is RunState.FINISHED else FAILED


def print_cause(snapshot: RunSnapshot, lang: str) -> None:
    """Why a run failed, where it did."""
    if snapshot.cause:
        print_problems(lang, [snapshot.cause, *snapshot.warnings])


def why_words(lang: str, run: RunSummary) -> str:
    """What a run waits for, or why it failed; empty where there is nothing to say."""
    return " ".join(render_problem(lang, run.why)["message"].split()) if run.why else ""


def state_words(lang: str, state: RunState) -> str:
    """A state as the page calls it."""
    return t(lang, f"monitor.state.{state.value}")
