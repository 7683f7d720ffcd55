"""The monitor in a real browser, with runs that the tests write into the store."""

import re
import time

import pytest

from app.text import t
from backend.runs.states import EventKind
from backend.runs.store import metrics
from tests.ui.browser import expect, needs_chromium
from tests.ui.monitored import TICK_S, open_run, shown_loss, stored_steps, wait_for_points
from tools.browser import log_in
from tools.stored_runs import heartbeat, problem

pytestmark = [pytest.mark.ui, needs_chromium]


def test_runs_stand_newest_first_and_open_by_keyboard(server, page):
    first = server.run("20260101-000000-first-aaaa", name="first", now=time.time() - 900)
    first.start()
    second = server.run("20260101-000100-second-bbbb", name="second")
    second.start()
    second.steps(1, 30)
    page.goto(f"{server.url}/en/#runs")
    rows = page.locator(f'.mbm-list tbody tr:is([data-key="{first.id}"], [data-key="{second.id}"])')
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("second")
    expect(rows.nth(0)).to_contain_text("Running")
    expect(rows.nth(0)).to_contain_text("30 / 400 · 7%")
    rows.nth(0).get_by_role("link").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector('[data-run="20260101-000100-second-bbbb"]')
    assert page.url.endswith("#runs/20260101-000100-second-bbbb")
    page.wait_for_function("() => document.activeElement.tagName === 'H2'")


@pytest.mark.parametrize(
    ("lang", "words", "done"),
    [
        ("en", "Use this for the cluster's estimates", "The cluster's estimates are calibrated on this run."),
        ("zh", "用于修正该集群的估算", "该集群的估算已按本次运行校准。"),
    ],
)
def test_measured_stands_beside_predicted_and_one_press_calibrates_the_cluster(server, page, lang, words, done):
    nodes = [f"measured-{lang}-{rank}" for rank in range(2)]
    # Now: a run that has stood still for long has no end.
    run = server.run(f"20260101-000300-measured-{lang}00", addresses=nodes, gpus_per_node=4, now=time.time())
    run.start()
    run.steps(1, 30, step_s=20.0, tokens=64 * 2048, total_steps=100_000)
    open_run(page, server, run.id, lang)
    expect(page.locator("[data-beside=tokens_per_s]")).not_to_be_empty()
    # The end is days ahead.
    expect(page.locator("[data-beside=eta]")).to_contain_text(re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d"))
    page.get_by_role("button", name=words).click()
    page.get_by_text(done).wait_for()
    expect(page.get_by_role("button", name=words)).to_be_hidden()
    assert f"run: {run.id}" in str(server.store.get_draft())
    again = page.get_by_role("button", name=t(lang, "monitor.compare.again"))
    expect(again).to_be_hidden()
    detail = {"figure": "time", "side": "high", "step": 20, "measured": 20.0, "low": 8.1, "high": 12.0}
    run.add_event(EventKind.OUTSIDE_INTERVAL, 0, problem={"code": "steps_slow_software"}, **detail)
    page.get_by_text(t(lang, "monitor.event.outside_interval", measured="20", low="8.1", high="12")).wait_for()
    expect(again).to_be_visible()


def test_a_tab_that_slept_catches_up_by_itself(server, page):
    run = server.run("20260101-000400-sleep-eeee")
    run.start()
    run.steps(1, 10)
    open_run(page, server, run.id)
    wait_for_points(page, 10)
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    requested = []
    page.evaluate(hide, True)
    page.wait_for_timeout(2 * 1000 * TICK_S)
    page.on("request", lambda request: requested.append(request.url) if "predict" in request.url else None)
    run.steps(11, 300, step_s=0.01)
    page.wait_for_timeout(4 * 1000 * TICK_S)
    assert not requested, "a tab nobody sees asks for nothing"
    page.evaluate(hide, False)
    wait_for_points(page, 300)
    assert shown_loss(page)["x"] == list(range(1, 301))


# The page's clock stands still: the page gives no question up, however slow this machine is.
SLOW_FETCH = """() => {
    const plain = window.fetch, now = Date.now();
    Date.now = () => now;
    Object.assign(window, { open: 0, most: 0, whole: 0 });
    window.fetch = async (...request) => {
        if (!String(request[0]).includes('predict')) return plain(...request);
        most = Math.max(most, ++open);
        if (JSON.parse(request[1].body).event_data.question.points.seq === undefined) whole += 1;
        await new Promise((done) => setTimeout(done, 1200));
        try { return await plain(...request); } finally { open -= 1; }
    };
}"""


def test_a_slow_server_is_asked_one_question_at_a_time_and_for_nothing_twice(server, page):
    run = server.run("20260101-000450-slow-6666")
    run.start()
    run.steps(1, 10)
    open_run(page, server, run.id)
    wait_for_points(page, 10)
    page.evaluate(SLOW_FETCH)
    for last in (11, 12, 13):
        run.steps(last, last)
        wait_for_points(page, last)
    assert page.evaluate("() => [most, whole]") == [1, 0]
    assert shown_loss(page)["x"] == list(range(1, 14))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_failure_names_its_node_and_shows_its_last_lines(server, page, lang):
    run = server.run(f"20260101-000500-fails-{lang}ff")
    run.start()
    run.steps(1, 5)
    node = run.addresses[2]
    why = problem("training_failed", node, rank=2, file="rank2.log", exit=1, lines="ValueError: <b>bad</b> shape")
    run.log(2, "rank2.log", b"ValueError: <b>bad</b> shape\n")
    run.exit(2, code=1, reason="failed")
    run.log(1, "rank1.log", b"waiting\n")
    run.add_event(EventKind.FAILING, 1, problem=problem("stalled", run.addresses[1], rank=1, file="rank1.log"))
    open_run(page, server, run.id, lang)
    expect(page.locator(".mbm-log")).to_contain_text("waiting")
    for rank in range(4):
        run.stopped(rank)
    run.add_event(EventKind.FAILED, 2, problem=why)
    cause = page.locator(".mbm-cause:visible")
    expect(cause).to_contain_text(node)  # The complete diagnosis may come with the end of the last node.
    expect(cause.locator(".mbm-lines")).to_have_text("ValueError: <b>bad</b> shape")
    proof = {"en": "4 of 4 nodes confirmed: 0 processes left", "zh": "4 个节点中 4 个已确认：残留进程 0 个"}
    expect(page.locator(".mbm-proof")).to_contain_text(proof[lang])
    expect(page.locator(".mbm-log")).to_contain_text("ValueError: <b>bad</b> shape")
    offered = page.locator(".mbm-title .mb-button:visible")
    buttons = {"en": ["Delete…", "Continue with changes…", "Resume…"], "zh": ["删除…", "修改后继续…", "恢复…"]}
    expect(offered).to_have_text(buttons[lang])


def test_what_slurm_says_of_a_waiting_job_is_shown(server, page):
    run = server.run("20260101-000520-slurm-ff")
    run.start()
    word = {"job": "4711", "state": "PENDING", "reason": "Priority", "position": 3, "partition": "gpu"}
    run.add_event(EventKind.SCHEDULER, **word)
    open_run(page, server, run.id)
    shown = page.locator(".mbm-scheduler:visible")
    expect(shown).to_contain_text("4711")
    expect(shown).to_contain_text("Priority")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_two_causes_that_fit_the_same_text_are_both_shown_with_the_line(server, page, lang):
    run = server.run(f"20260101-000510-two-{lang}")
    run.start()
    line = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    why = {"rank": 2, "of_rank": 17, "file": "rank17.log", "line": line, "lines": line, "detail": line}
    code, other = "gpu_memory_hidden", "index_out_of_range"
    run.add_event(EventKind.FAILING, 2, problem=problem(code, run.addresses[2], **why))
    for rank in range(4):
        run.stopped(rank)
    why |= {"is_certain": False, "others": [other], "versions": {"torch": "2.7.0", "CUDA": "12.8"}}
    run.add_event(EventKind.FAILED, 2, problem=problem(code, run.addresses[2], **why))
    open_run(page, server, run.id, lang)
    cause = page.locator(".mbm-cause:visible")
    expect(cause.locator(".mbm-evidence")).to_have_text(
        f"rank17.log: {line}" if lang == "en" else f"rank17.log： {line}"
    )
    expect(cause.locator("strong")).to_contain_text(t(lang, "monitor.cause.likely"))
    expect(cause).to_contain_text(f"{t(lang, 'monitor.cause.versions')} torch 2.7.0, CUDA 12.8")
    expect(cause.locator(".mbm-others li")).to_contain_text(t(lang, f"problem.{other}", node=run.addresses[2]))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_stop_shows_of_each_node_whether_the_gpus_memory_came_back(server, page, lang):
    run = server.run(f"20260101-000550-back-{lang}ff", nodes=2, gpus_per_node=2)
    run.start()
    run.beat()
    run.add_event(EventKind.NODE_STUCK, 1, stuck=[[4711, "python", "D"]])
    run.add_event(EventKind.STOP_REQUESTED, save=False)
    for rank, used in enumerate((12.0, 40_010.0)):
        run.exit(rank, code=None, signal=15, stopped=True, reason="stopped", gpus=[[0, 10.0, used], [1, 10.0, 10.0]])
        run.stopped(rank)
    run.add_event(EventKind.STOPPED)
    open_run(page, server, run.id, lang)
    rows = page.locator(".mbm-table tbody tr:visible")
    back = {"en": "✓ 0 left · ✓ GPU memory is back", "zh": "✓ 残留 0 · ✓ 显存已释放"}
    held = {"en": "✓ 0 left · ✕ 39.1 GiB of GPU memory still in use", "zh": "✓ 残留 0 · ✕ 仍有 39.1 GiB 显存被占用"}
    expect(rows.nth(0)).to_contain_text(back[lang])
    expect(rows.nth(1)).to_contain_text(held[lang])
    expect(page.locator(".mbm-events")).to_contain_text("python 4711 (D)")
    expect(page.locator(".mbm-events")).not_to_contain_text("None")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_of_32_nodes_the_one_that_holds_up_the_others_is_named_and_listed(server, page, lang):
    addresses = [f"{lang}-node-{rank}" for rank in range(32)]
    began = time.time() - 300
    run = server.run(f"20260101-000570-many-{lang}ff", nodes=32, gpus_per_node=8, addresses=addresses, now=began)
    run.start()
    run.steps(1, 30, step_s=0.1)
    run.now = time.time()
    run.beat([rank for rank in range(32) if rank != 17])
    row = {**heartbeat(17, 8, run.now), "stuck": [[4711, "python", "T", 141]], "disk_free_mib": 2048}
    server.store.write(lambda c: metrics.add_heartbeats(c, run.id, 1, 17, [row], run.now))
    run.add_event(EventKind.NODE_STUCK, 17, stuck=row["stuck"])
    open_run(page, server, run.id, lang)
    stands = page.locator(".mbm-finding[role=alert]")
    expect(stands).to_contain_text({"en": "No step since", "zh": "起没有新的训练步"}[lang])
    expect(stands).to_contain_text(f"17 · {addresses[17]}")
    expect(stands).to_contain_text("rank 141: python 4711 (T)")
    expect(stands.locator("code")).to_have_text("kill -CONT 4711")
    listed = page.locator(".mbm-table tbody tr:visible")
    expect(listed).to_have_count(1)
    expect(listed).to_contain_text(addresses[17])
    expect(listed).to_contain_text({"en": "2.00 GiB of disk left", "zh": "磁盘仅剩 2.00 GiB"}[lang])
    expect(page.locator(".mbm-heat tbody tr")).to_have_count(32)
    expect(page.locator(".mbm-heat [data-look]")).to_have_text(re.compile(f"^17 · {addresses[17]}"))
    assert page.locator(".mbm-nodes").bounding_box()["height"] < 900, "one screen"
    page.get_by_role("button", name={"en": "All 32 nodes", "zh": "全部 32 个节点"}[lang]).press("Enter")
    expect(listed).to_have_count(32)
    page.keyboard.press("Enter")
    expect(listed).to_have_count(1)


def test_logs_are_text_and_are_followed_and_filtered(server, page):
    run = server.run("20260101-000600-logs-1111")
    run.start()
    run.log(0, "out.log", b"console\n")
    run.log(0, "rank0.log", b"\x1b[32mgreen\x1b[0m <img src=x onerror=window.hacked=1>\n 10%|#\r 20%|##\r")
    run.log(1, "rank1.log", "第二个节点\n".encode())
    open_run(page, server, run.id)
    box = page.locator(".mbm-log")
    expect(box).to_have_text("green <img src=x onerror=window.hacked=1>\n 20%|##\n")
    run.log(0, "rank0.log", b" 90%|#########\rdone\n" + b"".join(b"line %d\n" % n for n in range(500)))
    expect(box).to_contain_text("line 499")
    expect(box).not_to_contain_text("20%")
    page.wait_for_function("() => document.querySelector('.mbm-log').scrollTop > 1000")
    page.get_by_label("Show lines with").fill("line 42")
    expect(page.locator(".mbm-log span:visible")).to_have_count(11)
    page.get_by_label("Node", exact=True).select_option("1")
    page.get_by_label("Show lines with").fill("")
    expect(box).to_have_text("第二个节点\n")
    page.get_by_label("Node", exact=True).select_option("0")
    page.get_by_label("File").select_option("out.log")
    expect(box).to_have_text("console\n")
    assert page.evaluate("() => window.hacked") is None


@pytest.mark.parametrize(("lang", "label"), [("en", "Attempt"), ("zh", "第几次启动")])
def test_the_log_of_an_older_attempt_can_be_read_while_the_newest_goes_on(server, page, lang, label):
    run = server.run(f"20260101-000650-attempts-{lang}11")
    run.start()
    run.log(0, "rank0.log", b"of the first\n")
    open_run(page, server, run.id, lang)
    box, attempt = page.locator(".mbm-log"), page.get_by_label(label, exact=True)
    expect(box).to_have_text("of the first\n")
    expect(attempt).to_be_hidden()
    run.restart(checkpoint_step=30)
    run.log(0, "rank0.log", b"a second, longer than the first\n")
    expect(box).to_have_text("a second, longer than the first\n")
    attempt.select_option("1")
    expect(box).to_have_text("of the first\n")
    run.log(0, "rank0.log", b"more of the second\n")
    for _ in range(3):
        page.wait_for_event("response", lambda answer: "predict" in answer.url)
    expect(box).to_have_text("of the first\n")
    attempt.select_option("2")
    expect(box).to_contain_text("more of the second")


def test_stop_asks_once_more_and_then_proves_that_nothing_is_left_in_every_tab(server, page, context):
    run = server.run("20260101-000700-stop-2222", addresses=[f"127.0.0.1:{port}" for port in (1, 2, 3, 4)])
    run.start()
    run.steps(1, 3)
    open_run(page, server, run.id)
    page.get_by_role("button", name="Stop now").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Keep running")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator(".mbm-title .mbm-badge")).to_have_text("●Running")
    other = context.new_page()
    open_run(other, server, run.id, "zh")
    other.get_by_role("button", name="立即停止").first.click()
    expect(other.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Stop now").first.click()
    dialog.get_by_role("button", name="Stop now").click()
    expect(page.locator(".mbm-title .mbm-badge")).to_have_text("◑Stopping")
    expect(other.locator(".mbm-title .mbm-badge")).to_have_text("◑停止中")
    expect(other.get_by_role("dialog")).to_be_hidden()
    other.close()
    for rank in range(4):
        run.stopped(rank)
        run.exit(rank, code=-15, signal=15, reason="stopped", stopped=True)
    expect(page.locator(".mbm-title .mbm-badge")).to_have_text("■Stopped")
    expect(page.locator(".mbm-proof")).to_contain_text("4 of 4 nodes confirmed: 0 processes left")
    expect(page.locator(".mbm-table td[data-tone=good]")).to_have_count(4)


def test_an_unknown_run_is_reported(server, page):
    page.goto(f"{server.url}/en/#runs/20200101-000000-never-0000")
    expect(page.locator("#mb-monitor .mbm-cause:visible")).to_contain_text("20200101-000000-never-0000")
    expect(page.locator("#mb-monitor button:visible")).to_have_count(0)
    expect(page.locator(".mbm-back")).to_be_visible()


def test_after_the_server_was_killed_one_log_in_brings_every_tab_back_to_its_run_and_every_point(server, context):
    run = server.run("20260101-001000-again-5555")
    run.start()
    run.steps(1, 40)
    page = context.new_page()
    open_run(page, server, run.id, "zh")
    wait_for_points(page, 40)
    other = context.new_page()
    open_run(other, server, run.id)
    server.kill()
    expect(page.get_by_text("服务器没有响应")).to_be_visible()
    page.get_by_role("button", name="立即停止").first.click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    run.steps(41, 55)
    server.start()
    page.wait_for_url("**/login?lang=zh")
    other.wait_for_url("**/login?lang=en")
    log_in(page, server)
    for tab, lang in ((page, "zh"), (other, "en")):
        tab.wait_for_selector(f'[data-run="{run.id}"]')
        wait_for_points(tab, 55)
        assert shown_loss(tab)["x"] == stored_steps(server, run.id) == list(range(1, 56))
        assert f"/{lang}/" in tab.url
        assert tab.url.endswith(f"#runs/{run.id}")
        tab.close()
