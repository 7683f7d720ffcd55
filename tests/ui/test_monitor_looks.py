"""The look of the monitor with much to show: nothing is cut off at 1280 pixels, and every figure is readable."""

import time

import pytest

from backend.job.problems import Problem
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import metrics
from tests.ui.browser import expect, needs_chromium
from tests.ui.monitored import open_run
from tools.stored_runs import heartbeat

pytestmark = [pytest.mark.ui, needs_chromium]

LONG = "qwen3-vl-235b-a22b-instruct-sft-medical-reports-stage2-v14.3"
CUT = """() => [...document.querySelectorAll('#mb-monitor :is(td, th, button, p, h2)')].filter((one) =>
    one.checkVisibility() && !one.closest('.mbm-spoken') && one.getBoundingClientRect().right > innerWidth
  ).map((one) => one.textContent)"""
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(linear)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const under = parse(getComputedStyle(document.querySelector('.mbm-nodes')).backgroundColor);
  const heat = document.querySelector('.mbm-heat td');
  return Array.from({ length: 101 }, (_, percent) => {
    heat.style.setProperty('--share', percent / 100);
    heat.toggleAttribute('data-strong', percent >= 80);
    const { color, backgroundColor } = getComputedStyle(heat), [r, g, b, a = 1] = parse(backgroundColor);
    const seen = [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
    const [low, high] = [light(seen), light(parse(color))].sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
  });
}"""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_long_names_of_runs_and_nodes_are_not_cut_off_at_1280_pixels(server, page, lang):
    page.set_viewport_size({"width": 1280, "height": 900})
    addresses = [f"{lang}-gpu-node-{rank:03d}.cluster.example.internal:2222" for rank in range(32)]
    run = server.run(f"20260101-002000-{LONG}-{lang}00", name=LONG, nodes=32, gpus_per_node=8, addresses=addresses)
    run.start()
    run.steps(1, 120, step_s=20.0, total_steps=100_000)
    run.now = time.time()
    run.beat([rank for rank in range(32) if rank != 17])
    row = {**heartbeat(17, 8, run.now), "stuck": [[4711, "python", "T", 141]], "disk_free_mib": 2048}
    server.store.write(lambda c: metrics.add_heartbeats(c, run.id, 1, 17, [row], run.now))
    run.add_event(EventKind.NODE_STUCK, 17, stuck=row["stuck"])
    open_run(page, server, run.id, lang)
    page.locator(".mbm-nodes .mbm-table tbody tr:visible", has_text=addresses[17]).wait_for()
    assert page.evaluate(CUT) == []
    page.goto(f"{server.url}/{lang}/#runs")
    page.locator(".mbm-list tbody tr", has_text=LONG).first.wait_for()
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_of_the_heat_map_stand_out_from_every_colour_of_its_scale(server, page, theme):
    run = server.run(f"20260101-002100-heat-{theme}", nodes=2, gpus_per_node=8)
    run.start()
    run.beat()
    page.emulate_media(color_scheme=theme)
    open_run(page, server, run.id)
    page.locator(".mbm-heat td").first.wait_for()
    assert page.evaluate("() => document.body.classList.contains('dark')") == (theme == "dark")
    assert min(page.evaluate(CONTRASTS)) >= 4.5


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_fault_of_the_servers_own_machine_is_shown_with_its_fix_until_it_is_mended(server, page, lang):
    page.set_viewport_size({"width": 1280, "height": 900})
    run = server.run(f"20260101-002200-unseen-{lang}", nodes=3, gpus_per_node=2)
    run.start()
    run.now = time.time() - 60
    run.beat()
    run.now = time.time()
    run.beat([0, 2])
    values = {"node": "10.0.0.2", "identity_file": "/home/me/.ssh/id_ed25519"}
    run.add_event(EventKind.NODE_UNSEEN, 1, problem=problem_to_json(Problem(code="passphrase_needed", values=values)))
    open_run(page, server, run.id, lang)
    notice = page.locator(".mbm-finding:visible")
    notice.get_by_text("ssh-add /home/me/.ssh/id_ed25519").wait_for()
    page.locator(".mbm-nodes [data-state=unseen]").first.wait_for()
    assert page.evaluate(CUT) == []
    run.add_event(EventKind.NODE_REACHABLE, 1)
    expect(notice).to_have_count(0)
