"""Actions of the monitor's buttons. Every value from the browser is validated."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from app.monitor.compare import Compare
from app.services import Services
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Move
from backend.runs.records import RunLabels
from backend.runs.retention import Rules

Action = Callable[[str, Mapping[str, Any]], object]
"""(run, values of the button) -> an unused result. Raises ProblemsError if the action is refused."""


def act(services: Services, compare: Compare, name: object, run: str, values: Mapping[str, Any]) -> Problem | None:
    """Do the action of a button. Return the reason if it was refused."""
    controller = services.controller
    actions: dict[object, Action] = {
        "save": lambda run, values: controller.stop(run, save=True),
        "stop": lambda run, values: controller.stop(run),
        "calibrate": lambda run, values: compare.calibrate(run),
        "export": lambda run, values: services.exports.start(run),
        "chat": lambda run, values: controller.start_chat(
            run, _texts(values.get("models")), checkpoint=_count(values.get("checkpoint")) or None
        ),
        "evaluate": lambda run, values: controller.start_evaluation(
            run,
            _texts(values.get("models")),
            rows=_count(values.get("rows")) or 0,
            max_tokens=_count(values.get("max_tokens")) or 0,
        ),
        "end_chat": lambda run, values: controller.stop(_text(values.get("chat"))),
        "checkpoints": lambda run, values: services.resuming.find(run),
        "accept": lambda run, values: controller.accept_warnings(run, _texts(values.get("keys"))),
        "resume": lambda run, values: controller.resume(run, checkpoint=_count(values.get("step")), queue=True),
        "move": lambda run, values: controller.move(run, _move(values.get("where"))),
        "delete": lambda run, values: services.storage.delete(run, archive=values.get("archive") is True),
        "compact": lambda run, values: services.storage.compact(),
        "retention": lambda run, values: services.storage.set_rules(_rules(values)),
        "add_rule": lambda run, values: services.database.add_alert_rule(
            None if values.get("all_runs") is True else run, _mapping(values.get("rule")), now=services.clock()
        ),
        "remove_rule": lambda run, values: services.database.remove_alert_rule(_count(values.get("id")) or 0),
        "labels": lambda run, values: controller.set_labels(run, _labels(values)),
        "restarts": lambda run, values: controller.allow_restarts(run, _count(values.get("restarts")) or 0),
    }
    try:
        if name in actions:
            actions[name](run, values)
    except ProblemsError as error:
        return error.problems[0]
    return None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _rules(values: Mapping[str, Any]) -> Rules:
    return Rules(
        **{name: values.get(name) for name in ("raw_days", "run_days")}, archive=values.get("archive") is not False
    )


def _labels(values: Mapping[str, Any]) -> RunLabels:
    note = values.get("note")
    return RunLabels(
        tags=tuple(dict.fromkeys(tag.strip() for tag in _texts(values.get("tags")))),
        note=note if isinstance(note, str) else "",
        is_hidden=values.get("hidden") is True,
    )


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _move(value: object) -> Move:
    move: Move = next((move for move in get_args(Move) if move == value), "last")
    return move
