"""GET /metrics: who may read it, and that Prometheus and the dashboard understand it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.monitor import prometheus
from app.private_file import PrivateFileError
from app.services import Services
from app.web.scrape_token import ScrapeToken
from backend.runs.states import EventKind
from tests.app.tiny_app import OWN, PLAIN, browser, log_in, tiny_app, tiny_page
from tests.clock import Clock
from tools.stored_runs import StoredRun

TOKEN = "0123456789abcdef" * 4
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def services(tmp_path_factory, clock):
    services = Services.open(tmp_path_factory.mktemp("home"), clock)
    running = StoredRun(services.database.store, "20260101-000000-a-aaaa", now=clock.now, nodes=2)
    running.start()
    running.steps(1, 30)
    running.beat()
    running.add_event(EventKind.LOSS_ROSE, step=20, loss=9.0, usual=1.0)
    old = StoredRun(services.database.store, "20250101-000000-b-bbbb", now=clock.now - 100_000, name="old")
    old.start()
    old.add_event(EventKind.FINISHED)
    yield services
    services.close()


@pytest.fixture(scope="module")
def app(services, clock):
    pages = {"en": tiny_page()}
    return tiny_app(
        services.home, clock, pages, routers=[prometheus.routes(services)], scrape_token=ScrapeToken.of(TOKEN)
    )


@pytest.fixture(scope="module")
def scraped(app) -> str:
    answer = browser(app, PLAIN).get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


@pytest.fixture(scope="module")
def samples(scraped) -> dict[str, list]:
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(scraped):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_the_figures_are_those_of_the_run_in_base_units(samples):
    [step] = samples["megaboard_run_step"]
    assert (step.labels, step.value) == ({"run": "20260101-000000-a-aaaa"}, 30)
    [info] = samples["megaboard_run_info"]
    assert info.labels["name"] == "qwen3-vl-8b-sft"
    assert info.labels["state"] == "running"
    assert samples["megaboard_run_loss"][0].value > 1
    assert len(samples["megaboard_node_heartbeat_age_seconds"]) == 2
    assert all(0.8 < sample.value <= 1 for sample in samples["megaboard_gpu_utilization_ratio"])
    assert samples["megaboard_gpu_memory_total_bytes"][0].value == 81_559 * 2**20


def test_alerts_are_counted_by_kind(samples):
    counts = {sample.labels["kind"]: sample.value for sample in samples["megaboard_run_events_total"]}
    assert counts["loss_rose"] == 1
    assert counts["node_started"] == 2


def test_a_run_that_ended_long_ago_counts_only_by_its_state(samples):
    states = {sample.labels["state"]: sample.value for sample in samples["megaboard_runs"]}
    assert (states["running"], states["finished"], states["failed"]) == (1, 1, 0)


def test_every_metric_of_the_dashboard_is_exposed(samples, scraped):
    text = json.dumps([panel.get("targets", []) for panel in json.loads(DASHBOARD.read_text())["panels"]])
    used = set(re.findall(r"megaboard_\w+", text))
    exposed = set(samples) | set(re.findall(r"^# TYPE (\w+)", scraped, re.MULTILINE))
    assert used
    assert used <= exposed


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")
def test_promtool_finds_no_fault(scraped):
    done = subprocess.run(["promtool", "check", "metrics"], input=scraped, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \N{SNOWMAN}".encode()],
)
def test_nobody_reads_metrics_without_the_token(app, header):
    headers = {} if header is None else {"authorization": header}
    assert browser(app, PLAIN).get("/metrics", headers=headers).status_code == 401


def test_the_token_opens_nothing_else(app):
    client = browser(app, OWN)
    client.headers["authorization"] = f"Bearer {TOKEN}"
    for path in ("/en/", "/metrics/", "/metrics/../en/", "/en/gradio_api/info", "//metrics"):
        assert client.get(path, headers={"accept": "*/*"}).status_code == 401, path


def test_another_host_name_is_refused_with_the_token_too(app):
    client = browser(app, "http://attacker.example:7860")
    assert client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 400


def test_without_a_token_file_there_are_no_metrics(tmp_path, clock):
    client = browser(tiny_app(tmp_path, clock, {"en": tiny_page()}))
    assert client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401
    log_in(client)
    assert client.get("/metrics").status_code == 404


def test_a_token_file_must_be_private_and_long(tmp_path):
    file = tmp_path / "token"
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(PrivateFileError) as short:
        ScrapeToken.read(file)
    assert short.value.code == "metrics_token_too_short"
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(PrivateFileError) as public:
        ScrapeToken.read(file)
    assert public.value.code == "private_file_open"
    file.chmod(0o600)
    assert ScrapeToken.read(file).matches(f"Bearer {TOKEN}")
