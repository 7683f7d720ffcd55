"""The command line: one subcommand a word, each imported only when it is asked for."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from app.cli.output import FAILED, WRONG_INPUT, discard_output, escape_unencodable_output, print_json, print_problems
from app.private_file import PrivateFileError
from app.text import LANGUAGES, render_problem, t
from backend import __version__
from backend.job.problems import Problem, ProblemsError, errors

COMMANDS = {
    "serve": "app.cli.serve",
    "demo": "app.cli.demo",
    "estimate": "app.cli.plan",
    "plan": "app.cli.plan",
    "render": "app.cli.render",
    "model": "app.cli.model",
    "import": "app.cli.import_yaml",
    "preset": "app.cli.preset",
    "check": "app.cli.check",
    "copy": "app.cli.copy_files",
    "probe": "app.cli.calibrate",
    "launch": "app.cli.launch",
    "watch": "app.cli.watch",
    "status": "app.cli.status",
    "logs": "app.cli.logs",
    "stop": "app.cli.stop",
    "resume": "app.cli.resume",
    "queue": "app.cli.queue_runs",
    "export": "app.cli.export",
    "storage": "app.cli.storage",
    "delete": "app.cli.delete",
    "calibrate": "app.cli.calibrate",
    "notify": "app.cli.notify",
}
DEFAULT = "serve"
_NOT_TYPED = (
    "home_",
    "store_",
    "audit_",
    "stop_unrecorded",
    "save_unrecorded",
    "run_unreadable",
    "launch_stopped",
    "archive_failed",
    "delete_no_room",
    "no_room",
)
"""Problems of this machine's disk or of what somebody else did, not of what was typed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 the work failed, 2 the input is wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    lang = _language(given)
    name = next((word for word in given if word in COMMANDS), None)
    is_bare = not given or given[0].startswith("-")
    if name is None and is_bare and not {"-h", "--help", "--version"} & set(given):
        given, name = [DEFAULT, *given], DEFAULT
    args = _parser(lang, name).parse_args(given)
    _log_to_stderr()
    escape_unencodable_output()
    try:
        status = _status(args, lang)
        print(end="", flush=True)
        return status
    except OSError as error:
        discard_output()
        # The reader who went away (`| head`) needs no words.
        if not isinstance(error, BrokenPipeError):
            reason = ": ".join(filter(None, (error.filename and str(error.filename), error.strerror or str(error))))
            print_problems(lang, [Problem(code="system_refused", values={"reason": reason})])
        return FAILED
    except KeyboardInterrupt:
        return 130


def _status(args: argparse.Namespace, lang: str) -> int:
    """Run the command; what it refuses or a node says is told, with --json on standard output too."""
    try:
        return int(args.run(args, args.lang or lang))
    except PrivateFileError as error:
        print(t(lang, f"cli.error.{error.code}", **error.values), file=sys.stderr)
        return WRONG_INPUT
    except ProblemsError as error:
        problems = error.problems
        # Without an error nothing is wrong with the input: there is no estimate for it.
        failed = not errors(problems) or any(one.node or one.code.startswith(_NOT_TYPED) for one in problems)
    except Exception as error:
        # A node's error carries its problem; it is not imported for commands that need none.
        problem = getattr(error, "problem", None)
        if not isinstance(problem, Problem):
            raise
        problems, failed = (problem,), True
    print_problems(lang, problems)
    if getattr(args, "json", False):
        print_json({"problems": [render_problem(lang, problem) for problem in problems]})
    return FAILED if failed else WRONG_INPUT


def _parser(lang: str, name: str | None) -> argparse.ArgumentParser:
    """The parser with the options of the one command that is asked for, and the names of the others."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--lang", choices=LANGUAGES, default=None, help=t(lang, "cli.lang.help"))
    parser = argparse.ArgumentParser(prog="megaboard", description=t(lang, "cli.description"), parents=[common])
    parser.add_argument("--version", action="version", version=f"megaboard {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for one, module in COMMANDS.items():
        words = t(lang, f"cli.{one}.help")
        # SUPPRESS: a default here would overwrite what `--lang` before the command said.
        sub = commands.add_parser(one, help=words, description=words)
        sub.add_argument("--lang", choices=LANGUAGES, default=argparse.SUPPRESS, help=t(lang, "cli.lang.help"))
        if one == name:
            importlib.import_module(module).add_arguments(one, sub, lang)
    return parser


def _language(given: Sequence[str]) -> str:
    """--lang, else the terminal's language, else English; read before parsing because help is in it too."""
    words = [word for argument in given for word in argument.split("=", 1)]
    asked = [after for word, after in pairwise(words) if word == "--lang"]
    of_terminal = [os.environ.get(name, "")[:2] for name in ("LC_ALL", "LC_MESSAGES", "LANG")]
    return next((one for one in (*asked, *filter(None, of_terminal)) if one in LANGUAGES), LANGUAGES[0])


def _log_to_stderr() -> None:
    from backend.runs.redact import RedactingFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def run() -> NoReturn:
    """The `megaboard` command."""
    sys.exit(main())


if __name__ == "__main__":
    run()
