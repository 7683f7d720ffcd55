"""Pages have the same headings and examples in both languages; their links, job files and commands are valid."""

import argparse
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.main import COMMANDS
from app.text import LANGUAGES
from backend.job.launch_rules import check_launch
from backend.job.mapping import load_job
from backend.job.problems import errors
from backend.job.rules import check

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PAIRS = [(path, path.with_name(path.name.replace(".en.", ".zh."))) for path in ROOT.glob("docs/*.en.md")]
PAIRS.append((ROOT / "README.md", ROOT / "README.zh.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^    |`)(?:\.venv/bin/)?megaboard ([a-z|]+) ?([^\n`]*)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_map_of_rooms_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = {path.parent.name for folder in ("app", "backend") for path in (ROOT / folder).rglob("__init__.py")}
    assert {package for package in packages if f"{package}/" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings_that_exist(page):
    targets = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [
        (path, anchor) for path, anchor in targets if anchor not in anchors(page.parent / path if path else page)
    ] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: page.name)
def test_both_languages_have_the_same_headings_and_examples(english, chinese):
    outlines = [re.findall(r"^#+ |^```[^`]*^```$", strip_comments(page), re.MULTILINE) for page in (english, chinese)]
    assert outlines[0] == outlines[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_job_files_in_pages_can_be_read_and_are_legal(page):
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "yaml":
            job, problems = load_job(text)
            assert problems == []
            assert errors(check(job)) == []
            assert not job.cluster.hosts or check_launch(job) == []


def strip_comments(page: Path) -> str:
    return re.sub(r"[ \t]+# .*", "", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_pages_exist_and_have_the_options_shown(page):
    shown = COMMAND.findall(page.read_text(encoding="utf-8"))
    for names, remainder in shown:
        known = set().union(*(options_of(name) for name in names.split("|")))
        assert set(re.findall(r"--[a-z-]+", remainder)) <= known, (names, remainder)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_option_of_the_command_line_is_documented(lang):
    pages = [page for page in PAGES if (".zh." in page.name) == (lang == "zh")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    options = [(command, option) for command in COMMANDS for option in options_of(command)]
    assert [(command, option) for command, option in options if not re.search(rf"{option}\b", text)] == []


@cache
def options_of(command: str) -> frozenset[str]:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--lang")
    importlib.import_module(COMMANDS[command]).add_arguments(command, parser, "en")
    return frozenset(option for option in long_options(parser) if option != "--help")


def long_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from long_options(subparser)
