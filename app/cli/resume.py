"""`megaboard resume`: start the next attempt of a stopped, failed or lost run."""

import argparse

from app.cli.common import accepted_warnings, add_warnings_option, find_run, open_services, wait_for_end
from app.cli.notify import add_notify_option, addresses_to_notify, notifying
from app.cli.output import DONE, number, table
from app.cli.secret_input import add_secret_option, refuse_in_queue, take_secrets, with_passphrases
from app.services import Services
from app.text import t


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `resume`."""
    option = parser.add_argument
    option("run_id", metavar="RUN", help=t(lang, "cli.run.help"))
    option("--checkpoint", type=int, metavar="STEP", help=t(lang, "cli.resume.checkpoint.help"))
    option("--list", action="store_true", help=t(lang, "cli.resume.list.help"))
    option("--queue", action="store_true", help=t(lang, "cli.queue_option.help"))
    option("--wait", action="store_true", help=t(lang, "cli.launch.wait.help"))
    add_notify_option(parser, lang)
    add_warnings_option(parser, lang)
    add_secret_option(parser, lang)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, lang: str) -> int:
    """Resume a run. Returns when every node has reported its start, or with --wait when the run has ended."""
    refuse_in_queue(args)
    addresses = addresses_to_notify(args, stays=args.wait)
    with open_services() as services, notifying(services, addresses, lang):
        run = find_run(services, args.run_id)
        take_secrets(args, lang, services.audit, run=run)
        if args.list:
            _print_checkpoints(services, run, lang)
            return DONE
        resume = services.controller.resume
        options = {"checkpoint": args.checkpoint, "queue": args.queue, "accepted_warnings": accepted_warnings(args)}
        with_passphrases(lang, services.audit, lambda: resume(run, **options))
        print(_result_text(services, run, lang, queue=args.queue), flush=True)
        return wait_for_end(services, run, lang) if args.wait else DONE


def _result_text(services: Services, run: str, lang: str, *, queue: bool) -> str:
    if queue:
        return t(lang, "cli.queued", run=run)
    snapshot = services.controller.snapshot(run)
    values = {"run": run, "attempt": snapshot.attempt, "step": snapshot.checkpoint_step}
    return t(lang, "cli.resumed" if snapshot.checkpoint_step else "cli.resumed.start", **values)


def _print_checkpoints(services: Services, run: str, lang: str) -> None:
    checkpoints = with_passphrases(lang, services.audit, lambda: services.controller.checkpoints(run))
    if not checkpoints.steps:
        print(t(lang, "cli.resume.none", folder=checkpoints.folder))
        return
    rows = []
    for step in reversed(checkpoints.steps):
        flaw = checkpoints.flaws.get(step)
        kind = "complete" if flaw is None else "damaged" if flaw.damaged else "incomplete"
        detail = "" if flaw is None else t(lang, "cli.resume.flaw", rank=flaw.rank, file=flaw.file)
        rows.append([number(step), t(lang, f"cli.resume.{kind}"), detail])
    head = [t(lang, f"cli.resume.{column}") for column in ("step", "state", "lacks")]
    print(table(head, rows, left_columns={1, 2}))
