"""The command line `megaboard`. Only the module of the given command is imported."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from itertools import pairwise

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
    "pull": "app.cli.pull",
    "install": "app.cli.install",
    "wheels": "app.cli.wheels",
    "download": "app.cli.download",
    "benchmark": "app.cli.calibrate",
    "launch": "app.cli.launch",
    "watch": "app.cli.watch",
    "status": "app.cli.status",
    "metrics": "app.cli.metrics",
    "label": "app.cli.label",
    "logs": "app.cli.logs",
    "stop": "app.cli.stop",
    "resume": "app.cli.resume",
    "queue": "app.cli.queue_runs",
    "report": "app.cli.report",
    "export": "app.cli.export",
    "nodes": "app.cli.nodes",
    "storage": "app.cli.storage",
    "delete": "app.cli.delete",
    "calibrate": "app.cli.calibrate",
    "notify": "app.cli.notify",
}
OLD_NAMES = {"probe": "benchmark"}
"""Old name of a command -> its name. Old names work, and no help lists them."""
DEFAULT = "serve"
_NOT_INPUT = (
    "home_unusable",
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
"""Prefixes of problems that do not come from the input, but from this machine's disk or from another user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 the work failed, 2 the input is wrong."""
    words = _with_new_name(sys.argv[1:] if arguments is None else arguments)
    lang = _language(words)
    name = next((word for word in words if word in COMMANDS), None)
    is_bare = not words or words[0].startswith("-")
    if name is None and is_bare and not {"-h", "--help", "--version"} & set(words):
        words, name = [DEFAULT, *words], DEFAULT
    args = _parser(lang, name).parse_args(words)
    _log_to_stderr()
    escape_unencodable_output()
    try:
        status = _status(args, lang)
        print(end="", flush=True)
        return status
    except OSError as error:
        discard_output()
        # A reader that closed the pipe (`| head`) needs no message.
        if not isinstance(error, BrokenPipeError):
            reason = ": ".join(filter(None, (error.filename and str(error.filename), error.strerror or str(error))))
            print_problems(lang, [Problem(code="system_refused", values={"reason": reason})])
        return FAILED
    except KeyboardInterrupt:
        return 130


def _with_new_name(words: Sequence[str]) -> list[str]:
    """Return the words, with an old name of the command replaced. The command is the first word that names one."""
    at = next((at for at, word in enumerate(words) if word in COMMANDS or word in OLD_NAMES), len(words))
    return [*words[:at], *(OLD_NAMES.get(word, word) for word in words[at : at + 1]), *words[at + 1 :]]


def _status(args: argparse.Namespace, lang: str) -> int:
    """Run the command and return its exit status. Print its problems; with --json also on standard output."""
    try:
        return int(args.run(args, args.lang or lang))
    except PrivateFileError as error:
        print(t(lang, f"cli.error.{error.code}", **error.values), file=sys.stderr)
        return WRONG_INPUT
    except ProblemsError as error:
        problems = error.problems
        # Problems without an error mean that there is no estimate; the input is not wrong.
        failed = not errors(problems) or any(
            problem.node or problem.code.startswith(_NOT_INPUT) for problem in problems
        )
    except Exception as error:
        # A node's error has an attribute `problem`. Its class is not imported: most commands need no nodes.
        problem = getattr(error, "problem", None)
        if not isinstance(problem, Problem):
            raise
        problems, failed = (problem,), True
    print_problems(lang, problems)
    if getattr(args, "json", False):
        print_json({"problems": [render_problem(lang, problem) for problem in problems]})
    return FAILED if failed else WRONG_INPUT


def _parser(lang: str, name: str | None) -> argparse.ArgumentParser:
    """Return a parser with all commands, and the options of the command `name`."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--lang", choices=LANGUAGES, default=None, help=t(lang, "cli.lang.help"))
    parser = argparse.ArgumentParser(prog="megaboard", description=t(lang, "cli.description"), parents=[common])
    parser.add_argument("--version", action="version", version=f"megaboard {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, module in COMMANDS.items():
        text = t(lang, f"cli.{command}.help")
        # SUPPRESS: a default here would overwrite a `--lang` before the command.
        sub = commands.add_parser(command, help=text, description=text)
        sub.add_argument("--lang", choices=LANGUAGES, default=argparse.SUPPRESS, help=t(lang, "cli.lang.help"))
        if command == name:
            importlib.import_module(module).add_arguments(command, sub, lang)
    return parser


def _language(arguments: Sequence[str]) -> str:
    """Return the language of --lang, of the terminal, or English. The parser's help texts need it before parsing."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    options = [value for word, value in pairwise(words) if word == "--lang"]
    terminal = [os.environ.get(name, "")[:2] for name in ("LC_ALL", "LC_MESSAGES", "LANG")]
    return next((lang for lang in (*options, *terminal) if lang in LANGUAGES), LANGUAGES[0])


def _log_to_stderr() -> None:
    from backend.runs.redact import RedactingFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
