// What is typed and never shown again: secrets of the ranks, and passphrases of keys. Sent by a request of their own;
// the page keeps no copy, and the server answers names alone.
(() => {
  const board = (window.Megaboard = window.Megaboard || {});
  const panels = (board.panels = board.panels || {});
  let kept = null;

  // Made once: a bundle must not take away what is being typed.
  panels.secrets = (element) => {
    if (element.firstChild) return;
    const { h, t } = board;
    const names = h("datalist", { id: "mb-secret-names" });
    const name = h("input", { type: "text", class: "mb-typed", list: "mb-secret-names", spellcheck: "false",
      autocomplete: "off", placeholder: "HF_TOKEN" });
    const value = hiddenInput();
    const list = h("ul", { class: "mb-secrets" }), told = h("div", { role: "status" });
    const keep = async () => {
      const asked = { name: name.value, value: value.value };
      value.value = "";
      const answer = await ask("POST", "/api/secrets", asked);
      if (answer.names) name.value = "";
      show(answer, t("wizard.secrets.kept", { name: asked.name.trim() }));
    };
    const forget = async (one) => show(await ask("DELETE", `/api/secrets/${encodeURIComponent(one)}`),
      t("wizard.secrets.forgotten", { name: one }));
    const show = (answer, words) => {
      if (answer.names) kept = answer.names;
      if (answer.common) board.fill(names, answer.common.map((one) => h("option", { value: one })));
      board.fill(list, (kept || []).map((one) => h("li", {}, h("code", {}, one), " ",
        h("button", { type: "button", class: "mb-link", onclick: () => forget(one) },
          t("wizard.secrets.forget", { name: one })))));
      board.fill(told, answer.problems ? answer.problems.map(board.fields.drawProblem) : words);
    };
    board.fill(element, h("section", { class: "mb-card mb-section" }, h("h3", {}, t("wizard.secrets")),
      h("p", {}, t("wizard.secrets.lead")), list, names,
      form(keep, h("label", {}, h("span", {}, t("wizard.secrets.name")), name),
        h("label", {}, h("span", {}, t("wizard.secrets.value")), value),
        h("button", { class: "mb-button" }, t("wizard.secrets.keep"))), told));
    ask("GET", "/api/secrets").then((answer) => show(answer, ""));
  };

  // The form below a problem that only a key's passphrase removes; `after` is called once it was sent.
  function unlock(path, after) {
    const { h, t } = board;
    const value = hiddenInput(), told = h("div", { role: "status" });
    const send = async () => {
      const passphrase = value.value;
      value.value = "";
      const { problems } = await ask("POST", "/api/passphrases", { name: path, value: passphrase });
      board.fill(told, (problems || []).map(board.fields.drawProblem));
      if (!problems) after?.();
    };
    return form(send, h("label", {}, h("span", {}, t("wizard.unlock")), value),
      h("button", { class: "mb-button" }, t("wizard.unlock.go")), told);
  }

  const hiddenInput = () => board.h("input", { type: "password", class: "mb-typed", autocomplete: "new-password",
    spellcheck: "false" });

  function form(submit, ...parts) {
    const send = (event) => { event.preventDefault(); submit(); };
    return board.h("form", { class: "mb-desk mb-secret-form", autocomplete: "off", onsubmit: send }, ...parts);
  }

  async function ask(method, path, body) {
    const failed = { problems: [{ severity: "error", message: board.t("wizard.secrets.failed"), fix: "" }] };
    const headers = body && { "content-type": "application/json" };
    try {
      const answer = await fetch(`${path}?lang=${board.wizard.lang()}`,
        { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
      return answer.ok || answer.status === 422 ? await answer.json() : failed;
    } catch {
      return failed;
    }
  }

  board.unlock = unlock;
})();
