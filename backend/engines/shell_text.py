"""Text that the scripts share which start a job without Megaboard."""

import shlex
from collections.abc import Mapping


def path_word(path: str) -> str:
    """Return a path as one word of a shell command. A leading ~ stays the home folder of the user who runs it."""
    return '"$HOME"/' + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def program_words(path: str) -> str:
    """Return the words with which `env` starts a program.

    env reads a word that contains = as a variable; nice reads it as a program.
    """
    return f"nice -n 0 {path_word(path)}" if "=" in path else path_word(path)


def setup_line(setup: str | None) -> str:
    """Return the line that reads the script of an environment; nothing without one."""
    return f"source {path_word(setup)}\n" if setup else ""


def variable_lines(variables: Mapping[str, str]) -> str:
    """Return the elements of a Bash array: one NAME=value a line."""
    return "\n".join(f"  {name}={shlex.quote(text)}" for name, text in variables.items())
