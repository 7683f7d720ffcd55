"""`megaboard status`: all runs, or one of them."""

import argparse

from app.cli.common import find_run, fresh, opened_services, print_cause, state_words, why_words
from app.cli.output import DONE, duration, number, plain, print_json, table
from app.text import alerts, hangs, stragglers, t, unmonitored
from app.text.preparation import preparing_words
from backend.runs.records import RunSnapshot, RunSummary


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `status`."""
    parser.add_argument("run_id", nargs="?", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("--json", action="store_true", help=t(lang, "cli.json.help"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """All runs, or one run with its nodes and why it failed."""
    with opened_services() as services:
        if args.run_id:
            snapshot = fresh(services, find_run(services, args.run_id))
            if args.json:
                print_json(plain(snapshot))
            else:
                _print_run(snapshot, services.clock(), lang)
            return DONE
        runs = services.controller.runs()
        if args.json:
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


def _print_run(snapshot: RunSnapshot, now: float, lang: str) -> None:
    print(t(lang, "cli.ended", run=snapshot.id, state=_place(lang, snapshot)), _steps(snapshot))
    if snapshot.attempt > 1 or snapshot.restarts_allowed:
        words = {"attempt": snapshot.attempt, "step": snapshot.checkpoint_step or 0}
        counts = {"used": snapshot.restarts, "of": snapshot.restarts_allowed}
        print(t(lang, "cli.status.attempt", **words, **counts))
    if snapshot.elapsed:
        which = "cli.status.elapsed.attempts" if snapshot.attempt > 1 else "cli.status.elapsed"
        print(t(lang, which, time=duration(lang, snapshot.elapsed.at(now)), count=snapshot.attempt))
    if snapshot.source:
        run, step = snapshot.source
        print(t(lang, "cli.status.source", run=run, step=step))
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


def _place(lang: str, run: RunSnapshot | RunSummary) -> str:
    """The state, and where in the queue it waits."""
    state = state_words(lang, run.state)
    return state if run.queue_place is None else t(lang, "cli.status.queued", state=state, place=run.queue_place)
