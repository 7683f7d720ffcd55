"""The pages say the same in both languages, link to files that exist, and show job files that can be read."""

import re
from pathlib import Path

import pytest

from backend.job.launch_rules import check_launch
from backend.job.mapping import load_job
from backend.job.problems import errors
from backend.job.rules import check

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md")])
PAIRS = [(path, path.with_name(path.name.replace(".en.", ".zh."))) for path in ROOT.glob("docs/*.en.md")]
PAIRS.append((ROOT / "README.md", ROOT / "README.zh.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: page.name)
def test_both_languages_have_the_same_headings_and_examples(english, chinese):
    outlines = [re.findall(r"^#+ |^```[^`]*^```$", strip_comments(page), re.MULTILINE) for page in (english, chinese)]
    assert outlines[0] == outlines[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_job_files_shown_can_be_read_and_are_legal(page):
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "yaml":
            job, problems = load_job(text)
            assert problems == []
            assert errors(check(job)) == []
            assert not job.cluster.hosts or check_launch(job) == []


def strip_comments(page: Path) -> str:
    return re.sub(r"[ \t]+# .*", "", page.read_text(encoding="utf-8"))
