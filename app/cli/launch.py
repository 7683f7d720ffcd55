"""`megaboard launch`: a job file becomes a run, now or when its nodes are free."""

import argparse

from app.cli.common import (
    accepted_warnings,
    add_source_option,
    add_warnings_option,
    find_source,
    launchable,
    opened_services,
    preflight,
    wait_for_end,
)
from app.cli.copy_files import copy_missing
from app.cli.host_keys import add_host_key_option
from app.cli.notify import add_notify_option, addresses_to_tell, telling
from app.cli.output import DONE
from app.cli.secret_input import add_secret_option, refuse_in_queue, take_secrets, unlocked
from app.text import t
from backend.runs.api import RESTARTS
from backend.runs.states import RunState


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `launch`."""
    option = parser.add_argument
    option("file", metavar="FILE", help=t(lang, "cli.file.help"))
    add_host_key_option(parser, lang)
    add_source_option(parser, lang)
    add_secret_option(parser, lang)
    option("--wait", action="store_true", help=t(lang, "cli.launch.wait.help"))
    add_notify_option(parser, lang)
    option("--queue", action="store_true", help=t(lang, "cli.queue_option.help"))
    option("--restarts", type=int, default=RESTARTS, help=t(lang, "cli.restarts.help", default=RESTARTS))
    option("--token", help=t(lang, "cli.token.help"))
    option("--copy-missing", action="store_true", help=t(lang, "cli.copy_missing.help"))
    add_warnings_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Launch; returns when every node has reported that it started, or with --wait when the run has ended."""
    checked = launchable(args.file, lang)
    refuse_in_queue(args)
    places = addresses_to_tell(args, stays=args.wait)
    with opened_services() as services, telling(services, places, lang):
        take_secrets(args, lang, services.audit, job=checked.job.name)
        if args.accept_host_key or args.copy_missing:
            report = preflight(services, checked, args.accept_host_key, lang)
            if args.copy_missing:
                copy_missing(services, checked.job, report, lang)
        wishes = {"queue": args.queue, "token": args.token, "restarts": args.restarts}
        wishes |= {"source": find_source(services, args.source), "accepted_warnings": accepted_warnings(args)}
        run = unlocked(lang, services.audit, lambda: services.controller.launch(checked, **wishes))
        # With a token it may be a run that was already there.
        waits = services.controller.snapshot(run).state is RunState.QUEUED
        print(t(lang, "cli.queued" if waits else "cli.launched", run=run, nodes=checked.job.cluster.nodes), flush=True)
        return wait_for_end(services, run, lang) if args.wait else DONE
