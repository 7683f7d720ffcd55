"""Simple commands of a shell script, as text: words, quotes, variables. Nothing is run.

It reads what training scripts use: comments, continued lines, quotes, `A=b` and `export A=b`, variables with defaults,
redirections and separators. Loops and functions are read as if their lines stood alone. A variable that the script
does not set, and `$(command)`, stay in the text as they are (`is_open`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?]")
_DEFAULT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::?-(.*))?", re.DOTALL)
_SEPARATORS = ";&|\n(){}"
_REDIRECTION = re.compile(r"[0-9]*[<>].*")
_WRAPPERS = frozenset({"nohup", "exec", "time", "env", "export", "then", "do", "else", "sudo"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command with its own words and the variables of the script that it sees."""

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Exported ones and those before the command."""


def is_open(text: str) -> bool:
    """Return whether a word depends on a variable or a command outside of the script."""
    return "$" in text or "`" in text


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a script in their order."""
    known: dict[str, str] = {}
    exported: dict[str, str] = {}
    for words in _Reader(text, known).lines():
        own: dict[str, str] = {}
        is_exported = False
        rest = list(words)
        while rest:
            if match := _ASSIGNMENT.fullmatch(rest[0]):
                own[match[1]] = match[2]
            elif rest[0] in _WRAPPERS:
                is_exported |= rest[0] == "export"
            else:
                break
            del rest[0]
        if rest:
            yield Command(words=tuple(rest), variables={**exported, **own})
        else:
            known.update(own)
            exported.update(own if is_exported else {name: own[name] for name in own.keys() & exported.keys()})


class _Reader:
    """Splitting of a script into commands of words. `known` are the variables so far, which the caller updates."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.text = text.replace("\r\n", "\n").replace("\\\n", " ")
        self.known = known
        self.position = 0

    def lines(self) -> Iterator[list[str]]:
        words: list[str] = []
        while self.position < len(self.text):
            letter = self.text[self.position]
            if letter in " \t":
                self.position += 1
            elif letter == "#":
                self._skip_line()
            elif letter in _SEPARATORS:
                self.position += 1
                if words:
                    yield words
                words = []
            else:
                word = self._word()
                if not _REDIRECTION.fullmatch(word):
                    words.append(word)
                elif word.endswith((">", "<")):
                    self._skip_blanks()
                    self._word()
        if words:
            yield words

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.position)
        self.position = len(self.text) if end < 0 else end

    def _skip_blanks(self) -> None:
        while self.text[self.position : self.position + 1] in (" ", "\t"):
            self.position += 1

    def _word(self) -> str:
        """Return the word at the position, without its quotes."""
        parts: list[str] = []
        while self.position < len(self.text):
            letter = self.text[self.position]
            if letter in " \t" or (letter in _SEPARATORS and not self._is_in_redirection(parts)):
                break
            self.position += 1
            if letter == "'":
                parts.append(self._until("'"))
            elif letter == '"':
                parts.append(self._double_quoted())
            elif letter == "\\":
                parts.append(self.text[self.position : self.position + 1])
                self.position += 1
            elif letter == "$":
                parts.append(self._variable())
            elif letter == "`":
                parts.append(f"`{self._until('`')}`")
            else:
                parts.append(letter)
        return "".join(parts)

    def _is_in_redirection(self, parts: list[str]) -> bool:
        """Return whether an ampersand belongs to `2>&1` or `&>`."""
        return self.text[self.position] == "&" and bool(parts) and parts[-1] in "<>"

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.position)
        stop = len(self.text) if stop < 0 else stop
        result = self.text[self.position : stop]
        self.position = stop + 1
        return result

    def _double_quoted(self) -> str:
        parts: list[str] = []
        while self.position < len(self.text):
            letter = self.text[self.position]
            self.position += 1
            if letter == '"':
                break
            if letter == "\\" and self.text[self.position : self.position + 1] in ('"', "\\", "$", "`"):
                parts.append(self.text[self.position])
                self.position += 1
            else:
                parts.append(self._variable() if letter == "$" else letter)
        return "".join(parts)

    def _variable(self) -> str:
        """Return the value of the variable after a dollar sign, or its text if the script does not set it."""
        following = self.text[self.position : self.position + 1]
        if following == "(":
            return f"${self._bracketed()}"
        if following == "{":
            inner = self._until("}")[1:]
            match = _DEFAULT.fullmatch(inner)
            if match and match[1] in self.known:
                return self.known[match[1]]
            return match[2] if match and match[2] is not None else f"${{{inner}}}"
        match = _NAME.match(self.text, self.position)
        if match is None:
            return "$"
        self.position = match.end()
        return self.known.get(match[0], f"${match[0]}")

    def _bracketed(self) -> str:
        """Return the text from an opening to its closing bracket."""
        start, depth = self.position, 0
        while self.position < len(self.text):
            depth += {"(": 1, ")": -1}.get(self.text[self.position], 0)
            self.position += 1
            if depth == 0:
                break
        return self.text[start : self.position]
