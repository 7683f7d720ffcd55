"""Tags and notes of runs."""

import pytest

from backend.job.problems import ProblemsError
from backend.runs.records import RunLabels
from backend.runs.store import run_labels
from backend.runs.store.store import Store
from tools.stored_runs import StoredRun

RUN = "20260101-000000-a-aaaa"


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "megaboard.db")
    StoredRun(store, RUN, now=1000.0)
    yield store
    store.close()


def write(store: Store, labels: RunLabels, run: str = RUN) -> None:
    store.write(lambda connection: run_labels.write(connection, run, labels))


def test_labels_are_kept_as_they_were_written(store):
    labels = RunLabels(tags=("baseline", "学习率 1e-5", "'; DROP TABLE runs"), note="Line 1\n<b>2</b>", is_hidden=True)
    write(store, labels)
    with store.read() as connection:
        assert run_labels.read(connection, RUN) == labels
        assert run_labels.read_all(connection) == {RUN: labels}


def test_a_run_without_labels_has_empty_ones(store):
    with store.read() as connection:
        assert run_labels.read(connection, RUN) == RunLabels()


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        (RunLabels(tags=("x" * 41,)), "tag_unusable"),
        (RunLabels(tags=("a\nb",)), "tag_unusable"),
        (RunLabels(tags=("a,b",)), "tag_unusable"),
        (RunLabels(tags=("",)), "tag_unusable"),
        (RunLabels(tags=tuple(map(str, range(21)))), "too_many_tags"),
        (RunLabels(note="x" * 4001), "note_too_long"),
    ],
)
def test_labels_beyond_the_limits_are_refused_and_the_old_ones_stay(store, labels, code):
    before = RunLabels(tags=("kept",))
    write(store, before)
    with pytest.raises(ProblemsError) as refused:
        write(store, labels)
    assert [problem.code for problem in refused.value.problems] == [code]
    with store.read() as connection:
        assert run_labels.read(connection, RUN) == before


def test_an_unknown_run_has_no_labels_to_write(store):
    with pytest.raises(ProblemsError) as refused:
        write(store, RunLabels(), "20260101-000000-b-bbbb")
    assert refused.value.problems[0].code == "unknown_run"
