"""What a failed run shows beside its cause: the line of the log, and other causes that fit the same text."""

from dataclasses import replace

from app.text import render_problem, t
from backend.job.problems import Problem


def other_causes(cause: Problem, lang: str) -> list[dict[str, str]]:
    """Return the rendered problems of the causes that fit the same text equally well."""
    codes = cause.values.get("others")
    return [render_problem(lang, replace(cause, code=code)) for code in codes] if isinstance(codes, list) else []


def evidence_lines(cause: Problem, lang: str) -> list[str]:
    """Return the line of the log that shows the cause, the versions, and a line for each other cause."""
    line = str(cause.values.get("line") or "")
    evidence = [f"{t(lang, 'monitor.cause.evidence', file=cause.values.get('file'))} {line}"] if line else []
    versions = [f"{t(lang, 'monitor.cause.versions')} {text}"] if (text := versions_of(cause)) else []
    others = other_causes(cause, lang)
    names = [f"{t(lang, 'monitor.cause.others')} {other['message']} {other['fix']}" for other in others]
    return evidence + versions + names


def versions_of(cause: Problem) -> str:
    """Return the versions of the node's software, if the cause may be that they do not fit together."""
    versions = cause.values.get("versions")
    return ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""
