"""`megaboard status`: list all runs, or show one run."""

import argparse

from app.cli.common import find_run, open_services, print_cause, state_words, updated_snapshot, why_words
from app.cli.output import DONE, duration, number, print_json, table, to_json_data
from app.text import alerts, hangs, stragglers, t, unmonitored
from app.text.preparation import preparing_words
from app.text.scheduler import scheduler_words
from backend.runs.records import RunSnapshot, RunSummary


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `status`."""
    parser.add_argument("run_id", nargs="?", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Print all runs, or one run with its nodes and the cause of its failure."""
    with open_services() as services:
        if args.run_id:
            snapshot = updated_snapshot(services, find_run(services, args.run_id))
            if args.json:
                print_json(to_json_data(snapshot))
            else:
                _print_run(snapshot, services.clock(), lang)
            return DONE
        runs = services.controller.runs()
        if args.json:
            print_json([to_json_data(run) for run in runs])
            return DONE
        columns = ("run", "state", "step", "nodes", "engine", "why")
        rows = [
            [run.id, _state(lang, run), _steps(run), number(run.nodes), run.engine, why_words(lang, run)]
            for run in runs
        ]
        head = [t(lang, f"cli.status.{column}") for column in columns]
        print(table(head, rows, left_columns={0, 1, 5}) if rows else t(lang, "cli.status.none"))
        return DONE


def _print_run(snapshot: RunSnapshot, now: float, lang: str) -> None:
    print(t(lang, "cli.ended", run=snapshot.id, state=_state(lang, snapshot)), _steps(snapshot))
    if snapshot.attempt > 1 or snapshot.restarts_allowed:
        values = {"attempt": snapshot.attempt, "step": snapshot.checkpoint_step or 0}
        restarts = {"used": snapshot.restarts, "of": snapshot.restarts_allowed}
        print(t(lang, "cli.status.attempt", **values, **restarts))
    if snapshot.elapsed:
        key = "cli.status.elapsed.attempts" if snapshot.attempt > 1 else "cli.status.elapsed"
        print(t(lang, key, time=duration(lang, snapshot.elapsed.at(now)), count=snapshot.attempt))
    if snapshot.source:
        run, step = snapshot.source
        print(t(lang, "cli.status.source", run=run, step=step))
    if snapshot.scheduler:
        print(scheduler_words(lang, snapshot.scheduler))
    if snapshot.preparing:
        print(preparing_words(snapshot.preparing, lang))
    if snapshot.step_s and not snapshot.state.is_final:
        tokens, eta = number(snapshot.tokens_per_s, 0), duration(lang, None if snapshot.standstill else snapshot.eta_s)
        print(t(lang, "cli.status.speed", step_s=number(snapshot.step_s), tokens=tokens, eta=eta))
    for findings in (unmonitored, hangs, stragglers, alerts):
        for line in findings.lines(snapshot, lang):
            print(line)
    head = [t(lang, f"cli.status.{column}") for column in ("node", "state", "heartbeat", "processes")]
    rows = [
        [f"{node.rank} {node.address}", node.state, number(node.heartbeat_age_s, 0), number(node.members)]
        for node in snapshot.nodes
    ]
    if rows:
        print(table(head, rows))
    print_cause(snapshot, lang)


def _steps(run: RunSnapshot | RunSummary) -> str:
    return f"{run.step}/{run.total_steps or '-'}" if run.step is not None else "-"


def _state(lang: str, run: RunSnapshot | RunSummary) -> str:
    """Return the state of a run, with its place in the queue."""
    state = state_words(lang, run.state)
    return state if run.queue_place is None else t(lang, "cli.status.queued", state=state, place=run.queue_place)
