"""`megaboard check`, `copy`, `launch`, `status` and `stop`: runs without the page.

They work on the same home folder as the page. Whoever asks about an unfinished run also collects what its nodes have
written since, so that no server has to be up.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol, TypeVar

from app.cli_check import print_report, report_json
from app.cli_copy import copy_missing
from app.cli_output import DONE, FAILED, number, plain, print_json, print_problems, table
from app.cli_secrets import add_secret_option, refuse_in_queue, take_secrets, unlocked
from app.cli_stop import stop_unopened
from app.home import home_path, make_home
from app.i18n import render_problem, t
from app.jobfile import read_job, refuse_errors
from app.preparing_words import preparing_words
from app.services import Services
from backend.cluster.hostkeys import HostKey
from backend.engines import check_all
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.jobs.checkup import PreflightReport
from backend.jobs.copying import find_missing
from backend.jobs.records import RunSnapshot, RunSummary
from backend.jobs.restart import RESTARTS
from backend.jobs.states import RunState
from backend.jobs.store import StoreError

REFRESH_S = 3.0
"""How long a question about an unfinished run may take to collect what is new."""
STOP_WITHIN_S = 120.0


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of the command."""
    option = parser.add_argument
    if name in ("check", "copy", "launch"):
        option("file", metavar="FILE", help=t(lang, "cli.file.help"))
        accept = t(lang, "cli.accept.help")
        option("--accept-host-key", action="append", default=[], metavar="FINGERPRINT", help=accept)
    elif name == "status":
        option("run_id", nargs="?", metavar="RUN", help=t(lang, "cli.run.help"))
    else:
        option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    if name in ("check", "launch"):
        option("--from", dest="source", metavar="RUN[:STEP]", help=t(lang, "cli.from.help"))
    if name == "launch":
        add_secret_option(parser, lang)
        option("--wait", action="store_true", help=t(lang, "cli.launch.wait.help"))
        option("--queue", action="store_true", help=t(lang, "cli.queue_option.help"))
        option("--restarts", type=int, default=RESTARTS, help=t(lang, "cli.restarts.help", default=RESTARTS))
        option("--token", help=t(lang, "cli.token.help"))
        option("--copy-missing", action="store_true", help=t(lang, "cli.copy_missing.help"))
        add_warnings_option(parser, lang)
    if name == "stop":
        option("--save", action="store_true", help=t(lang, "cli.stop.save.help"))
        option("--job", metavar="FILE", help=t(lang, "cli.stop.job.help"))
    if name in ("check", "status"):
        option("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=COMMANDS[name])


def run_check(chosen: argparse.Namespace, lang: str) -> int:
    """Preflight: a line a check; 1 when something stands against a launch."""
    job = launchable(chosen.file, lang)
    with opened_services() as services:
        source = _source(services, chosen.source)
        report = preflight(services, job, chosen.accept_host_key, lang)
        if source is not None and not report.problems:
            report = _with_source(services, report, job, source)
    if chosen.json:
        print_json(report_json(report, job, lang))
    else:
        print_report(report, job, lang)
    return FAILED if report.problems else DONE


def run_copy(chosen: argparse.Namespace, lang: str) -> int:
    """Copy what nodes lack; 1 when something stands against a launch afterwards."""
    job = launchable(chosen.file, lang)
    with opened_services() as services:
        report = preflight(services, job, chosen.accept_host_key, lang)
        if find_missing(report.checks) is None:
            print(t(lang, "cli.copy.nothing"))
        else:
            copy_missing(services, job, report, lang)
            report = services.controller.preflight(job)
    print_problems(lang, report.problems)
    return FAILED if report.problems else DONE


def run_launch(chosen: argparse.Namespace, lang: str) -> int:
    """Launch; returns when every node has reported that it started, or with --wait when the run has ended."""
    job = launchable(chosen.file, lang)
    refuse_in_queue(chosen)
    with opened_services() as services:
        take_secrets(chosen, lang, services.audit, job=job.name)
        if chosen.accept_host_key or chosen.copy_missing:
            report = preflight(services, job, chosen.accept_host_key, lang)
            if chosen.copy_missing:
                copy_missing(services, job, report, lang)
        begin = services.controller.enqueue if chosen.queue else services.controller.launch
        source = _source(services, chosen.source)
        options = {"token": chosen.token, "restarts": chosen.restarts, "source": source}
        options["accepted_warnings"] = accepted_warnings(chosen)
        run = unlocked(lang, services.audit, lambda: begin(job, **options))
        words = {"run": run, "nodes": job.cluster.nodes}
        print(t(lang, "cli.queued" if chosen.queue else "cli.launched", **words), flush=True)
        return wait_for_end(services, run, lang) if chosen.wait else DONE


def add_warnings_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """`--accept-warnings`."""
    parser.add_argument("--accept-warnings", action="store_true", help=t(lang, "cli.accept_warnings.help"))


def accepted_warnings(chosen: argparse.Namespace) -> tuple[()] | None:
    """What that says: all, whatever there are, or none."""
    return None if chosen.accept_warnings else ()


def _source(services: Services, given: str | None) -> tuple[str, int | None] | None:
    """A run, and the step of its checkpoint where one is named. ProblemsError."""
    if given is None:
        return None
    name, _, step = given.partition(":")
    if step and not step.isdigit():
        raise ProblemsError(
            [Problem(code="bad_format", field="--from", values={"value": given, "pattern": "RUN:STEP"})]
        )
    return find_run(services, name), int(step) if step else None


def _with_source(
    services: Services, report: PreflightReport, job: Job, source: tuple[str, int | None]
) -> PreflightReport:
    """The report, with why the job cannot begin with the checkpoint."""
    try:
        services.controller.find_source(*source, job)
    except ProblemsError as error:
        return dataclasses.replace(report, problems=error.problems)
    return report


def wait_for_end(services: Services, run: str, lang: str) -> int:
    """Watch a run to its end, which is told; a queued one is started here when its turn comes."""
    state = services.controller.wait(run, takes_turn=True)
    print(t(lang, "cli.ended", run=run, state=_state(lang, state)))
    _print_cause(services.controller.snapshot(run), lang)
    return DONE if state is RunState.FINISHED else FAILED


def run_status(chosen: argparse.Namespace, lang: str) -> int:
    """All runs, or one run with its nodes and why it failed."""
    with opened_services() as services:
        if chosen.run_id:
            snapshot = fresh(services, find_run(services, chosen.run_id))
            if chosen.json:
                print_json(plain(snapshot))
            else:
                _print_run(snapshot, lang)
            return DONE
        runs = services.controller.runs()
        if chosen.json:
            print_json([plain(one) for one in runs])
            return DONE
        columns = ("run", "state", "step", "nodes", "engine", "why")
        rows = [
            [one.id, _place(lang, one), _steps(one), number(one.nodes), one.engine, why_words(lang, one)]
            for one in runs
        ]
        head = [t(lang, f"cli.status.{column}") for column in columns]
        print(table(head, rows, words={0, 1, 5}) if rows else t(lang, "cli.status.none"))
        return DONE


def run_stop(chosen: argparse.Namespace, lang: str) -> int:
    """Stop a run and wait for the nodes' proof that nothing of it is left."""
    try:
        services = Services.open(make_home(home_path()))
    except StoreError as why:
        raise stop_unopened(chosen, lang, why) from why
    with closing(services):
        run = find_run(services, chosen.run_id)
        services.controller.stop(run, save=chosen.save)
        state = services.controller.wait(run, STOP_WITHIN_S)
        snapshot = services.controller.snapshot(run)
        proved = sum(_is_empty(node) for node in snapshot.nodes)
        if not state.is_final or proved < len(snapshot.nodes):
            print(t(lang, "cli.stop.open", run=run))
            return FAILED
        words = {"run": run, "state": _state(lang, state), "proved": proved, "nodes": len(snapshot.nodes)}
        print(t(lang, "cli.stopped", **words))
        return DONE


COMMANDS: dict[str, Callable[[argparse.Namespace, str], int]] = {
    "check": run_check,
    "copy": run_copy,
    "launch": run_launch,
    "status": run_status,
    "stop": run_stop,
}


@contextmanager
def opened_services() -> Iterator[Services]:
    """The home folder's services, closed afterwards."""
    services = Services.open(make_home(home_path()))
    try:
        yield services
    finally:
        services.close()


def launchable(source: str, lang: str) -> Job:
    job, problems = read_job(source, home_path())
    found = [*problems, *check_all(job)]
    refuse_errors(found)
    print_problems(lang, found)
    return job


def preflight(services: Services, job: Job, fingerprints: list[str], lang: str) -> PreflightReport:
    return accepted(services, services.controller.preflight, job, fingerprints, lang)


class Asking(Protocol):
    """An answer of the nodes that may wait for their host keys."""

    @property
    def unknown_host_keys(self) -> tuple[HostKey, ...]: ...


A = TypeVar("A", bound=Asking)


def accepted(services: Services, ask: Callable[[Job], A], job: Job, fingerprints: list[str], lang: str) -> A:
    """The answer, with passphrases typed where they lack, and those host keys remembered whose fingerprint is given."""
    answer = unlocked(lang, services.audit, lambda: ask(job))
    keys = [key for key in answer.unknown_host_keys if key.fingerprint in fingerprints]
    if not keys:
        return answer
    services.controller.accept_host_keys(keys)
    return unlocked(lang, services.audit, lambda: ask(job))


def find_run(services: Services, given: str) -> str:
    """The id of the one run that `given` is, or is a part of."""
    ids = [one.id for one in services.controller.runs()]
    found = [one for one in ids if one == given] or [one for one in ids if given in one]
    if len(found) > 1:
        raise ProblemsError([Problem(code="ambiguous_run", values={"given": given, "runs": found})])
    if not found:
        raise ProblemsError([Problem(code="unknown_run", values={"run": given})])
    return found[0]


def why_words(lang: str, run: RunSummary) -> str:
    """What a run waits for, or why it failed; empty where there is nothing to say."""
    return " ".join(render_problem(lang, run.why)["message"].split()) if run.why else ""


def fresh(services: Services, run: str) -> RunSnapshot:
    """A run's snapshot, with what its nodes have written since."""
    snapshot = services.controller.snapshot(run)
    if snapshot.state.is_final or snapshot.state is RunState.QUEUED:
        return snapshot
    services.controller.wait(run, REFRESH_S)
    return services.controller.snapshot(run)


def _print_run(snapshot: RunSnapshot, lang: str) -> None:
    print(t(lang, "cli.ended", run=snapshot.id, state=_place(lang, snapshot)), _steps(snapshot))
    if snapshot.attempt > 1 or snapshot.restarts_allowed:
        words = {"attempt": snapshot.attempt, "step": snapshot.checkpoint_step or 0}
        counts = {"used": snapshot.restarts, "of": snapshot.restarts_allowed}
        print(t(lang, "cli.status.attempt", **words, **counts))
    if snapshot.source:
        run, step = snapshot.source
        print(t(lang, "cli.status.source", run=run, step=step))
    if snapshot.preparing:
        print(preparing_words(snapshot.preparing, lang))
    if snapshot.step_s and not snapshot.state.is_final:
        tokens, eta = number(snapshot.tokens_per_s, 0), number(snapshot.eta_s, 0)
        print(t(lang, "cli.status.speed", step_s=number(snapshot.step_s), tokens=tokens, eta=eta))
    head = [t(lang, f"cli.status.{column}") for column in ("node", "state", "heartbeat", "processes")]
    rows = [
        [f"{node.rank} {node.address}", node.state, number(node.heartbeat_age_s, 0), number(node.members)]
        for node in snapshot.nodes
    ]
    if rows:
        print(table(head, rows))
    _print_cause(snapshot, lang)


def _print_cause(snapshot: RunSnapshot, lang: str) -> None:
    if snapshot.cause:
        print_problems(lang, [snapshot.cause, *snapshot.warnings])


def _is_empty(node: Any) -> bool:
    proof = node.stop or node.exit
    return proof is not None and not proof.get("left")


def _steps(run: Any) -> str:
    return f"{run.step}/{run.total_steps or '-'}" if run.step is not None else "-"


def _place(lang: str, run: RunSnapshot | RunSummary) -> str:
    """The state, and where in the queue it waits."""
    state = _state(lang, run.state)
    return state if run.queue_place is None else t(lang, "cli.status.queued", state=state, place=run.queue_place)


def _state(lang: str, state: RunState) -> str:
    return t(lang, f"monitor.state.{state.value}")
