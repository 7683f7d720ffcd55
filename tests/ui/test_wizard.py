"""The wizard in a real browser: input reaches the draft, and problems are shown beside their fields."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from app.text import t
from backend.job.data_folder import data_folder
from backend.job.presets import intervals
from tests.ui.browser import STEPS, begin_anew, box, expect, go, held, needs_chromium, problems, until, without_timers
from tools.browser import Server, log_in, logged_in, served

WITHOUT_IMAGES = {"training": {"images_per_sample": 0}, "parallel": {"tensor": 4}}
"""The plan is TP4 PP1 DP8, and TP trains no vision parts wrongly."""
CHOOSE = """() => { const { keys, rows } = Megaboard.wizard.payload().data.plans;
    const named = rows.map((values) => Object.fromEntries(keys.map((key, index) => [key, values[index]])));
    const plan = named.find((row) => row.tensor === 2 && row.pipeline === 2 && row.virtual_pipeline === 2);
    Megaboard.wizard.choose(plan, true); }"""
"""Choose TP2 PP2 VPP2, as a click on its row does."""

pytestmark = [pytest.mark.ui, needs_chromium]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("wizard")) as server:
        yield server


@pytest.fixture(scope="module")
def page(server) -> Iterator[Any]:
    with logged_in(server) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
        yield page


@pytest.fixture(autouse=True)
def _anew(page) -> None:
    begin_anew(page)


def test_pasted_typed_and_deleted_text_all_count(page, server):
    go(page, server, "hardware")
    lines = box(page, "cluster.hosts.lines")
    page.evaluate("navigator.clipboard.writeText('train@10.0.0.1\\n10.0.0.2:2222 fabric=192.168.0.2')")
    lines.focus()
    page.keyboard.press("Control+V")
    until(page, "b.data.hosts?.length === 2")
    expect(page.locator("#place-hosts")).to_contain_text("train@10.0.0.1:22")
    expect(page.locator("#place-hosts")).to_contain_text("192.168.0.2")
    for _ in range(len("\n10.0.0.2:2222 fabric=192.168.0.2")):
        page.keyboard.press("Backspace")
    until(page, "b.data.hosts?.length === 1")
    page.keyboard.type("\nbad host")
    expect(problems(page, "cluster.hosts.lines").first).to_contain_text("Line 2")
    expect(page.locator('.mb-steps a[data-step="hardware"] .mb-mark[data-kind="errors"]')).to_have_text(re.compile("1"))


def test_without_an_estimate_the_page_says_why_and_the_sizes_are_set_by_hand(page, server):
    new = {"model": {"hf_config": {"model_type": "brand_new"}}, "engine": "swift-megatron"}
    begin_anew(page, {**new, "training": {"images_per_sample": 0}})
    go(page, server, "model")
    expect(problems(page, "model.hf_config")).to_have_attribute("data-code", "model_not_estimated")
    expect(page.locator(".mb-summary strong")).to_have_text(t("en", "wizard.summary.unestimated"))
    go(page, server, "plan")
    for view in ("plans", "memory"):
        expect(page.locator(f"#place-{view}")).to_contain_text("brand_new")
    box(page, "parallel.tensor").fill("4")
    until(page, "b.summary.plan === 'TP4 PP2 DP4'")


def test_what_a_node_or_a_model_is_called_is_never_markup(page, server):
    go(page, server, "hardware")
    box(page, "cluster.hosts.lines").fill("<img/src=x/onerror=alert(1)>\nok")
    expect(problems(page, "cluster.hosts.lines").first).to_contain_text("<img/src=x/onerror=alert(1)>")
    go(page, server, "model")
    page.locator("#field-model-preset input").click()
    page.get_by_role("option", name="Another model").click()
    box(page, "model.hf_config").fill('{"model_type": "<img src=x onerror=alert(2)>", "hidden_size": 1}')
    named = page.locator("#step-model .mb-problem").filter(has_text="<img src=x onerror=alert(2)>")
    expect(named.first).to_be_visible()
    assert page.locator("#area-wizard img").count() == 0


def test_a_problem_stands_by_its_field_and_its_fix_is_one_click(page, server):
    go(page, server, "training")
    page.locator('[data-more="wizard-training-more"]').click()
    box(page, "training.seed").fill("0")
    expect(problems(page, "training.seed")).to_contain_text("above 0")
    assert box(page, "training.seed").get_attribute("aria-invalid") == "true"
    problems(page, "training.seed").get_by_role("button", name="Set to 42").click()
    expect(box(page, "training.seed")).to_have_value("42")
    expect(problems(page, "training.seed")).to_have_count(0)


def test_a_field_with_an_error_is_reached_from_the_list_of_what_is_missing(page, server):
    go(page, server, "launch")
    expect(page.locator('[data-act="check"]')).to_be_disabled()
    expect(page.locator(".mb-actions-words")).to_contain_text(t("en", "wizard.launch.incomplete"))
    page.locator(".mb-todo").get_by_role("button", name="Model folder on the nodes").click()
    assert page.evaluate("() => document.documentElement.dataset.step") == "model"
    assert page.evaluate("() => document.activeElement.closest('.block').id") == "field-model-path"


def test_a_plan_is_chosen_by_keys_and_the_last_one_counts(page, server):
    go(page, server, "plan")
    page.locator(".mb-plans tbody tr[data-index]").first.wait_for()
    page.locator(".mb-plans").focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    chosen = page.locator('.mb-plans tr[aria-selected="true"]')
    expect(chosen).to_have_attribute("data-index", "3")
    expect(page.locator(".mb-plans-cost")).to_contain_text("The chosen plan:")
    heads = page.locator(".mb-plans thead th").all_inner_texts()
    cells = dict(zip(heads, chosen.locator("td").all_inner_texts(), strict=True))
    expect(box(page, "parallel.tensor")).to_have_value(cells["TP"])
    expect(box(page, "training.micro_batch_size")).to_have_value(cells["MBS"])
    until(page, f"b.summary.plan.endsWith('DP{cells['DP']}') && b.data.plans.own !== null")
    assert page.get_attribute(".mb-plans", "aria-activedescendant") == "plan-3"
    expect(page.locator("#place-memory .mb-stack")).to_have_count(int(cells["PP"]))


def test_what_is_drawn_anew_while_the_mouse_is_down_is_still_clicked(page, server):
    go(page, server, "plan")
    page.locator(".mb-plans tbody tr[data-index]").first.wait_for()
    page.locator(".mb-plans").focus()
    page.keyboard.press("Home")
    until(page, "b.data.plans.own === 0")
    row = page.locator('.mb-plans tbody tr[data-index="2"]')
    row.hover()
    page.mouse.down()
    page.evaluate(
        "() => { const b = Megaboard.wizard.payload(); Megaboard.wizard.take(JSON.stringify({...b, at: b.at + 1})) }"
    )
    page.mouse.up()
    expect(page.locator('.mb-plans tr[aria-selected="true"]')).to_have_attribute("data-index", "2")


def test_a_menu_that_is_open_holds_nothing_up(page, server):
    go(page, server, "plan")
    page.locator(".mb-plans tbody tr[data-index]").first.hover()
    page.mouse.down(button="right")
    drawn = page.evaluate(
        """() => { let drawn = 0; const b = Megaboard.wizard.payload();
        document.addEventListener("megaboard:drawn", () => { drawn += 1; });
        Megaboard.wizard.take(JSON.stringify({...b, at: b.at + 1})); return drawn; }"""
    )
    page.mouse.up(button="right")
    assert drawn == 1


def test_a_plan_of_the_table_is_chosen_and_its_groups_are_shown(page, server):
    begin_anew(page, WITHOUT_IMAGES)
    go(page, server, "plan")
    # The first figures may be those of the draft before, whose table has no such plan.
    until(page, "b.summary.plan === 'TP4 PP1 DP8' && b.data.plans?.rows.length && Megaboard.draft.isResting()")
    page.evaluate(CHOOSE)
    until(page, "b.summary.plan === 'TP2 PP2 VPP2 DP8'")
    expect(page.locator("#place-memory .mb-stack")).to_have_count(2)
    page.locator("#tab-ranks").click()
    page.locator("#place-ranks").get_by_role("button", name="PP groups").click()
    expect(page.locator("#place-ranks")).to_contain_text("PP groups: 16 of 2 ranks, each over 2 nodes")


def test_a_plan_that_trains_wrongly_is_reported_and_the_right_one_is_taken_with_one_press(page, server):
    begin_anew(page, {"training": {}, "parallel": {"tensor": 4}})
    go(page, server, "plan")
    locator = page.locator(".mb-plans-even .mb-problem")
    expect(locator).to_contain_text("wrong gradients")
    locator.get_by_role("button", name="Use TP1 PP2 VPP3 DP16").click()
    until(page, "b.summary.plan === 'TP1 PP2 VPP3 DP16' && b.data.plans.own === b.data.plans.recommended")
    # Its two stages are unequal, which is another note at the same place.
    expect(locator.filter(has_text="wrong gradients")).to_have_count(0)


def test_the_pictures_of_a_plan_say_their_figures_and_follow_another_plan(page, server):
    begin_anew(page, WITHOUT_IMAGES)
    go(page, server, "plan")
    until(page, "b.summary.sound && b.data.plans.rows.length")
    until(page, "b.summary.plan === 'TP4 PP1 DP8'")
    page.locator("#tab-schedule").click()
    expect(page.locator("#place-schedule")).to_contain_text("PP is 1: no pipeline, no bubble.")
    page.evaluate(CHOOSE)
    until(page, "b.summary.plan === 'TP2 PP2 VPP2 DP8'")
    bubble = f"{page.evaluate('() => Megaboard.wizard.payload().summary.bubble'):.1%}"
    expect(page.locator(".mb-timeline")).to_have_attribute("aria-label", re.compile(f"bubble {re.escape(bubble)}"))
    page.locator("#place-schedule .mb-twin summary").press("Enter")
    shown = page.evaluate("() => Megaboard.wizard.payload().at")
    page.evaluate("() => Megaboard.wizard.send('refresh')")
    until(page, f"b.at > {shown} && document.activeElement.matches('#place-schedule .mb-twin[open] summary')")
    expect(page.locator("#place-schedule .mb-twin tbody tr")).to_have_count(2)
    page.locator("#tab-schedule").press("ArrowLeft")
    expect(page.locator("#tab-time")).to_be_focused()
    rows = page.locator(".mb-spent tbody tr")
    rows.first.wait_for()
    seconds = [float(text) for text in rows.locator("td:nth-child(3)").all_inner_texts() if "<" not in text]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=0.01)
    page.locator("#tab-pareto").click()
    page.locator("#place-pareto .mb-twin summary").press("Enter")
    before = page.evaluate("() => Megaboard.wizard.payload().data.plans.own")
    page.locator("#place-pareto .mb-twin").get_by_role("button", name="Choose").first.click()
    until(page, f"b.data.plans.own !== {before} && Megaboard.wizard.isSettled()")
    before = page.evaluate("() => Megaboard.wizard.payload().data.plans.own")
    # The best plans lie on top, and the slowest one far from them.
    slowest = page.locator("#place-pareto .scatterlayer path.point").first
    slowest.scroll_into_view_if_needed()
    bounding_box = slowest.bounding_box()
    page.mouse.click(bounding_box["x"] + bounding_box["width"] / 2, bounding_box["y"] + bounding_box["height"] / 2)
    until(page, f"b.data.plans.own !== {before}")
    expect(page.locator("#place-pareto .annotation-text", has_text="Chosen:")).to_be_visible()
    page.locator("#tab-strategies").click()
    expect(page.locator(".mb-strategies tbody tr")).to_have_count(9)
    expect(page.locator(".mb-strategies .mb-best")).to_have_count(1)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_strategies_of_the_largest_recipe_are_compared_at_a_batch_that_all_can_do_and_say_so(page, server, lang):
    go(page, server, "hardware", lang)
    page.select_option("#mb-recipe", "qwen2.5-72b-megatron")
    page.click("#mb-recipe-use")
    until(page, "b.fetched?.note.key === 'qwen2.5-72b-megatron' && Megaboard.draft.isResting()")
    go(page, server, "plan", lang)
    page.locator("#tab-strategies").click()
    rows = page.locator(".mb-strategies tbody tr")
    expect(rows).to_have_count(9)
    expect(page.locator("#place-strategies .mb-problem")).to_contain_text("32")
    expect(rows.get_by_role("button")).to_have_count(9)
    rows.filter(has_text="ZeRO-3").first.get_by_role("button").click()
    until(page, "b.summary.global_batch === 32")
    expect(page.locator("#place-strategies .mb-problem")).to_have_count(0)


def test_why_not_is_answered_in_the_users_language_and_filters_leave_what_they_say(page, server):
    begin_anew(page, WITHOUT_IMAGES)
    go(page, server, "plan", "zh")
    page.locator(".mb-plans-sizes").fill("TP=8 PP=3")
    page.keyboard.press("Enter")
    expect(page.locator(".mb-plans-answer")).to_contain_text("整除")
    page.locator(".mb-plans-answer").get_by_role("button").click()
    until(page, "b.summary.plan.startsWith('TP8 ') && b.data.plans.own !== null")
    go(page, server, "plan")
    every = int(page.get_attribute(".mb-plans", "aria-rowcount"))
    page.get_by_label(t("en", "wizard.plan.only.fits")).check()
    assert int(page.get_attribute(".mb-plans", "aria-rowcount")) < every
    assert page.locator(".mb-plans tr.mb-over").count() == 0


def test_the_estimate_follows_an_edit_and_says_in_words_whether_it_fits(page, server):
    go(page, server, "plan")
    page.locator(".mb-plans").focus()
    page.keyboard.press("End")
    until(page, "b.data.plans.own === b.data.plans.rows.at(-1)[b.data.plans.keys.indexOf('rank')]")
    page.locator(".mb-plans-use").click()
    until(page, "b.data.plans.own === b.data.plans.recommended")
    expect(page.locator(".mb-plans-use")).to_be_hidden()
    expect(page.locator(".mb-plans")).to_be_focused()
    expect(page.locator(".mb-summary")).to_contain_text(re.compile(r"Fits.*Tokens/s/GPU[\d,]+ to [\d,]+"))
    box(page, "training.micro_batch_size").fill("64")
    expect(page.locator(".mb-summary")).to_contain_text("Does not fit")
    # It stays on screen, whatever is looked at below.
    page.evaluate("() => window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function("() => window.scrollY > 300")
    expect(page.locator(".mb-summary")).to_be_in_viewport(ratio=1)
    expect(page.locator("#mb-header")).to_be_in_viewport(ratio=1)
    box(page, "training.micro_batch_size").fill("1")
    expect(page.locator(".mb-summary")).to_contain_text("Fits")


@pytest.mark.parametrize(
    ("lang", "near", "time", "memory"),
    [
        ("en", "May not fit", "80% interval: measured times were", "80% interval: measured needs were"),
        (
            "zh",
            "可能放不下",
            f"80% 区间：在 {intervals().sources} 个公开来源上，实测耗时",
            f"80% 区间：在 {intervals().sources} 个公开来源上，实测显存",
        ),
    ],
)
def test_what_error_to_expect_stands_beside_the_figures_and_a_plan_within_it_may_not_fit(
    page, server, lang, near, time, memory
):
    go(page, server, "hardware", lang)
    page.select_option("#mb-recipe", "qwen3-30b-a3b-8-gpus")
    page.click("#mb-recipe-use")
    until(page, "b.fetched?.note.key === 'qwen3-30b-a3b-8-gpus' && Megaboard.draft.isResting()")
    go(page, server, "plan", lang)
    expect(page.locator(".mb-summary strong")).to_have_text(near)
    expect(page.locator(".mb-plans .mb-near .mb-meter-verdict").first).to_have_text(near.lower())
    page.locator("#tab-time").click()
    expect(page.locator("#place-time")).to_contain_text(time)
    page.locator("#tab-memory").click()
    expect(page.locator("#place-memory .mb-accuracy")).to_contain_text(memory)
    assert "±" not in page.locator("body").inner_text()


def test_a_stage_says_by_keys_why_it_needs_its_memory_and_stays_open_after_an_edit(page, server):
    go(page, server, "plan")
    page.locator("#tab-memory").click()
    stage = page.locator("#place-memory .mb-why").first
    stage.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(stage.locator("tbody th").first).to_have_text("Weights")
    expect(stage.locator(".mb-formula").first).to_contain_text("2 bytes each × ")
    shown = page.evaluate("() => Megaboard.wizard.payload().at")
    page.evaluate("() => Megaboard.wizard.send('refresh')")
    until(page, f"b.at > {shown} && document.activeElement.closest('.mb-why')?.open")
    box(page, "training.micro_batch_size").fill("2")
    expect(stage.locator(".mb-formula", has_text="tokens of a micro-batch").first).to_contain_text("8,192 tokens")
    box(page, "training.micro_batch_size").fill("1")
    expect(page.locator("#place-memory .mb-accuracy")).to_contain_text("published sources")
    stage.locator("summary").focus()
    page.keyboard.press("Space")
    expect(stage.locator("table")).to_be_hidden()


def test_values_survive_a_reload_another_language_and_a_restart(page, server):
    go(page, server, "training")
    box(page, "training.dataset").fill("identity,mine")
    box(page, "training.learning_rate").fill("3e-5")
    box(page, "training.cutoff_len").fill("")
    expect(problems(page, "training.cutoff_len")).to_contain_text("whole number")
    go(page, server, "training", "zh")
    expect(box(page, "training.dataset")).to_have_value("identity,mine")
    expect(box(page, "training.learning_rate")).to_have_value("3e-5")
    expect(problems(page, "training.cutoff_len")).to_contain_text("整数")
    box(page, "training.cutoff_len").fill("2048")
    until(page, "b.summary.sound")
    server.kill()
    # Gradio sends the first of these alone, into the void.
    box(page, "training.dataset").fill("identity,mine,yours")
    box(page, "training.cutoff_len").fill("1024")
    page.get_by_label("fp16", exact=True).check()
    box(page, "training.lr_scheduler").click()
    page.get_by_role("option", name="linear", exact=True).click()
    page.locator("#field-training-packing input").check()
    expect(page.locator("#mb-lost")).to_contain_text("保留在本标签页")
    server.start()
    page.wait_for_url("**/login**")
    log_in(page, server)
    expect(box(page, "training.dataset")).to_have_value("identity,mine,yours")
    expect(box(page, "training.cutoff_len")).to_have_value("1024")
    until(page, "b.summary.sound")
    go(page, server, "training")
    expect(box(page, "training.cutoff_len")).to_have_value("1024")
    expect(box(page, "training.lr_scheduler")).to_have_value("linear")
    expect(page.get_by_label("fp16", exact=True)).to_be_checked()
    expect(page.locator("#field-training-packing input")).to_be_checked()


def test_stages_that_hold_each_other_up_are_evened_out_with_one_press(page, server):
    begin_anew(page, {"training": {}, "parallel": {"pipeline": 4}})
    go(page, server, "plan")
    note = page.locator(".mb-plans-even .mb-problem")
    expect(note).to_contain_text("layers instead of 9/9/9/9")
    before = page.evaluate("Megaboard.wizard.payload().summary.speed")
    note.get_by_role("button").click()
    until(page, f"b.summary.speed > 1.02 * {before} && b.data.plans.own !== null")
    expect(note).to_have_count(0)
    expect(page.locator(".mb-plans-cost")).to_contain_text("Its stages hold unequal numbers of layers: Et*")
    page.locator(".mb-plans-use").click()
    until(page, "b.data.plans.own === b.data.plans.recommended")


def test_two_tabs_edit_one_draft_and_each_shows_what_the_other_changed(page, server):
    """Fields and table of a page agree, even if both tabs edited the same field."""
    begin_anew(page, WITHOUT_IMAGES)
    go(page, server, "plan")
    until(page, "b.summary.plan === 'TP4 PP1 DP8'")
    box(page, "training.global_batch_size").fill("64")
    until(page, "b.summary.global_batch === 64")
    other = page.context.new_page()
    try:
        go(other, server, "plan", "zh")
        box(page, "training.micro_batch_size").fill("2")
        until(page, "b.summary.sound")
        box(other, "training.global_batch_size").fill("128")
        expect(box(other, "training.micro_batch_size")).to_have_value("2")
        box(page, "training.global_batch_size").fill("32")
        until(page, "b.summary.global_batch === 32")
        other.evaluate("window.dispatchEvent(new Event('focus'))")
        expect(box(other, "training.global_batch_size")).to_have_value("32")
        until(other, "b.summary.global_batch === 32")
    finally:
        other.close()


def test_an_edit_answered_after_the_next_step_was_shown_counts_in_its_plans(page, server):
    """The answer has the data of the step on which the edit was made. The table used to stay as it was."""
    begin_anew(page, WITHOUT_IMAGES)
    go(page, server, "plan")
    until(page, "b.data.plans?.rows.length")
    few = page.evaluate("Megaboard.wizard.payload().data.plans.count")
    page.click('.mb-steps a[data-step="hardware"]')
    with held(page, lambda asked: asked["data"] == [8, "hardware"]) as release:
        box(page, "cluster.nodes").fill("8")
        page.click('.mb-steps a[data-step="plan"]')
        until(page, "b.step === 'plan'")
        expect(page.locator(".mb-stale .mb-summary")).to_be_visible()
        # What is asked meanwhile is asked of the table to come: its best is another one.
        page.locator(".mb-plans").focus()
        page.keyboard.press("Home")
        release()
        until(page, f"b.data.plans.count > {few} && b.data.plans.own === 0")
    expect(page.locator('#step-plan[aria-busy="true"], .mb-stale .mb-summary')).to_have_count(0)
    expect(page.locator('.mb-plans tr[aria-selected="true"]')).to_have_attribute("data-index", "0")


def test_a_step_shown_before_the_page_had_its_first_answer_is_filled(page, server):
    early = page.context.new_page()
    with held(early, lambda asked: asked["data"][1:] == ["hardware"]) as release:
        early.goto(f"{server.url}/en/#hardware")
        early.click('.mb-steps a[data-step="plan"]')
        release()
        early.locator(".mb-plans tr[data-index]").first.wait_for()
    early.close()


def test_a_choice_whose_answer_comes_too_late_leaves_the_drafts_plan_chosen(page, server):
    go(page, server, "plan")
    page.locator(".mb-plans").focus()
    page.keyboard.press("Home")
    until(page, "b.data.plans?.own === 0 && Megaboard.wizard.isSettled() && Megaboard.draft.isResting()")
    chosen = page.locator('.mb-plans tr[aria-selected="true"]')
    patience_ms = int(re.search(r"patience_ms: (\d+)", (data_folder("static") / "wizard/choices.js").read_text())[1])
    with (
        without_timers(page, patience_ms),  # the choice is not sent again, however slow this machine is
        held(page, lambda asked: "ticket" in (asked.get("event_data") or {})) as release,
    ):
        page.keyboard.press("ArrowDown")
        expect(chosen).to_have_attribute("data-index", "1")
        ticket = release.first()["event_data"]["ticket"]
        take = "Megaboard.wizard.take(JSON.stringify({...Megaboard.wizard.payload(), at: Megaboard.wizard.payload().at"
        page.evaluate(f"() => {take} + 1}}))")
        expect(chosen).to_have_attribute("data-index", "1")
        page.evaluate(f"() => {take} - 1, ticket: {ticket}}}))")
        expect(chosen).to_have_attribute("data-index", "0")
        release()
    expect(chosen).to_have_attribute("data-index", "1")


def test_an_answer_older_than_what_is_shown_is_dropped(page, server):
    go(page, server, "plan")
    until(page, "b.summary.sound")
    shown = page.inner_text(".mb-summary")
    page.evaluate(
        """() => {
          const payload = Megaboard.wizard.payload();
          const old = { ...payload, at: payload.at - 1, summary: { sound: false, errors: 9 } };
          Megaboard.wizard.take(JSON.stringify(old));
        }"""
    )
    assert page.inner_text(".mb-summary") == shown


def test_a_page_at_rest_asks_for_no_frames(page, server):
    at_rest = page.context.new_page()
    at_rest.add_init_script(
        """(() => {
          const ask = window.requestAnimationFrame.bind(window);
          Object.assign(window, { asked: 0, frame: () => new Promise(ask) });
          window.requestAnimationFrame = (callback) => { window.asked += 1; return ask(callback); };
        })()"""
    )
    go(at_rest, server, "plan")
    until(at_rest, "b.summary.sound")
    rests = at_rest.evaluate(
        """async () => {
          for (let turn = 0; turn < 300; turn += 1) {
            const before = window.asked;
            for (let count = 0; count < 3; count += 1) await window.frame();
            if (window.asked === before) return true;
          }
          return false;
        }"""
    )
    assert rests
    at_rest.close()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_step_is_wider_than_1280_pixels(page, server, lang):
    go(page, server, "hardware", lang)
    for step in STEPS:
        page.click(f'.mb-steps a[data-step="{step}"]')
        page.wait_for_function(f"() => document.documentElement.dataset.step === '{step}'")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280, step
        assert page.locator(f"#step-{step} h2").is_visible()
