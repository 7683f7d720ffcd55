"""`megaboard notify`: a trial message to every address, to see that they are right."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.audit import Audit
from app.cli_output import DONE, FAILED, WRONG_INPUT, printable
from app.home import home_path, make_home
from app.i18n import t
from app.private_file import PrivateFileError

if TYPE_CHECKING:
    from app.messages.addresses import Address

VARIABLE = "MEGABOARD_NOTIFY_FILE"


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Options of `notify`."""
    add_notify_option(parser, lang)
    parser.set_defaults(run=run)


def add_notify_option(parser: argparse.ArgumentParser, lang: str) -> None:
    """--notify-file, for whoever sends messages."""
    parser.add_argument("--notify-file", type=Path, metavar="FILE", help=t(lang, "cli.notify_file.help"))


def run(chosen: argparse.Namespace, lang: str) -> int:
    """Send it, and say of every address whether it was taken."""
    from app.messages import words

    try:
        places = given_addresses(chosen)
    except PrivateFileError as error:
        print(t(lang, f"cli.error.{error.code}", **error.values), file=sys.stderr)
        return WRONG_INPUT
    if not places:
        print(t(lang, "cli.error.message_addresses_unnamed", variable=VARIABLE), file=sys.stderr)
        return WRONG_INPUT
    Audit(make_home(home_path())).record("notify", to=[place.name for place in places])
    message, status = words.trial(lang), DONE
    for place in places:
        reason = place.send(message.title, message.body, is_bad=message.is_bad)
        if reason is None:
            print(t(lang, "cli.notify.sent", to=place.name), flush=True)
        else:
            print(printable(t(lang, "cli.notify.failed", to=place.name, reason=reason)), file=sys.stderr, flush=True)
            status = FAILED
    return status


def given_addresses(chosen: argparse.Namespace) -> "list[Address]":
    """Those of --notify-file or MEGABOARD_NOTIFY_FILE; none where neither names a file. PrivateFileError."""
    path = chosen.notify_file or os.environ.get(VARIABLE)
    if not path:
        return []
    # It takes half a second.
    from app.messages.addresses import read_addresses

    return read_addresses(Path(path))
