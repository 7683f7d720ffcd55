"""The page shows what runs take, deletes them when asked, and says how that went."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.monitor import actions
from app.monitor.poll_request import PollRequest
from app.monitor.poll_response import PollResponder
from app.monitor.storage import SIZES_FRESH_S, StorageView
from app.monitor.watch import RunCache
from app.services import Services
from app.text import t
from app.text.storage import size_words
from backend.job.problems import Problem
from backend.runs.retention import Rules
from backend.runs.states import EventKind
from tests.clock import Clock
from tests.waiting import WITHIN_S, wait_for
from tools.stored_runs import StoredRun

RUN = "20261121-101500-job-0a1b"
NAME = "<img src=x onerror=alert(1)>'\""


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_010_000.0)


@pytest.fixture
def services(tmp_path: Path, clock: Clock) -> Iterator[Services]:
    services = Services.open(tmp_path, clock)
    yield services
    services.close()


@pytest.fixture
def run(services: Services, clock: Clock) -> StoredRun:
    made = StoredRun(services.database.store, RUN, now=clock.now - 9000, name=NAME, nodes=1)
    made.start()
    made.steps(1, 20)
    made.log(0, "rank0.log", b"x" * 5000)
    return made


def finish(run: StoredRun) -> None:
    run.exit(0)
    run.add_event(EventKind.FINISHED)


def ask(services: Services, **question: Any) -> dict[str, Any]:
    run_cache = RunCache(services.controller, services.database, services.clock)
    responder = PollResponder(run_cache, services.database, "en", services.clock, storage=services.storage)
    return json.loads(responder.answer(PollRequest.from_json(question), services.clock()) or "{}")


def act(services: Services, name: str, run: str = "", **values: Any) -> Problem | None:
    return actions.act(services, None, name, run, values)  # type: ignore[arg-type]


def test_sizes_are_measured_when_somebody_looks_and_again_after_a_while(
    services: Services, run: StoredRun, clock: Clock
) -> None:
    assert "storage" not in ask(services)
    assert ask(services, storage=True)["storage"]["look"] is None
    wait_for(lambda: ask(services, storage=True)["storage"]["look"])
    look = ask(services, storage=True)["storage"]["look"]
    (shown,) = look["runs"]
    assert (shown["id"], shown["name"], shown["logs"], shown["can_delete"]) == (RUN, NAME, "5.07 kB", False)
    assert shown["why"] == t("en", "problem.run_not_over", run=RUN)
    assert look["spare"] == "0 B"
    finish(run)
    clock.now += SIZES_FRESH_S
    wait_for(lambda: ask(services, storage=True)["storage"]["look"]["runs"][0]["can_delete"])


def test_before_a_deletion_the_page_says_what_goes_and_what_stays_where(services: Services, run: StoredRun) -> None:
    refused = ask(services, erase=RUN)["erase"]
    assert refused["refused"]["code"] == "run_not_over"
    other = StoredRun(services.database.store, "other", now=1000.0, nodes=1)
    assert ask(services, erase=other.id)["erase"]["places"] == ["/other", "~/.megaboard/other"]
    finish(run)
    services.storage._expire_sizes()
    for question in ({"erase": RUN}, {"erase": RUN, "run": RUN}):
        found = ask(services, **question)["erase"]
        assert found["refused"] is None
        assert found["name"] == NAME
        kind = t("en", "monitor.storage.kind.logs")
        assert t("en", "monitor.storage.of", kind=kind, size="5.07 kB") in found["kinds"]
        assert found["places"] == [], "a job that cannot be read names none"
        assert found["folder"] == str(services.home / "archive")
    assert ask(services, erase="no-such-run")["erase"]["refused"]["code"] == "unknown_run"


@pytest.mark.parametrize("archive", [True, False])
def test_a_run_is_deleted_by_its_button_and_the_list_says_how_it_went(
    services: Services, run: StoredRun, archive: bool
) -> None:
    finish(run)
    assert act(services, "delete", RUN, archive=archive) is None
    wait_for(lambda: ask(services)["deletions"][0]["phase"] == "done")
    path = str(services.home / "archive" / f"{RUN}.zip") if archive else None
    assert ask(services)["deletions"] == [{"run": RUN, "phase": "done", "rows": 0, "path": path, "problem": None}]
    assert ask(services)["rows"] == []
    assert ask(services, run=RUN)["error"]["code"] == ("run_archived" if archive else "run_deleted")
    (kept,) = ask(services, storage=True)["storage"]["deleted"]
    assert (kept["run"], kept["name"], kept["by"], kept["archive"]) == (RUN, NAME, "page", path)
    refused = act(services, "delete", RUN)
    assert refused is not None
    assert refused.code == ("run_archived" if archive else "run_deleted"), "the second tab is told"


@pytest.mark.parametrize("archive", [True, False])
def test_a_question_that_is_open_while_its_run_is_deleted_is_told_so(
    services: Services, run: StoredRun, clock: Clock, archive: bool
) -> None:
    finish(run)
    assert ask(services, erase=RUN)["erase"]["refused"] is None
    services.retention.delete(RUN, by="rule", archive_to=services.home / "archive" if archive else None)
    clock.now += SIZES_FRESH_S
    assert ask(services, erase=RUN)["erase"]["refused"]["code"] == ("run_archived" if archive else "run_deleted")


def test_a_running_run_is_refused_and_the_list_says_so(services: Services, run: StoredRun) -> None:
    refused = act(services, "delete", RUN)
    assert refused is not None
    assert refused.code == "run_not_over"
    (told,) = ask(services)["deletions"]
    assert told["phase"] == "failed"
    assert told["problem"]["code"] == "run_not_over"
    assert len(ask(services)["rows"]) == 1


def test_a_second_press_while_it_is_archived_begins_nothing(services: Services, run: StoredRun) -> None:
    finish(run)
    let, seen = threading.Event(), []

    class Slow:
        """A retention that waits in the middle."""

        def default_archive(self) -> Path:
            return services.home

        def refuse_unless_over(self, run: str) -> None:
            seen.append(run)

        def delete(self, run: str, **more: Any) -> Any:
            more["report"](40_000)
            assert let.wait(WITHIN_S)
            return services.retention.delete(run, by="page")

    view = StorageView(Slow(), services.database, services.clock)  # type: ignore[arg-type]
    view.delete(RUN, archive=True)
    wait_for(lambda: view.deletions("en")[0]["rows"] == 40_000)
    view.delete(RUN, archive=True)
    assert view.deletions("en")[0]["phase"] == "archiving"
    assert seen == [RUN]
    let.set()
    wait_for(lambda: view.deletions("en")[0]["phase"] == "done")


def test_rules_are_set_by_the_page_and_nonsense_is_refused(services: Services) -> None:
    assert act(services, "retention", raw_days=3, run_days=None, archive=False) is None
    assert services.retention.rules() == Rules(raw_days=3, archive=False)
    for values in ({"raw_days": -1}, {"raw_days": "x"}, {"run_days": True}, {"run_days": 1.5}):
        refused = act(services, "retention", **values)
        assert refused is not None
        assert refused.code == "bad_days"
    assert services.retention.rules() == Rules(raw_days=3, archive=False)


def test_a_compaction_that_has_no_room_says_so(
    services: Services, run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(services.home)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert act(services, "compact") is None
    wait_for(lambda: (ask(services, storage=True)["storage"]["compacting"] or {}).get("problem"))
    monkeypatch.undo()
    assert act(services, "compact") is None
    wait_for(lambda: ask(services, storage=True)["storage"]["compacting"] is None)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_999, "1.00 MB"),
        (12_345_678, "12.3 MB"),
        (-2.5e9, "-2.50 GB"),
    ],
)
def test_sizes_have_three_digits(size: float, words: str) -> None:
    assert size_words(size) == words
