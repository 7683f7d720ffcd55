"""The charts of a run and of runs side by side in a real browser."""

import math
import re
from pathlib import Path

import pytest

from app.text import t
from backend.runs.store import logged_metrics, metrics
from tests.ui.browser import expect, needs_chromium
from tests.ui.monitored import open_run, shown_loss, wait_for_points
from tools.stored_runs import heartbeat

pytestmark = [pytest.mark.ui, needs_chromium]


def test_a_curve_grows_in_place_and_keeps_its_zoom_and_sends_only_what_is_new(server, page):
    run = server.run("20260101-000200-grow-cccc")
    run.start()
    run.steps(1, 60)
    open_run(page, server, run.id)
    wait_for_points(page, 60)
    page.evaluate(
        """async () => { window.plot = document.querySelector('.mbm-wide .mbm-plot');
        const react = Plotly.react; Plotly.react = (...all) => { window.drawn += 1; return react(...all); };
        await Plotly.relayout(window.plot, {'xaxis.range': [10, 30], 'yaxis.range': [1, 4]});
        window.drawn = 0; }"""  # The other charts have followed the zoom.
    )
    sizes = []
    page.on("response", lambda answer: sizes.append(len(answer.body())) if "predict" in answer.url else None)
    for last in range(61, 66):
        run.steps(last, last)
        wait_for_points(page, last)
    assert page.evaluate("() => window.plot.isConnected && window.drawn === 0")
    assert page.evaluate("() => [...plot._fullLayout.xaxis.range]") == [10, 30]
    assert page.evaluate("() => plot.data[0].x.length") == 65
    assert page.evaluate("() => plot.data[1].x.length") == 65
    assert max(sizes) < 1500
    sizes.clear()
    while len(sizes) < 3 or max(sizes[-3:]) >= 400:  # Without a change, nothing is sent.
        page.wait_for_event("response", lambda answer: "predict" in answer.url)


def test_a_curve_of_many_steps_is_thinned_and_shows_its_spike(server, page):
    run = server.run("20260101-000300-long-dddd")
    run.start()
    run.steps(1, 4000, step_s=0.01)
    run.steps(4001, 4001, loss=77.0)
    run.steps(4002, 9000, step_s=0.01)
    run.steps(9001, 9001, loss=math.nan)
    open_run(page, server, run.id)
    page.wait_for_function("() => Megaboard.monitor.view().charts.data('loss').x.length > 400")
    shown = shown_loss(page)
    assert len(shown["x"]) <= 1500
    assert max(shown["y"]) == 77.0
    assert shown["x"][-1] == 9000
    assert page.evaluate("() => Megaboard.monitor.view().charts.data('loss_bad').x") == [9001]


def test_a_long_curve_shows_its_spike_and_every_step_of_the_stretch_that_it_is_zoomed_into(server, page):
    run = server.run("20260101-000250-spike-dd")
    run.start()
    run.steps(1, 12_000, step_s=0.01)
    run.steps(12_001, 12_001, loss=40.0)
    run.steps(12_002, 20_000, step_s=0.01)
    open_run(page, server, run.id)
    page.wait_for_function("() => Megaboard.monitor.view().charts.data('loss').x.length > 400")
    shown = shown_loss(page)
    assert (len(shown["x"]) <= 1000, max(shown["y"])) == (True, 40.0)
    page.evaluate(
        """() => { window.plot = document.querySelector('.mbm-wide .mbm-plot');
        window.within = () => plot.data[0].x.filter((step) => step >= 11900 && step <= 12100).length;
        return Plotly.relayout(plot, {'xaxis.range': [11900, 12100]}); }"""
    )
    page.wait_for_function("() => within() === 201")
    run.steps(20_001, 20_001)
    page.wait_for_function("() => plot.data[0].x.at(-1) === 20001")
    assert page.evaluate("() => [within(), ...plot.layout.xaxis.range]") == [201, 11900, 12100]
    page.evaluate("() => Plotly.relayout(plot, {'xaxis.autorange': true})")
    assert page.evaluate("() => within() < 50 && plot.data[0].x.at(-1) === 20001")


USED = """() => { const plot = document.querySelector('.mbm-usage .mbm-plot');
    return plot.data.slice(1).map((line) => [line.name, line.y.at(-1), line.x.length]); }"""


@pytest.mark.parametrize(("lang", "power", "lags"), [
    ("en", "GPU power", "lowest GPU: 31.0% · node 1, GPU 2"), ("zh", "GPU 功耗", "最低的 GPU：31.0% · 节点 1 的 GPU 2"),
])  # fmt: skip
def test_use_over_time_is_a_line_a_node_and_names_the_gpu_that_lags(server, page, lang, power, lags):
    run = server.run(f"20260101-001300-usage-{lang * 2}", nodes=2, gpus_per_node=4)
    run.start()
    for _ in range(30):
        run.beat([0])
        row = heartbeat(1, 4, run.now)
        row["gpus"][2]["utilization"] = 31
        server.store.write(lambda c, row=row: metrics.add_heartbeats(c, run.id, 1, 1, [row], run.now))
        run.now += 2
    open_run(page, server, run.id, lang)
    chart = page.locator(".mbm-usage")
    expect(chart).to_contain_text(lags)
    first, second, worst = page.evaluate(USED)
    assert [first[0], second[0]] == [f"{rank} · {address}" for rank, address in enumerate(run.addresses)]
    assert first[2] == second[2] == worst[2] >= 15
    assert (worst[1], second[1] < first[1]) == (31, True)
    page.evaluate("() => { window.usage = document.querySelector('.mbm-usage .mbm-plot'); }")
    run.now += 300
    run.beat()
    page.wait_for_function("() => window.usage.data[1].x.length > 16")
    assert page.evaluate("() => usage.data[1].y.at(-2)") is None, "the line breaks where nothing was heard"
    chart.get_by_role("button", name=power).click()
    expect(chart.get_by_role("button", name=power)).to_have_attribute("aria-pressed", "true")
    page.wait_for_function("() => usage.data[1].y.at(-1) > 400")
    expect(chart.get_by_role("table").get_by_role("row", name=run.addresses[1])).to_contain_text("W")
    assert power in (chart.locator(".mbm-plot").get_attribute("aria-label") or "")


def test_every_logged_metric_has_a_chart_and_the_choices_of_the_reader_hold_for_all_charts(server, page):
    run = server.run("20260101-000260-metrics-dd")
    run.start()
    run.steps(1, 60, log_offset=44)
    run.log(0, "rank0.log", b"first line\n" * 4 + b"line of the step\n" + b"last line\n" * 9)
    rows = [
        {"step": step, "time": 1.0, "metrics": {"rewards/chosen": step / 60, "team/<b>x": 7}} for step in range(1, 61)
    ]
    rows += [{"step": step, "time": 1.0, "metrics": {"eval_loss": 2.0, "checkpoint": step}} for step in (20, 40, 60)]
    run.store.write(lambda c: logged_metrics.add(c, run.id, 1, 0, rows))
    open_run(page, server, run.id)
    page.wait_for_function("() => Megaboard.monitor.view().charts.data('team/<b>x')?.x.length === 60")
    expect(page.get_by_role("heading", name="team/<b>x", exact=True)).to_be_visible()
    expect(page.locator(".mbm-metrics summary h3")).to_have_text(["Evaluation", "Preferences", "team/"])
    plot = "document.querySelector('[data-chart=\"{}\"] .mbm-plot')"
    page.evaluate(f"() => {{ window.loss = {plot.format('loss')}; window.reward = {plot.format('rewards/chosen')}; }}")
    page.wait_for_function("() => loss.layout.shapes.length === 6")
    page.evaluate("() => Plotly.relayout(loss, {'xaxis.range': [10, 30]})")
    page.wait_for_function("() => String(reward.layout.xaxis.range) === '10,30' && reward.layout.shapes.length === 2")
    page.get_by_label("X axis").select_option("samples")
    page.wait_for_function("() => reward.data[0].x.at(-1) > 1000 && reward.data[0].customdata.at(-1) === 60")
    page.locator("[data-chart='rewards/chosen'] summary").click()
    page.locator("[data-chart='rewards/chosen']").get_by_label("Logarithmic axis").check()
    page.wait_for_function("() => reward.layout.yaxis.type === 'log'")
    page.locator("[data-chart='grad_norm'] summary").click()
    page.locator("[data-chart='grad_norm']").get_by_role("button", name="Hide").click()
    page.reload()
    page.wait_for_function("() => document.querySelectorAll('.mbm-basic .mbm-chart').length === 4")
    expect(page.get_by_label("X axis")).to_have_value("samples")
    page.wait_for_function(f"() => {plot.format('rewards/chosen')}?.layout?.yaxis.type === 'log'")
    page.evaluate(f"() => {plot.format('loss')}.emit('plotly_click', {{ points: [{{ customdata: 30 }}] }})")
    expect(page.locator(".mbm-marked")).to_have_text("line of the step")
    page.evaluate("() => localStorage.clear()")


def test_runs_side_by_side_draw_what_is_near_the_screen_and_share_their_zoom(server, page):
    runs = [server.run(f"20260101-00000{number}-side-aaaa", name=f"side{number}") for number in range(2)]
    for run in runs:
        run.start()
        run.steps(1, 3000)
        values = [
            {"step": step, "time": 0.0, "metrics": {f"own/{n}": 1.0 * step for n in range(12)}} for step in (1, 9)
        ]
        server.store.write(lambda c, run=run.id, rows=values: logged_metrics.add(c, run, 1, 0, rows))
    page.goto(f"{server.url}/en/#runs/compare/{runs[0].id},{runs[1].id}")
    plot = "document.querySelector('[data-chart=\"%s\"] .mbm-plot')"
    loss, last = plot % "loss", plot % "own/9"
    page.wait_for_function(f"() => {loss}?.data?.length === 4")
    page.wait_for_function(f"() => {last}")
    assert page.evaluate(f"() => {last}.data === undefined"), "a chart below the screen is not drawn"
    page.evaluate(f"() => window.Plotly.relayout({loss}, {{ 'xaxis.range': [1000, 1100] }})")
    page.wait_for_function(f"() => {loss}.data[0].x.filter((x) => x >= 1000 && x <= 1100).length === 101")
    # The page may still move its focus to the heading, which scrolls back.
    page.wait_for_function(
        f"() => {{ {last}.scrollIntoView(); return String({last}.layout?.xaxis.range) === '1000,1100'; }}"
    )
    page.evaluate(f"() => window.Plotly.relayout({last}, {{ 'xaxis.autorange': true }})")
    page.wait_for_function(
        f"() => {{ {loss}.scrollIntoView(); return {loss}.layout.xaxis.autorange && {loss}.data[0].x.length < 500; }}"
    )


def test_a_change_of_theme_recolours_the_charts_and_keeps_the_zoom(server, page):
    run = server.run("20260101-000800-dark-3333")
    run.start()
    run.steps(1, 20)
    open_run(page, server, run.id)
    wait_for_points(page, 20)
    before = page.evaluate(
        """() => { window.plot = document.querySelector('.mbm-wide .mbm-plot');
        return Plotly.relayout(plot, {'xaxis.range': [5, 9]}).then(() => plot._fullLayout.font.color); }"""
    )
    page.locator("[data-theme-toggle]").click()
    page.wait_for_function("(before) => plot._fullLayout.font.color !== before", arg=before)
    assert page.evaluate("() => [...plot._fullLayout.xaxis.range]") == [5, 9]
    page.locator("[data-theme-toggle]").click()


def test_a_reader_hears_the_last_value_and_the_trend(server, page):
    run = server.run("20260101-000900-heard-4444")
    run.start()
    run.steps(1, 100)
    open_run(page, server, run.id)
    wait_for_points(page, 100)
    row = page.get_by_role("table", name="Figures of the charts").get_by_role("row", name="Loss")
    expect(row).to_contain_text("falling")
    expect(page.locator(".mbm-wide .mbm-plot")).to_have_attribute("aria-label", re.compile("falling"))
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "25")


def test_the_menu_of_a_chart_moves_it_and_downloads_its_picture_and_its_points(server, page):
    run = server.run("20260101-004500-menu-aaaa", name="menu")
    run.start()
    run.steps(1, 30)
    open_run(page, server, run.id)
    wait_for_points(page, 30)
    chart = page.locator('[data-chart="loss"]')
    order = "() => [...document.querySelectorAll('.mbm-charts [data-chart]')].map((card) => card.dataset.chart)"

    def press(name: str) -> None:
        chart.locator(".mbm-menu summary").click()
        items = chart.locator(".mbm-menu-items")
        items.get_by_role("button", name=t("en", f"monitor.chart.menu.{name}"), exact=True).click()

    before = page.evaluate(order)
    assert before.index("loss") == 0
    press("later")
    assert page.evaluate(order) == [before[1], before[0], *before[2:]]
    page.reload()
    page.wait_for_selector(f'[data-run="{run.id}"] h2:not(:empty)')
    wait_for_points(page, 30)
    assert page.evaluate(order) == [before[1], before[0], *before[2:]], "the order is kept"
    press("earlier")
    assert page.evaluate(order) == before
    with page.expect_download() as picture:
        press("png")
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG\r\n")
    with page.expect_download() as table:
        press("csv")
    lines = Path(table.value.path()).read_text().splitlines()
    assert len(lines) == 31
    assert table.value.suggested_filename == f"{run.id}-loss.csv"
