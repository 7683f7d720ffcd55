"""The page's own JavaScript, as text."""

import re

from app.text import catalogue
from backend.job.data_folder import data_folder


def scripts() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in data_folder("static").rglob("*.js")}


def test_no_script_makes_html_from_strings() -> None:
    makes = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    assert [name for name, text in scripts().items() if makes.search(text)] == []


def test_every_text_of_a_script_exists() -> None:
    request = {
        key for text in scripts().values() for key in re.findall(r'["\']((?:monitor|wizard)\.[a-z_.]+[a-z])["\']', text)
    }
    assert request - set(catalogue("en")) == set()
