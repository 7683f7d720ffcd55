// The conversation of one tab: questions, and the streamed answers of each model beside each other.
import { setCommands } from "../lib/commands.js";
import { fill, h, text } from "../lib/dom.js";
import { lang, w } from "../lib/words.js";
import { linesOf } from "../lib/stream.js";
import { asDataUrl } from "./chat_image.js";

export function Answers() {
  const turns = h("div.mbm-turns", { role: "log", "aria-live": "polite", "aria-label": w("chat.conversation"), tabindex: "0" });
  const question = h("textarea", { rows: "2", maxlength: "20000", placeholder: w("chat.question"), "aria-label": w("chat.question"),
    onkeydown: (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    } });
  const image = h("input", { type: "file", accept: "image/png,image/jpeg,image/bmp,image/gif,image/webp", "aria-label": w("chat.image"), onchange: takeImage });
  const thumbnail = h("img.mbm-thumbnail", { alt: w("chat.image"), hidden: true });
  const images = h("label.mbm-check", {}, w("chat.image"), image, thumbnail);
  const most = number("max_tokens", { min: 1, max: 8192, value: 256 });
  const temperature = number("temperature", { min: 0, max: 2, step: 0.05, value: 0 });
  const go = h("button.mb-button.mb-primary", { type: "button", onclick: send }, w("chat.send"));
  const stop = h("button.mb-button.mbm-danger", { type: "button", hidden: true, onclick: stopAll }, w("chat.stop"));
  const clear = h("button.mb-button", { type: "button", onclick: forget }, w("chat.clear"));
  const problem = h("p.mbm-bad", { role: "alert", hidden: true });
  const form = h("div.mbm-chat-form", {}, question,
    h("div.mbm-chat-options", {}, images, most.root, temperature.root, h("div.mbm-buttons", {}, clear, stop, go)), problem);
  const root = h("div.mbm-answers", { hidden: true }, turns, form);
  let chat = null, picture = null, running = [];
  // Model -> the messages of its conversation. The models see their own answers only.
  let histories = {};

  function number(name, attributes) {
    const input = h("input", { type: "number", ...attributes });
    return { input, root: h("label.mbm-check", {}, w(`chat.${name}`), input) };
  }

  function take(state) {
    if (state.run !== chat?.run) forget();
    chat = state;
    const isReady = state.phase === "ready";
    images.hidden = !state.sees_images;
    form.hidden = !isReady;
    root.hidden = !isReady && !turns.children.length;
    draw();
  }

  async function takeImage() {
    picture = null;
    problem.hidden = true;
    try {
      if (image.files[0]) picture = await asDataUrl(image.files[0]);
    } catch {
      say(w("chat.image.bad"));
    }
    thumbnail.hidden = !picture;
    if (picture) thumbnail.src = picture;
  }

  function send() {
    const words = question.value.trim();
    if (!words || running.length || chat?.phase !== "ready") return;
    problem.hidden = true;
    const content = picture ? [{ type: "image_url", image_url: { url: picture } }, { type: "text", text: words }] : words;
    const boxes = chat.models.map((model) => ({ model, box: box(model) }));
    turns.append(h("div.mbm-turn", {}, h("p.mbm-asked", {}, picture && h("img.mbm-thumbnail", { src: picture, alt: w("chat.image") }), words),
      h("div.mbm-columns", { style: { "--columns": boxes.length } }, boxes.map(({ box }) => box.root))));
    boxes.forEach(({ model, box }) => ask(model, content, box));
    question.value = image.value = "";
    picture = null;
    thumbnail.hidden = true;
    draw();
    turns.scrollTop = turns.scrollHeight;
  }

  function box(model) {
    const words = h("p.mbm-answer"), note = h("small.mb-quiet", {}, w("chat.thinking"));
    return { words, note, root: h("div.mbm-answer-box", {}, h("strong", {}, w(`chat.model.${model}`)), words, note) };
  }

  async function ask(model, content, { words, note }) {
    const history = histories[model] ??= [];
    const request = { messages: [...history, { role: "user", content }], max_tokens: Number(most.input.value),
      temperature: Number(temperature.input.value) };
    const controller = new AbortController();
    running.push(controller);
    let answer = "", outcome = "stopped";
    try {
      const address = `/api/chat/${encodeURIComponent(chat.run)}/${model}?lang=${lang()}`;
      const response = await fetch(address, { method: "POST", body: JSON.stringify(request), signal: controller.signal });
      if (!response.ok) throw new TypeError(String(response.status));
      for await (const line of linesOf(response.body)) {
        if (line.text) text(words, answer += line.text);
        if (line.text) text(note, w("chat.writing"));
        if (line.problem) say(line.problem.message, line.problem.fix);
        if (line.problem) outcome = "failed";
        if (line.end) outcome = "";
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        say(w("chat.broken"));
        outcome = "failed";
      }
    }
    running = running.filter((other) => other !== controller);
    text(note, outcome ? w(`chat.${outcome}`) : answer ? "" : w("chat.empty"));
    if (answer) history.push({ role: "user", content }, { role: "assistant", content: answer });
    draw();
  }

  function say(...sentences) {
    setCommands(problem, sentences.filter(Boolean).join(" "));
    problem.hidden = false;
  }

  function draw() {
    stop.hidden = !running.length;
    go.disabled = running.length > 0;
    clear.disabled = !turns.children.length;
  }

  function stopAll() {
    running.forEach((controller) => controller.abort());
  }

  function forget() {
    stopAll();
    histories = {};
    fill(turns);
    draw();
  }

  return { root, take, close: stopAll };
}
