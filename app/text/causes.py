"""What a failed run shows beside its cause: the line of the log, and other causes that fit the same text."""

from dataclasses import replace

from app.text import has, render_problem, t
from backend.job.problems import Problem


def other_causes(cause: Problem, lang: str) -> list[dict[str, str]]:
    """Return the rendered problems of the causes that fit the same text equally well, each with its `sign`."""
    codes = cause.values.get("others")
    if not isinstance(codes, list):
        return []
    return [{**render_problem(lang, replace(cause, code=code)), "sign": _sign(lang, code)} for code in codes]


def sign_of(cause: Problem, lang: str) -> str:
    """Return what tells the cause apart from the other causes that fit the same text; empty if there are none."""
    return _sign(lang, cause.code) if cause.values.get("others") else ""


def _sign(lang: str, code: str) -> str:
    return t(lang, key) if has(lang, key := f"causes.sign.{code}") else ""


def evidence_lines(cause: Problem, lang: str) -> list[str]:
    """Return the line of the log that shows the cause, the versions, and a line for each other cause."""
    line = str(cause.values.get("line") or "")
    evidence = [f"{t(lang, 'monitor.cause.evidence', file=cause.values.get('file'))} {line}"] if line else []
    versions = [f"{t(lang, 'monitor.cause.versions')} {text}"] if (text := versions_of(cause)) else []
    others = other_causes(cause, lang)
    first = t(lang, "monitor.cause.others")
    names = [" ".join(filter(None, (first, other["message"], other["sign"], other["fix"]))) for other in others]
    sign = [text] if (text := sign_of(cause, lang)) else []
    return evidence + versions + sign + names


def versions_of(cause: Problem) -> str:
    """Return the versions of the node's software, if the cause may be that they do not fit together."""
    versions = cause.values.get("versions")
    return ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""
