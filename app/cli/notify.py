"""`megaboard notify`: send a test notification to every address."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.output import DONE, FAILED, WRONG_INPUT, printable
from app.home import home_path, make_home
from app.text import t
from app.web.audit import Audit
from backend.job.problems import Problem, ProblemsError

if TYPE_CHECKING:
    from app.notifications.addresses import Address
    from app.services import Services

VARIABLE = "MEGABOARD_NOTIFY_FILE"


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `notify`."""
    add_notify_option(parser, lang)
    parser.set_defaults(run=run)


def add_notify_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """Add `--notify-file`."""
    parser.add_argument("--notify-file", type=Path, metavar="FILE", help=t(lang, "cli.notify_file.help"))


def run(args: argparse.Namespace, lang: str) -> int:
    """Send the notification, and print for every address whether the service accepted it."""
    from app.notifications import texts

    addresses = configured_addresses(args)
    if not addresses:
        print(t(lang, "cli.error.message_addresses_unnamed", variable=VARIABLE), file=sys.stderr)
        return WRONG_INPUT
    Audit(make_home(home_path())).record("notify", to=[address.name for address in addresses])
    message, status = texts.test_notification(lang), DONE
    for address in addresses:
        reason = address.send(message.title, message.body, is_bad=message.is_bad)
        if reason is None:
            print(t(lang, "cli.notify.sent", to=address.name), flush=True)
        else:
            print(printable(t(lang, "cli.notify.failed", to=address.name, reason=reason)), file=sys.stderr, flush=True)
            status = FAILED
    return status


def configured_addresses(args: argparse.Namespace) -> "list[Address]":
    """Return the addresses in --notify-file or MEGABOARD_NOTIFY_FILE, if one of them is given.

    Raises PrivateFileError.
    """
    path = args.notify_file or os.environ.get(VARIABLE)
    if not path:
        return []
    # This import takes half a second.
    from app.notifications.addresses import read_addresses

    return read_addresses(Path(path))


def addresses_to_notify(args: argparse.Namespace, *, stays: bool) -> "list[Address]":
    """Return the addresses that a command notifies while it waits (`stays`).

    Raises PrivateFileError. Raises ProblemsError for --notify-file if the command does not wait.
    """
    if stays:
        return configured_addresses(args)
    if args.notify_file:
        raise ProblemsError([Problem(code="notify_without_wait", field="--notify-file")])
    return []


@contextmanager
def notifying(services: "Services", addresses: "Sequence[Address]", lang: str) -> Iterator[None]:
    """Notify `addresses` of events of runs, as a server does. The last notifications are sent at the end."""
    if not addresses:
        yield
        return
    from app.notifications.sender import Notifier

    notifier = Notifier(services.database, addresses, lang, clock=services.clock)
    notifier.start()
    print(t(lang, "cli.serve.messages", to=[address.name for address in addresses]), flush=True)
    try:
        yield
    finally:
        notifier.close(sends_rest=True)
