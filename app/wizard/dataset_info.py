"""dataset_info.json in the data step: shown, checked and changed with a form; files by path or uploaded."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.services import Services
from app.wizard.data_preview import shown_fault
from app.wizard.fetch_result import FetchResult, ask, job_of
from app.wizard.fields import look_up
from backend.cluster.program_answers.data import DatasetChecked
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import MOST_UPLOAD_BYTES, DatasetChange

FIELD = "training.dataset"
NAME = re.compile(r"[^\x00-\x1f\x7f,\"'\\/]{1,120}")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,119}\.jsonl?")
MOST_ENTRY_BYTES = 32 << 10
FORMATS = ("alpaca", "sharegpt", "openai")
COLUMNS = (
    *("prompt", "query", "response", "history", "messages", "system", "tools"),
    *("images", "videos", "audios", "chosen", "rejected", "kto_tag"),
)
TAGS = (
    *("role_tag", "content_tag", "user_tag", "assistant_tag"),
    *("observation_tag", "function_tag", "system_tag"),
)
"""Keys of LLaMA-Factory 0.9.5 src/llamafactory/data/parser.py (DatasetAttr.join)."""


def _refuse(code: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])


def _shown(services: Services, request: Mapping[str, Any], **more: Any) -> FetchResult:
    """Return the entries of the first node that answers, with the nodes whose entry differs or is missing."""
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.dataset_info(job))
    if not reply.answers:
        return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)
    tables = {reply.nodes[rank]: dict(answer["entries"]) for rank, answer in sorted(reply.answers.items())}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    chosen = _chosen(services)
    first = reply.answers[min(reply.answers)]
    rows = [_row(name, tables, chosen) for name in names]
    drawn = {"folder": first["folder"], "files": first.get("files", []), "rows": rows, "isThere": first["is_there"]}
    note = {"node": reply.nodes[min(reply.answers)], "folder": first["folder"], "entries": len(names)}
    return FetchResult(note=note, datasets=partial(_in_every_language, {**drawn, **more}), problems=reply.problems)


def _row(name: str, tables: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]) -> Mapping[str, Any]:
    entry = next(table[name] for table in tables.values() if name in table)
    versions = [table.get(name) for table in tables.values()]
    return {
        "name": name,
        "entry": entry,
        "seen": [version for index, version in enumerate(versions) if version not in versions[:index]],
        "isUsed": name in chosen,
        "lacking": [node for node, table in tables.items() if name not in table],
        "differing": [node for node, table in tables.items() if table.get(name, entry) != entry],
    }


def _propose(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Open the form with an entry for a file on a node."""
    path = str(request.get("path") or "").strip()
    if not path or "\x00" in path:
        raise _refuse("dataset_path_needed")
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.propose_dataset(job, path))
    for rank, answer in reply.answers.items():
        stem = re.sub(r"\.[^.]*$", "", answer["entry"].get("file_name", "").rsplit("/", 1)[-1])
        form = {
            "name": stem,
            "entry": answer["entry"],
            "columns": answer.get("columns", []),
            "previous": None,
            "seen": [None],
        }
        note = {"node": reply.nodes[rank], "path": path}
        return FetchResult(note=note, datasets=partial(_in_every_language, {"form": form}))
    return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)


def _in_every_language(drawn: Mapping[str, Any], _: str) -> Mapping[str, Any]:
    return drawn


def _upload(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Write a small file of the user's computer into the folder on every node, then open the form for it."""
    name, data = str(request.get("file") or ""), str(request.get("text") or "").encode("utf-8", "replace")
    if not FILE_NAME.fullmatch(name):
        raise _refuse("dataset_file_name", name=name[:120])
    if len(data) > MOST_UPLOAD_BYTES:
        raise _refuse("dataset_too_large", size=f"{len(data) / 2**20:.1f}", most=MOST_UPLOAD_BYTES >> 20)
    _check_rows(name, data.decode())
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.upload_dataset(job, name, data))
    if reply.problems or not reply.answers:
        return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)
    return _propose(services, {**request, "path": name})


def _check_rows(name: str, text: str) -> None:
    """Raise ProblemsError(dataset_upload_broken) with the number of the first row that is no JSON object."""
    number = 0
    try:
        text = text.removeprefix("\ufeff")
        if text.lstrip().startswith("["):
            rows = json.loads(text)
            bad = next((index for index, row in enumerate(rows, 1) if not isinstance(row, dict)), None)
        else:
            bad = None
            for number, line in enumerate(filter(str.strip, text.split("\n")), 1):
                bad = number if bad is None and not isinstance(json.loads(line), dict) else bad
            rows = number
    except (ValueError, RecursionError) as error:
        reason = f"row {number}: {error}" if number else str(error)
        raise _refuse("dataset_upload_broken", name=name, reason=reason[:300]) from error
    if bad is not None or not rows:
        reason = f"row {bad}: no JSON object" if bad else "no rows"
        raise _refuse("dataset_upload_broken", name=name, reason=reason)


def _check(services: Services, request: Mapping[str, Any]) -> FetchResult:
    name, entry = _named(request), _entry_of(request)
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.check_dataset(job, name, entry))
    if not reply.answers:
        return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)
    worst = max(reply.answers, key=lambda rank: len(reply.answers[rank]["faults"]))
    answer, node = reply.answers[worst], reply.nodes[worst]
    return FetchResult(
        note={"node": node, "name": name, "rows": f"{answer['rows']:,}"},
        done="done_faults" if answer["faults"] else "done",
        datasets=partial(_checked, answer),
        problems=reply.problems,
    )


def _checked(answer: DatasetChecked, lang: str) -> Mapping[str, Any]:
    faults = [shown_fault(fault, lang) for fault in answer["faults"]]
    return {"checked": {"faults": faults, "rows": answer["rows"], "converted": answer.get("converted", 0)}}


def _save(services: Services, request: Mapping[str, Any]) -> FetchResult:
    return _write(services, request, _entry_of(request))


def _remove(services: Services, request: Mapping[str, Any]) -> FetchResult:
    return _write(services, request, None)


def _write(services: Services, request: Mapping[str, Any], entry: Mapping[str, Any] | None) -> FetchResult:
    """Write one entry on every node, then show what the nodes have now."""
    name, seen = _named(request), request.get("seen")
    change = DatasetChange(name=name, entry=entry, seen=tuple(seen) if isinstance(seen, list) else (None,))
    job = job_of(services)
    reply = ask(services, request, lambda: services.controller.tasks.change_dataset(job, change))
    if not reply.answers:
        return FetchResult(problems=reply.problems, host_keys=reply.unknown_host_keys)
    shown = _shown(services, request, saved=True)
    changed = sum(reply.answers.values())
    return replace(
        shown,
        note={"name": name, "nodes": len(reply.answers), "changed": changed},
        problems=(*reply.problems, *shown.problems),
    )


def _use(services: Services, request: Mapping[str, Any]) -> FetchResult:
    """Add a data set to the job, or take it out."""
    name, chosen = str(request.get("name")), _chosen(services)
    names = [other for other in chosen if other != name] if name in chosen else [*chosen, name]
    note = {"names": ", ".join(names)}
    return FetchResult(
        edits={FIELD: ",".join(names) or None},
        note=note,
        done="done" if names else "done_none",
        datasets=partial(_in_every_language, {"used": names}),
    )


def _chosen(services: Services) -> list[str]:
    text = look_up(services.draft.job_mapping(), FIELD)
    return [name.strip() for name in str(text or "").split(",") if name.strip()]


def _named(request: Mapping[str, Any]) -> str:
    name = str(request.get("name") or "").strip()
    if not NAME.fullmatch(name):
        raise _refuse("dataset_name", name=name[:120])
    return name


def _previous(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    previous = request.get("previous")
    return previous if isinstance(previous, Mapping) else None


def _entry_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of a form. Keys that the form does not show stay as they were."""
    form = request.get("form")
    form = form if isinstance(form, Mapping) else {}
    before = dict(_previous(request) or {})
    entry: dict[str, Any] = {**before, "formatting": form.get("formatting"), "ranking": form.get("ranking") is True}
    if not any(key.endswith("_hub_url") or key in ("script_url", "cloud_file_name") for key in before):
        entry["file_name"] = _text(form.get("file_name"), "file_name")
        if not entry["file_name"]:
            raise _refuse("dataset_path_needed")
    if entry["formatting"] not in FORMATS:
        raise _refuse("dataset_key", key="formatting")
    if not entry["ranking"]:
        del entry["ranking"]
    entry["columns"] = _texts(form, before, "columns", COLUMNS)
    if entry["formatting"] == "alpaca":
        entry.pop("tags", None)
    else:
        entry["tags"] = _texts(form, before, "tags", TAGS)
    if len(json.dumps(entry)) > MOST_ENTRY_BYTES:
        raise _refuse("dataset_key", key="columns")
    return entry


def _texts(form: Mapping[str, Any], before: Mapping[str, Any], part: str, known: Sequence[str]) -> Mapping[str, Any]:
    given, old = form.get(part), before.get(part)
    given = given if isinstance(given, Mapping) else {}
    texts = dict(old) if isinstance(old, Mapping) else {}
    for key in known:
        if key in given:
            texts[key] = _text(given[key], key)
    return {key: value for key, value in texts.items() if value}


def _text(value: Any, key: str) -> str:
    text = str(value or "").strip()
    if len(text) > 1000 or re.search(r"[\x00-\x1f\x7f]", text):
        raise _refuse("dataset_key", key=key)
    return text


KINDS: Mapping[str, Callable[[Services, Mapping[str, Any]], FetchResult]] = {
    "dataset_info": _shown,
    "dataset_file": _propose,
    "dataset_upload": _upload,
    "dataset_check": _check,
    "dataset_save": _save,
    "dataset_remove": _remove,
    "dataset_use": _use,
}
