import re
from pathlib import Path
from typing import get_args

import pytest

from app.text import LANGUAGES, catalogue
from backend.cluster import node
from backend.cluster.preflight.results import CheckName, Status

SOURCES = [path.read_text() for path in Path(node.__file__).parent.rglob("*.py")]
# NodeError("code", ... | super().__init__("code", ... | failed("code", ... | checks.wrong(name, "code", ...
# | code = "code" if ... else "code" | _warned(checks, name, "code", ... | code="code"
CODES = re.compile(
    r"""(?:NodeError|__init__|(?<!checks\.)failed)\(\s*"(\w+)"|\.wrong\(\s*"?\w+"?,\s*"(\w+)\""""
    r"""|code = "(\w+)" if .* else "(\w+)\""""
    r"""|_warned\([^,]+,\s*"\w+",\s*"(\w+)"|code="(\w+)\""""
)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_whatever_a_node_can_do_wrong_has_words(lang: str) -> None:
    codes = {code for source in SOURCES for match in CODES.findall(source) for code in match if code}
    assert codes >= {"unreachable", "host_key_changed", "passphrase_needed", "not_writable", "no_python", "bad_python"}
    expected = {key for code in codes for key in (f"problem.{code}", f"problem.{code}.fix")}
    assert expected - set(catalogue(lang)) == set()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_check_and_status_has_a_title(lang: str) -> None:
    expected = {f"check.{name}" for name in get_args(CheckName)} | {f"check.status.{name}" for name in get_args(Status)}
    assert expected - set(catalogue(lang)) == set()
