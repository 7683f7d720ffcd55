"""`megaboard serve`: serve the page until a signal ends it."""

import argparse
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.notify import add_notify_option, configured_addresses
from app.cli.output import DONE, FAILED, WRONG_INPUT
from app.cli.secret_input import add_secret_option, take_secrets
from app.home import home_path, make_home, why_read_only
from app.private_file import PrivateFileError
from app.text import LANGUAGES, t
from app.web.audit import Audit
from app.web.binding import DEFAULT_PORT, Binding, ServerError
from app.web.gradio_settings import prepare_gradio
from app.web.identity import Identity, load_identity
from app.web.passwords import PasswordHash, load_hash, random_password, read_password, store_hash, write_password
from app.web.scrape_token import ScrapeToken

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from app.notifications.sender import Recipient
    from app.services import Services

PASSWORD_FILE_VARIABLE = "MEGABOARD_PASSWORD_FILE"  # noqa: S105 - the name of a variable


def add_arguments(name: str, parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options of `serve`."""
    add_binding(parser, lang)
    add_notify_option(parser, lang)
    add_secret_option(parser, lang)
    parser.add_argument("--metrics-token-file", type=Path, metavar="FILE", help=t(lang, "cli.serve.metrics_token.help"))
    parser.add_argument("--new-password", action="store_true", help=t(lang, "cli.serve.new_password.help"))
    parser.set_defaults(run=run)


def add_binding(parser: argparse.ArgumentParser, lang: str) -> None:
    """Add the options for the address to listen on and for the password."""
    defaults = Binding()
    option = parser.add_argument
    option("--host", default=defaults.host, help=t(lang, "cli.serve.host.help"))
    option("--port", type=int, default=DEFAULT_PORT, help=t(lang, "cli.serve.port.help", port=DEFAULT_PORT))
    option("--certificate", type=Path, metavar="FILE", help=t(lang, "cli.serve.certificate.help"))
    option("--key", type=Path, metavar="FILE", help=t(lang, "cli.serve.key.help"))
    option("--allowed-host", action="append", default=[], metavar="NAME", help=t(lang, "cli.serve.allowed_host.help"))
    option("--password-file", type=Path, metavar="FILE", help=t(lang, "cli.serve.password_file.help"))


def run(args: argparse.Namespace, lang: str) -> int:
    """Serve the page of the home folder."""
    try:
        binding = binding_of(args)
        home = make_home(home_path())
        if reason := why_read_only(home):
            print(t(lang, "cli.serve.read_only", path=home, reason=reason), file=sys.stderr, flush=True)
        take_secrets(args, lang, Audit(home))
        addresses = configured_addresses(args)
        token = ScrapeToken.read(args.metrics_token_file) if args.metrics_token_file else None
        with binding.listen() as listener:
            password = _password(home, args, lang)
            end = t(lang, "cli.serve.end")
            return serve_page(home, binding, listener, password, lang, end, addresses, scrape_token=token)
    except (ServerError, PrivateFileError) as error:
        return print_error(error, lang)


def binding_of(args: argparse.Namespace) -> Binding:
    """Return the binding that the options describe, checked. Raises ServerError."""
    binding = Binding(
        host=args.host, port=args.port, certificate=args.certificate, key=args.key, hosts=tuple(args.allowed_host)
    )
    binding.check()
    return binding


def password_from_file(args: argparse.Namespace, home: Path) -> PasswordHash | None:
    """Return the hash of the password in --password-file or MEGABOARD_PASSWORD_FILE, if one of them is given.

    The same password gets the same hash at every start. Raises PrivateFileError.
    """
    path = args.password_file or os.environ.get(PASSWORD_FILE_VARIABLE)
    return PasswordHash.of(read_password(Path(path)), salt=load_identity(home).salt) if path else None


def serve_page(
    home: Path,
    binding: Binding,
    listener: socket.socket,
    password: PasswordHash,
    lang: str,
    end: str,
    addresses: Sequence["Recipient"] = (),
    demo: Mapping[str, Any] | None = None,
    scrape_token: ScrapeToken | None = None,
) -> int:
    """Build the page, print its address and `end`, and serve requests until a signal ends it.

    `addresses` are notified of events of runs. `demo` is a job that the page offers as its first recipe. With
    `scrape_token`, Prometheus can read /metrics.
    """
    # This takes 5 to 10 s.
    print(t(lang, "cli.serve.building"), flush=True)
    prepare_gradio(home)
    from app.notifications.sender import Notifier
    from app.services import Services
    from app.web.server import serve
    from backend.runs.maintenance import Maintenance

    identity = load_identity(home)
    services = Services.open(home, recipients=[address.name for address in addresses], demo=demo)
    maintenance = Maintenance(services.retention, services.database.path, services.clock)
    notifier = Notifier(services.database, addresses, lang, clock=services.clock)
    try:
        app = _application(services, home, binding, identity, password, scrape_token)
        services.controller.start()
        maintenance.start()
        if addresses:
            notifier.start()
            print(t(lang, "cli.serve.messages", to=services.recipients))
        address = binding.address(listener.getsockname()[1], identity.host)
        lines = (t(lang, "cli.serve.address", address=address), end)
        serve(app, binding, listener, lambda: print(*lines, sep="\n", flush=True))
    finally:
        notifier.close()
        maintenance.close()
        services.close()
    return DONE


def _application(
    services: "Services",
    home: Path,
    binding: Binding,
    identity: Identity,
    password: PasswordHash,
    scrape_token: ScrapeToken | None,
) -> "ASGIApp":
    """Return the application: the pages of all languages and every route."""
    from app.monitor import prometheus
    from app.monitor.chat import chat_routes
    from app.monitor.evaluation import evaluation_routes
    from app.monitor.routes import routes as monitor_routes
    from app.web.server import create_app
    from app.web.shell import build
    from app.wizard.routes import routes

    routers = [routes(services), monitor_routes(services), chat_routes(services), evaluation_routes(services)]
    if scrape_token is not None:
        routers.append(prometheus.routes(services))
    return create_app(
        {lang: build(lang, services) for lang in LANGUAGES},
        home=home,
        password=password,
        audit=services.audit,
        binding=binding,
        identity=identity,
        routers=routers,
        scrape_token=scrape_token,
    )


def print_error(error: ServerError | PrivateFileError, lang: str) -> int:
    """Print what is wrong with the options and the fix, and return the exit status."""
    print(t(lang, f"cli.error.{error.code}", **error.values), file=sys.stderr)
    return FAILED if error.code == "cannot_listen" else WRONG_INPUT


def _password(home: Path, args: argparse.Namespace, lang: str) -> PasswordHash:
    """Return the hash of the given, the stored or a new password, and print which one it is."""
    given = password_from_file(args, home)
    stored = None if given or args.new_password else load_hash(home)
    if password_hash := given or stored:
        print(t(lang, "cli.serve.password.given" if given else "cli.serve.password.known"), flush=True)
        return password_hash
    if why_read_only(home):
        raise ServerError("password_not_kept", path=str(home))
    password = random_password()
    Audit(home).record("new_password")
    # Print it before it is stored: nobody could log in with a stored password that was not printed.
    print(password_text(lang, password, "cli.serve.password.made", partial(write_password, home)), flush=True)
    password_hash = PasswordHash.of(password)
    store_hash(home, password_hash)
    return password_hash


def password_text(lang: str, password: str, shown: str, write: Callable[[str], Path]) -> str:
    """Return what to print of a new password: the text of the key `shown`, or the private file that `write` made.

    Output that is not a terminal is often a log file, which must not contain a password.
    """
    if sys.stdout.isatty():
        return t(lang, shown, password=password)
    return t(lang, "cli.serve.password.file", path=write(password))
