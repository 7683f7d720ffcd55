"""Functions that the commands about runs share: open the services, read a job to launch, find a run by its id.

The commands work on the same home folder as the page. A command that shows an unfinished run also collects the new
records of its nodes, so no server has to run.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.cli.host_keys import ask_with_keys
from app.cli.output import DONE, FAILED, print_problems, printable
from app.home import home_path, make_home
from app.jobfile import read_job, refuse_errors
from app.services import Services
from app.text import render_problem, t
from app.text.causes import evidence_lines
from backend.engines import CheckedJob, check_all
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import PreflightReport
from backend.runs.records import RunSnapshot, RunSummary
from backend.runs.states import RunState

REFRESH_S = 3.0
"""Longest time to collect new records of an unfinished run."""


@contextmanager
def open_services() -> Iterator[Services]:
    """Open the services of the home folder, and close them afterwards."""
    services = Services.open(make_home(home_path()))
    try:
        yield services
    finally:
        services.close()


def read_launchable_job(source: str, lang: str) -> CheckedJob:
    """Return the checked job in a file, and print its warnings.

    Raises ProblemsError if it cannot be launched on any nodes.
    """
    job, problems = read_job(source, home_path())
    try:
        checked = CheckedJob(job)
    except ProblemsError:
        refuse_errors([*problems, *check_all(job)])  # the warnings too
        raise
    print_problems(lang, [*problems, *checked.remarks])
    return checked


def preflight(services: Services, job: CheckedJob, fingerprints: list[str], lang: str) -> PreflightReport:
    """Run the preflight, and accept the host keys with these fingerprints."""
    return ask_with_keys(services, services.controller.preflight, job, fingerprints, lang)


def add_source_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """Add `--from`."""
    parser.add_argument("--from", dest="source", metavar="RUN[:STEP]", help=t(lang, "cli.from.help"))


def find_source(services: Services, option: str | None) -> tuple[str, int | None] | None:
    """Return the run and the checkpoint step that `--from` names; the step may be None. Raises ProblemsError."""
    if option is None:
        return None
    name, _, step = option.partition(":")
    if step and not step.isdigit():
        values = {"value": option, "pattern": "RUN:STEP", "format": "source"}
        raise ProblemsError([Problem(code="bad_format", field="--from", values=values)])
    return find_run(services, name), int(step) if step else None


def add_warnings_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """Add `--accept-warnings`."""
    parser.add_argument("--accept-warnings", action="store_true", help=t(lang, "cli.accept_warnings.help"))


def accepted_warnings(args: argparse.Namespace) -> tuple[()] | None:
    """Return which warnings of the preflight are accepted: None for all, an empty tuple for none."""
    return None if args.accept_warnings else ()


def find_run(services: Services, text: str) -> str:
    """Return the id of the run whose id is `text` or contains it. An empty string matches no run.

    Raises ProblemsError.
    """
    ids = [run.id for run in services.controller.runs()]
    matches = [run for run in ids if run == text] or [run for run in ids if text and text in run]
    if len(matches) > 1:
        raise ProblemsError([Problem(code="ambiguous_run", values={"given": text, "runs": matches})])
    if not matches:
        with services.database.read() as reader:
            reader.refuse_deleted(text)
        raise ProblemsError([Problem(code="unknown_run", values={"run": text})])
    return matches[0]


def updated_snapshot(services: Services, run: str) -> RunSnapshot:
    """Return a run's snapshot after collecting the new records of its nodes."""
    snapshot = services.controller.snapshot(run)
    if snapshot.state.is_final or snapshot.state is RunState.QUEUED:
        return snapshot
    services.controller.wait(run, REFRESH_S)
    return services.controller.snapshot(run)


def wait_for_end(services: Services, run: str, lang: str) -> int:
    """Wait for the end of a run and print it. A queued run is started by this process when its turn comes."""
    state = services.controller.wait(run, takes_turn=True)
    print(t(lang, "cli.ended", run=run, state=state_words(lang, state)))
    print_cause(services.controller.snapshot(run), lang)
    return DONE if state is RunState.FINISHED else FAILED


def print_cause(snapshot: RunSnapshot, lang: str) -> None:
    """Print why a run failed, if it failed."""
    if snapshot.cause:
        print_problems(lang, [snapshot.cause, *snapshot.warnings])
        for line in evidence_lines(snapshot.cause, lang):
            print(printable(f"  {line}"), file=sys.stderr)


def why_words(lang: str, run: RunSummary) -> str:
    """Return why a run waits or failed, on one line; empty for any other run."""
    return " ".join(render_problem(lang, run.why)["message"].split()) if run.why else ""


def state_words(lang: str, state: RunState) -> str:
    """Return the name of a state, as the page shows it."""
    return t(lang, f"monitor.state.{state.value}")
