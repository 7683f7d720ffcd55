"""`megaboard queue`: the runs that wait for their nodes, their order, and a run put back among them."""

import argparse
from typing import get_args

from app.cli.common import accepted_warnings, add_warnings_option, find_run, opened_services, why_words
from app.cli.output import DONE, number, table
from app.text import t
from backend.runs.api import Move


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `queue`."""
    parser.add_argument("run_id", nargs="?", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("where", nargs="?", choices=get_args(Move), help=t(lang, "cli.queue.where.help"))
    add_warnings_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Put a run that has ended back, and move one, where that is asked; then the queue as it is."""
    with opened_services() as services:
        if args.run_id:
            run = find_run(services, args.run_id)
            if services.controller.snapshot(run).queue_place is None:
                services.controller.resume(run, queue=True, accepted_warnings=accepted_warnings(args))
            if args.where:
                services.controller.move(run, args.where)
        waiting = {one.queue_place: one for one in services.controller.runs() if one.queue_place is not None}
        rows = [
            [number(place), one.id, number(one.nodes), one.engine, why_words(lang, one)]
            for place, one in sorted(waiting.items())
        ]
        head = [t(lang, f"cli.status.{column}") for column in ("place", "run", "nodes", "engine", "why")]
        print(table(head, rows, words={1, 4}) if rows else t(lang, "cli.queue.none"))
        return DONE
