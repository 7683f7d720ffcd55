// "Why not TP=8 PP=3?": asked of the server, which knows the rules. What it answers can be chosen.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  // What the answer on screen was about: with other plans it holds no longer.
  let answered = null, clear = () => {};
  const plansNow = () => JSON.stringify([board.wizard.bundle()?.data.plans?.why, board.wizard.bundle()?.data.plans?.count]);

  function form() {
    const { h, t } = board;
    const answer = h("div", { class: "mb-plans-answer", "aria-live": "polite" });
    const field = h("input", { type: "text", class: "mb-plans-sizes", maxlength: "80", placeholder: "TP=8 PP=3",
      "aria-label": t("wizard.plan.ask.label"), autocomplete: "off", spellcheck: "false" });
    clear = () => board.fill(answer);
    const send = async (event) => {
      event.preventDefault();
      const query = new URLSearchParams({ sizes: field.value, lang: board.wizard.lang() });
      try {
        const got = await fetch(`/api/why-not?${query}`);
        if (!got.ok) throw new Error(got.statusText);
        const { words, choose } = await got.json();
        board.fill(answer, h("p", {}, words), choose && h("button", { type: "button", class: "mb-tool",
          onclick: ({ target }) => {
            target.disabled = true;
            board.wizard.send("apply", { edits: choose.edits });
          } }, choose.words));
      } catch {
        board.fill(answer, h("p", {}, t("wizard.plan.ask.failed")));
      }
      answered = plansNow();
    };
    return h("form", { class: "mb-plans-ask", onsubmit: send }, h("label", {}, t("wizard.plan.ask"), field,
      t("wizard.plan.ask.mark")),
      h("button", { type: "submit", class: "mb-tool" }, t("wizard.plan.ask.send")), answer);
  }

  document.addEventListener("megaboard:drawn", () => {
    if (answered === null || answered === plansNow()) return;
    answered = null;
    clear();
  });

  board.whyNot = form;
})();
