"""Both catalogues have the same texts, and every key in the code exists."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from app.text import FOLDER, LANGUAGES, catalogue, render_problem
from backend.job.mapping import parameters, parse_job
from backend.job.problems import Problem
from backend.runs.diagnosis.cause_catalogue import causes
from backend.runs.states import EventKind

ROOT = Path(__file__).parents[2]
ENGLISH, *OTHERS = LANGUAGES
CALLED = re.compile(r"\b(?:t|Problem|NodeError)\(")


@pytest.mark.parametrize("lang", OTHERS)
def test_keys_are_equal_in_all_languages(lang):
    assert set(catalogue(lang)) ^ set(catalogue(ENGLISH)) == set()


@pytest.mark.parametrize("lang", OTHERS)
def test_placeholders_are_equal_in_all_languages(lang):
    english, words = catalogue(ENGLISH), catalogue(lang)
    different = {key for key in english if key in words and placeholders(english[key]) != placeholders(words[key])}
    assert different == set()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_key_is_written_twice(lang):
    pairs = json.loads((FOLDER / f"{lang}.json").read_text(), object_pairs_hook=list)
    assert [key for key, count in Counter(key for key, _ in pairs).items() if count > 1] == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_text_is_empty(lang):
    assert [key for key, words in catalogue(lang).items() if not words.strip()] == []


def test_every_key_in_the_code_exists():
    named = {key: location for location, key in named_keys()}
    known = {re.escape(key) for key in english()}
    missing = [
        f"{location}: {key}"
        for key, location in named.items()
        if key not in known and not any(map(re.compile(key).fullmatch, english()))
    ]
    assert missing == []


def test_every_problem_in_the_code_has_a_text_and_a_fix():
    missing = [
        f"{location}: {key}"
        for location, code in problem_codes()
        for key in (f"problem.{code}", f"problem.{code}.fix")
        if key not in english() and not any(other.startswith(f"{key}.") and key.endswith(".fix") for other in english())
    ]
    assert missing == []


def test_every_cause_that_logs_name_has_words_and_a_fix():
    assert {
        key for cause in causes() for key in (f"problem.{cause.code}", f"problem.{cause.code}.fix")
    } - english() == set()


def test_every_event_has_a_text():
    assert {f"monitor.event.{kind}" for kind in EventKind} - english() == set()


def test_every_parameter_has_a_label_and_help():
    assert [
        key for path in parameters() for key in (f"param.{path}", f"param.{path}.help") if key not in english()
    ] == []


def test_a_run_and_a_job_have_one_word_each_in_chinese():
    """A job is the file, 任务. A launched job is a run, 运行. Each start of a run's gang is a 启动."""
    chinese, english_texts = catalogue("zh"), catalogue(ENGLISH)
    run, job = re.compile(r"\bruns?\b", re.I), re.compile(r"\bjobs?\b", re.I)
    assert [
        k
        for k, v in chinese.items()
        if "任务" in v and run.search(english_texts[k]) and not job.search(english_texts[k])
    ] == []
    assert [key for key, text in chinese.items() if "训练任务" in text or "作业" in text] == []


def english() -> set[str]:
    return set(catalogue(ENGLISH))


def placeholders(words: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(words) if name is not None}


def named_keys() -> Iterator[tuple[str, str]]:
    """Yield the location and the key of each `t(lang, key)`. The key is a pattern: the values of an f-string may be any
    text."""
    for location, call in calls({"t"}):
        if len(call.args) > 1:
            yield from ((location, pattern) for pattern in key_patterns(call.args[1]))


def key_patterns(key: ast.expr) -> Iterator[str]:
    if isinstance(key, ast.IfExp):
        yield from key_patterns(key.body)
        yield from key_patterns(key.orelse)
    elif isinstance(key, ast.Constant):
        yield re.escape(str(key.value))
    elif isinstance(key, ast.JoinedStr):
        yield "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*" for part in key.values)


def problem_codes() -> Iterator[tuple[str, str]]:
    for location, call in calls({"Problem", "NodeError", "problem"}):
        codes = [keyword.value for keyword in call.keywords if keyword.arg == "code"] or call.args[:1]
        for code in codes:
            choices = (code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,)
            yield from ((location, str(choice.value)) for choice in choices if isinstance(choice, ast.Constant))


def calls(names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    return ((location, call) for name, location, call in all_calls() if name in names)


@cache
def all_calls() -> list[tuple[str | None, str, ast.Call]]:
    """Yield name, location and node of every call in the files that use catalogue keys or raise problems."""
    return [
        (getattr(node.func, "id", getattr(node.func, "attr", None)), f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path in [*(ROOT / "app").rglob("*.py"), *(ROOT / "backend").rglob("*.py")]
        if CALLED.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_name_of_a_file_adds_no_command(lang):
    """The page offers to copy the text between backticks."""
    values = {"variable": "A", "name": "x`; rm -rf ~`", "command": "rsync 'x`; rm -rf ~`' /m"}
    key = next(key for key, words in catalogue(lang).items() if key.endswith(".fix") and "`{command}`" in words)
    code = key.removeprefix("problem.").removesuffix(".fix")
    expected = placeholders(catalogue(lang)[key]) | placeholders(catalogue(lang)[f"problem.{code}"])
    problem = Problem(code=code, field="f", values={**dict.fromkeys(expected, "v"), **values})
    assert render_problem(lang, problem)["fix"].count("`") == catalogue(lang)[key].count("`")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("path", "value", "expected", "untold"),
    [
        ("name", "x" * 65, "64", "shell"),
        ("cluster.hosts", [{"address": "fe80::1%eth0"}], "fe80::", "shell"),
        ("cluster.hosts", [{"address": "[2001:db8::1]:22"}], "IPv6", "shell"),
        ("cluster.run_root", "/a b", "~/", "64"),
    ],
)
def test_the_fix_of_a_wrong_text_names_the_expected_format(lang, path, value, expected, untold):
    mapping = {"version": 1, "cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 1}, "engine": "llamafactory-ddp"}
    top, _, key = path.rpartition(".")
    (mapping[top] if top else mapping)[key] = value
    (problem,) = (item for item in parse_job(mapping)[1] if item.code == "bad_format")
    fix = render_problem(lang, problem)["fix"]
    assert expected in fix
    assert untold not in fix


def test_a_run_s_state_is_reported_in_the_user_s_language():
    problem = Problem(code="cannot_resume", values={"run": "r", "state": "finished"})
    assert "已完成" in render_problem("zh", problem)["message"]
    assert "Finished" in render_problem("en", problem)["message"]
