"""What runs on a node to say what it is made of, run here."""

from pathlib import Path

import pytest

from backend.cluster import survey_node


@pytest.mark.parametrize(
    ("limit", "mib"), [("max\n", 2048), ("1073741824\n", 1024), ("9223372036854771712\n", 2048), (None, 2048)]
)
def test_a_container_has_no_more_memory_than_it_may_use(
    limit: str | None, mib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:        2097152 kB\nMemFree:            1000 kB\n")
    if limit:
        (tmp_path / "limit").write_text(limit)
    monkeypatch.setattr(survey_node, "MEMORY", str(tmp_path / "meminfo"))
    monkeypatch.setattr(survey_node, "LIMITS", (str(tmp_path / "limit"), str(tmp_path / "none")))
    assert survey_node.memory_mib() == mib
