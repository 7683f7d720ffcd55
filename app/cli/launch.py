"""`megaboard launch`: start a run of a job file, now or when its nodes are free."""

import argparse

from app.cli.common import (
    accepted_warnings,
    add_source_option,
    add_warnings_option,
    find_source,
    open_services,
    preflight,
    read_launchable_job,
    wait_for_end,
)
from app.cli.copy_files import copy_missing
from app.cli.host_keys import add_host_key_option
from app.cli.notify import add_notify_option, addresses_to_notify, notifying
from app.cli.output import DONE
from app.cli.secret_input import add_secret_option, refuse_in_queue, take_secrets, with_passphrases
from app.text import t
from backend.runs.api import RESTARTS
from backend.runs.states import RunState


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `launch`."""
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
    """Launch a run. Returns when every node has reported its start, or with --wait when the run has ended."""
    checked = read_launchable_job(args.file, lang)
    refuse_in_queue(args)
    addresses = addresses_to_notify(args, stays=args.wait)
    with open_services() as services, notifying(services, addresses, lang):
        take_secrets(args, lang, services.audit, job=checked.job.name)
        if args.accept_host_key or args.copy_missing:
            report = preflight(services, checked, args.accept_host_key, lang)
            if args.copy_missing:
                copy_missing(services, checked.job, report, lang)
        request = {"queue": args.queue, "token": args.token, "restarts": args.restarts}
        request |= {"source": find_source(services, args.source), "accepted_warnings": accepted_warnings(args)}
        run = with_passphrases(lang, services.audit, lambda: services.controller.launch(checked, **request))
        # A launch with a known token returns the existing run.
        queued = services.controller.snapshot(run).state is RunState.QUEUED
        print(t(lang, "cli.queued" if queued else "cli.launched", run=run, nodes=checked.job.cluster.nodes), flush=True)
        return wait_for_end(services, run, lang) if args.wait else DONE
