"""Write docs/parameters.en.md and docs/parameters.zh.md from the parameter table and the catalogues.

python -m tools.write_reference        (make docs)
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from app.text import LANGUAGES, t
from app.text.reference import EFFECTS, HOSTS, Entry, documented, entry, sentences, since_words, table
from backend.engines import ENGINES
from backend.engines.checks import check_passed_on
from backend.engines.engine import Target, target_of
from backend.engines.environment import node_variables, shared_variables
from backend.engines.known_keys import EngineKey, programs, versions
from backend.job.cluster import Cluster
from backend.job.job import Fsdp, Job, Model
from backend.job.parameters import SOURCES
from backend.job.traits import EngineName

FOLDER = Path(__file__).parents[1] / "docs"
GROUPS: Mapping[str, str] = {
    "job": r"version|name",
    "cluster": r"cluster\.(?!calibration).*",
    "calibration": r"cluster\.calibration\..*",
    "model": r"model\..*",
    "training": r"training\..*",
    "engine": r"engine",
    "parallel": r"parallel\..*",
    "passed": r"environment|extra",
}
"""Heading -> pattern of its paths."""
MANY = 8
"""Limit of listed choices. The engine's own documentation has longer lists."""


def page(lang: str) -> str:
    """Return the reference in one language, as Markdown."""
    other = next(name for name in LANGUAGES if name != lang)
    head = [f"# {t(lang, 'reference.title')}", f"[{_LANGUAGES[other]}](parameters.{other}.md)",
            t(lang, "reference.lead"), t(lang, "reference.made")]  # fmt: skip
    parts = [*head, *_versions(lang), *_job(lang), *_extra(lang), *_environment(lang), _sources()]
    return "\n\n".join(parts) + "\n"


_LANGUAGES = {"en": "English", "zh": "中文"}


def _versions(lang: str) -> Iterator[str]:
    yield f"## {t(lang, 'reference.versions')}"
    yield t(lang, "reference.versions.lead")
    rows = [
        (t(lang, f"reference.reader.{name}"), ", ".join(program_versions.examined))
        for name, program_versions in versions().items()
    ]
    yield _table([t(lang, f"reference.versions.{name}") for name in ("program", "examined")], rows)


def _job(lang: str) -> Iterator[str]:
    yield f"## {t(lang, 'reference.job')}"
    for group, pattern in GROUPS.items():
        yield f"### {t(lang, f'reference.group.{group}')}"
        yield from (_parameter(path, lang) for path in table() if re.fullmatch(pattern, path))


def _parameter(path: str, lang: str) -> str:
    item = entry(path, lang)
    shown = path.replace(f"{HOSTS}.", f"{HOSTS}[].") if path.startswith(f"{HOSTS}.") else path
    lines = [f"#### `{shown}`", "", t(lang, "reference.named", name=item.name, meaning=_text(item.meaning)), ""]
    facts = {"value": item.value, "default": _default(item, lang)}
    facts |= {name: _text(words) for name, words in item.sentences.items()}
    readers: dict[str, list[str]] = {}
    for key in item.keys:
        readers.setdefault(key.reader, []).append(_dated(f"`{key.name}`", key.since, lang))
    if readers:
        facts["keys"] = t(lang, "reference.also").join(f"{name}: {', '.join(keys)}" for name, keys in readers.items())
    return "\n".join([*lines, *(f"- {_labelled(name, words, lang)}" for name, words in facts.items() if words)])


def _labelled(name: str, words: str, lang: str) -> str:
    """Return `Memory: its effect`."""
    return t(lang, "reference.said", name=t(lang, f"reference.fact.{name}"), words=words)


def _default(item: Entry, lang: str) -> str:
    if not item.default:
        return ""
    source = f"[{item.source}][{table()[item.path].source}]" if item.address else item.source
    return t(lang, "reference.default", value=f"`{item.default}`", source=source)


def _dated(name: str, since: str, lang: str) -> str:
    return t(lang, "reference.dated", name=name, since=since) if since else name


def _sources() -> str:
    """Return the addresses of the sources of defaults."""
    addresses = {name: address for name, address in SOURCES.items() if address}
    return "\n".join(f"[{name}]: {url if '://' in url else f'../{url}'}" for name, url in addresses.items())


def _extra(lang: str) -> Iterator[str]:
    yield f"## {t(lang, 'reference.extra')}"
    yield t(lang, "reference.extra.lead")
    head = [t(lang, f"reference.column.{name}") for name in ("key", "value", "meaning", "effect", "by")]
    yield _table(head, [_extra_row(key, lang) for key in sorted(documented("extra"))])


def _extra_row(key: str, lang: str) -> Iterable[str]:
    takers = {name: program.keys[key] for name, program in programs().items() if key in program.keys}
    values = dict.fromkeys(_of_program(key_of) for key_of in takers.values())
    by = []
    for name in takers:
        since = since_words((name,), key, lang)
        by.append(_dated(t(lang, f"reference.reader.{name}"), since, lang))
    owners = {engine.owned[key] for engine in ENGINES.values() if key in engine.owned}
    by += [t(lang, "reference.extra.owned", path=f"`{path}`") for path in sorted(owners)]
    also = t(lang, "reference.also")
    return (f"`{key}`", also.join(values), _use(f"extra.{key}", lang), _effect(f"extra.{key}", lang), also.join(by))


def _of_program(key: EngineKey) -> str:
    """Return `bool = false`, with the choices if they are few."""
    words = f"{key.type} = {json.dumps(key.default, ensure_ascii=False)}".replace("|", "or")
    choices = " / ".join(str(choice) for choice in key.choices)
    return f"{words} ({choices})" if 0 < len(key.choices) <= MANY else words


def _use(path: str, lang: str) -> str:
    meaning = _text(t(lang, f"param.{path}.help"))
    return "<br>".join([meaning, *_sentences(path, ("set", "constraint"), lang)])


def _effect(path: str, lang: str) -> str:
    return "<br>".join(_sentences(path, (*EFFECTS, "guides"), lang))


def _sentences(path: str, names: Iterable[str], lang: str) -> list[str]:
    texts = sentences(path, lang)
    return [_labelled(name, _text(texts[name]), lang) for name in names if name in texts]


def _environment(lang: str) -> Iterator[str]:
    yield f"## {t(lang, 'reference.environment')}"
    yield t(lang, "reference.environment.lead")
    own, on_node = _variables()
    rows = []
    for name in documented("environment"):
        owners = []
        if name in own:
            values = " / ".join(dict.fromkeys(value for value, _ in own[name]))
            engines = dict.fromkeys(engine for _, engine in own[name])
            engines_text = t(lang, "reference.all") if len(engines) == len(ENGINES) else ", ".join(engines)
            owners.append(t(lang, "reference.environment.set", value=values, engines=engines_text))
        elif name in on_node:
            owners.append(t(lang, "reference.environment.node"))
        owners.append(t(lang, f"reference.environment.{'owned' if _is_owned(name) else 'free'}"))
        path = f"environment.{name}"
        rows.append((f"`{name}`", _use(path, lang), _effect(path, lang), t(lang, "reference.also").join(owners)))
    yield _table([t(lang, f"reference.column.{name}") for name in ("variable", "meaning", "effect", "who")], rows)


def _is_owned(name: str) -> bool:
    """Return whether a job that sets the variable is refused."""
    job = replace(_job_of("llamafactory-ddp"), environment={name: "1"})
    return any(problem.code == "environment_owned" for problem in check_passed_on(job, ENGINES[job.engine]))


def _variables() -> tuple[dict[str, list[tuple[str, str]]], set[str]]:
    """Return name -> (value, engine) of the variables of all nodes, and the names of the variables of each node."""
    shared: dict[str, list[tuple[str, str]]] = {}
    on_node: set[str] = set()
    for name in get_args(EngineName):
        engine = ENGINES[name]
        for target in _targets(name):
            for variable, value in shared_variables(target, engine).items():
                shared.setdefault(variable, []).append((value, engine.name))
            on_node |= node_variables(target, interface="eth0", folder="/run").keys()
    return shared, on_node


def _targets(engine: EngineName) -> Iterator[Target]:
    """Return jobs that together make an engine write every variable."""
    for gpu in ("h100-80g", "cpu"):
        job = _job_of(engine, gpu)
        for version in (1, 2):
            yield target_of(replace(job, parallel=replace(job.parallel, fsdp=Fsdp(version=version))))


def _job_of(engine: EngineName, gpu: str = "cpu") -> Job:
    return Job(cluster=Cluster(gpu=gpu, nodes=1, gpus_per_node=2), model=Model(preset="qwen3-0.6b"), engine=engine)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(words: str) -> str:
    """Return Markdown that shows a text unchanged."""
    return re.sub(r"([*|<\\])", r"\\\1", words)


def main() -> None:
    for lang in LANGUAGES:
        (FOLDER / f"parameters.{lang}.md").write_text(page(lang), encoding="utf-8")


if __name__ == "__main__":
    main()
