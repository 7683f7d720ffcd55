"""`megaboard queue`: the runs that wait for their nodes, and their order."""

import argparse
from typing import get_args

from app.cli_output import DONE, number, table
from app.cli_run import find_run, opened_services
from app.i18n import t
from backend.jobs.queued import Move


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `queue`."""
    parser.add_argument("run_id", nargs="?", metavar="RUN", help=t(lang, "cli.run.help"))
    parser.add_argument("where", nargs="?", choices=get_args(Move), help=t(lang, "cli.queue.where.help"))
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace, lang: str) -> int:
    """Move a run where that is asked; then the queue as it is."""
    with opened_services() as services:
        if chosen.run_id and chosen.where:
            services.controller.move(find_run(services, chosen.run_id), chosen.where)
        waiting = sorted((one.queue_place, one) for one in services.controller.runs() if one.queue_place is not None)
        rows = [[number(place), one.id, number(one.nodes), one.engine] for place, one in waiting]
        head = [t(lang, f"cli.status.{column}") for column in ("place", "run", "nodes", "engine")]
        print(table(head, rows, words={1}) if rows else t(lang, "cli.queue.none"))
        return DONE
