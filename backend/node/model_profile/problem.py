"""Failures of a profile, each with a code."""

from __future__ import annotations

from typing import Any


class ProfileError(Exception):
    """A model that cannot be profiled, with the reason as a code and its values."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code)
        self.problem = {"code": code, **values}


def reason(error: BaseException) -> str:
    """Return the type and the first line of an exception, short enough for a page."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
