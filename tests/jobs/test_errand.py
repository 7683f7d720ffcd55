"""What an errand's program says last may be shown: on the page, and on a terminal."""

import pytest

from backend.jobs import redact
from backend.jobs.errand import last_words
from tests.fakes import FakeNode


def test_a_secret_that_a_program_said_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_told", redact._Told())
    redact.hide("a-secret-of-the-ranks")
    node = FakeNode()
    node.files["/out.log"] = b"loading\nOSError: 401 for a-secret-of-the-ranks\n"
    said = last_words(node, "/out.log")
    assert "OSError: 401" in said
    assert "a-secret" not in said
