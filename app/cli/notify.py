"""`megaboard notify`: a trial message to every address, to see that they are right."""

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
    """Options of `notify`."""
    add_notify_option(parser, lang)
    parser.set_defaults(run=run)


def add_notify_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """--notify-file, for whoever sends messages."""
    parser.add_argument("--notify-file", type=Path, metavar="FILE", help=t(lang, "cli.notify_file.help"))


def run(args: argparse.Namespace, lang: str) -> int:
    """Send it, and say of every address whether it was taken."""
    from app.notifications import texts

    places = given_addresses(args)
    if not places:
        print(t(lang, "cli.error.message_addresses_unnamed", variable=VARIABLE), file=sys.stderr)
        return WRONG_INPUT
    Audit(make_home(home_path())).record("notify", to=[place.name for place in places])
    message, status = texts.trial(lang), DONE
    for place in places:
        reason = place.send(message.title, message.body, is_bad=message.is_bad)
        if reason is None:
            print(t(lang, "cli.notify.sent", to=place.name), flush=True)
        else:
            print(printable(t(lang, "cli.notify.failed", to=place.name, reason=reason)), file=sys.stderr, flush=True)
            status = FAILED
    return status


def given_addresses(args: argparse.Namespace) -> "list[Address]":
    """Those of --notify-file or MEGABOARD_NOTIFY_FILE; none where neither names a file. PrivateFileError."""
    path = args.notify_file or os.environ.get(VARIABLE)
    if not path:
        return []
    # It takes half a second.
    from app.notifications.addresses import read_addresses

    return read_addresses(Path(path))


def addresses_to_tell(args: argparse.Namespace, *, stays: bool) -> "list[Address]":
    """Those that a command tells while it waits. PrivateFileError; ProblemsError where it is given a file and ends."""
    if stays:
        return given_addresses(args)
    if args.notify_file:
        raise ProblemsError([Problem(code="notify_without_wait", field="--notify-file")])
    return []


@contextmanager
def telling(services: "Services", places: "Sequence[Address]", lang: str) -> Iterator[None]:
    """Meanwhile `places` are told of what happens to runs, as a server would tell them; the last of it at the end."""
    if not places:
        yield
        return
    from app.notifications.sender import Messenger

    messenger = Messenger(services.database, places, lang, clock=services.clock)
    messenger.start()
    print(t(lang, "cli.serve.messages", to=[place.name for place in places]), flush=True)
    try:
        yield
    finally:
        messenger.close(tells_all=True)
