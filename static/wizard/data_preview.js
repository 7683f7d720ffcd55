// Rows of the data sets as the model sees them: which tokens are trained, what is cut, images, lengths and faults.
import { commands } from "../lib/commands.js";
import { fill, h } from "../lib/dom.js";
import { grouped, percent } from "../lib/format.js";
import { t } from "../lib/words.js";
import { latestPayload } from "./channel.js";

const d = (key, values) => t(`wizard.data.${key}`, values);
let shown = null;

// The answer stays on screen after later edits, until the next one.
function draw(element) {
  const preview = latestPayload()?.fetched?.preview;
  if (!preview || preview === shown) return;
  shown = preview;
  const parts = [preview.datasets.map(dataset), preview.lengths && lengths(preview.lengths), examples(preview.examples)];
  fill(element, h("section.mb-data", { "aria-label": d("title") }, parts));
}

function dataset(read) {
  const facts = [d("rows", { rows: grouped(read.rows) }), read.read && d("not_all", { read: grouped(read.read) }),
    d("encoded", { count: grouped(read.encoded) }), d("columns", { columns: read.columns.join(", ") })];
  return h("div.mb-data-set", {}, h("h4", {}, read.name), h("p.mb-quiet", {}, facts.filter(Boolean).join(" · ")),
    read.faults.map(faultView),
    read.duplicates > 0 && h("div.mb-problem", { "data-severity": "warning" },
      d("duplicates", { count: grouped(read.duplicates), rows: read.duplicate_rows })));
}

export function faultView(found) {
  return h("div.mb-problem", { "data-severity": "error", "data-code": found.code }, h("strong", {}, commands(found.words)), " ", commands(found.fix),
    found.rows && h("p.mb-data-rows", {}, d("in_rows", { rows: found.rows })));
}

function lengths(all) {
  const most = Math.max(...all.bars.map(([, , count]) => count)), longest = all.bars.at(-1)[1];
  const bars = all.bars.map(([low, high, count]) => h("i", { title: d("bar", { low: grouped(low), high: grouped(high - 1), count: grouped(count) }),
    "data-cut": high > all.cutoff + 1, style: { height: `${count ? Math.max(2, 100 * count / most) : 0}%` } }));
  const isInside = all.cutoff < longest;
  const mark = h("b", { "data-outside": !isInside, style: { left: `${isInside ? 100 * all.cutoff / longest : 100}%` } },
    h("span", {}, `cutoff_len ${grouped(all.cutoff)}${isInside ? "" : " →"}`));
  const facts = [
    [d("mean"), grouped(Math.round(all.mean))], [d("median"), grouped(Math.round(all.median))], [d("longest"), grouped(all.longest)],
    [d("cut"), percent(all.cut_share)], [d("lost"), percent(all.lost_share)], [d("trained"), percent(all.trained_share)],
    [d("padded", { batch: all.micro_batch }), all.is_packed ? d("packed_already") : percent(all.padded_share)],
    all.packing_saves !== null && !all.is_packed && [d("packing"), percent(Math.max(0, all.packing_saves))],
  ].filter(Boolean);
  return h("div.mb-data-lengths", {}, h("h4", {}, d("lengths", { count: grouped(all.sequences) })),
    h("div.mb-histogram", { role: "img", "aria-label": d("lengths.spoken", { mean: grouped(Math.round(all.mean)), longest: grouped(all.longest), cut: percent(all.cut_share) }) },
      bars, mark), h("div.mb-histogram-axis", { "aria-hidden": "true" }, h("span", {}, "0"), h("span", {}, d("tokens", { count: grouped(longest - 1) }))),
    h("dl.mb-data-facts", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
}

function examples(rows) {
  if (!rows.length) return h("p.mb-quiet", {}, d("examples.none"));
  const legend = h("p.mb-data-legend.mb-quiet", {}, h("mark", {}, d("legend.trained")), " ", h("span", {}, d("legend.masked")));
  return h("div.mb-data-examples", {}, h("h4", {}, d("examples")), legend, rows.map(example));
}

function example(row) {
  const place = d(`row.${row.kind}`, { row: row.row ? grouped(row.row) : "" });
  const head = h("header", {}, h("strong", {}, place), h("span.mb-quiet", {}, row.dataset));
  const pictures = row.thumbnails.map((data, index) => data
    ? h("img", { src: `data:image/jpeg;base64,${data}`, alt: d("image", { number: index + 1 }) }) : h("span.mb-quiet", {}, d("image.unreadable")));
  const rest = row.images - row.thumbnails.length;
  return h("article.mb-data-example", {}, head, pictures.length > 0 && h("div.mb-data-pictures", {}, pictures,
    rest > 0 && h("span.mb-quiet", {}, d("image.more", { count: rest }))), row.sequences.map(sequence));
}

function sequence(one) {
  const cut = one.uncut_tokens - one.tokens;
  const facts = [d("tokens", { count: grouped(one.tokens) }), d("trained_tokens", { count: grouped(one.trained_tokens) }),
    cut > 0 && d("cut_tokens", { count: grouped(cut) })];
  return h("div.mb-data-sequence", {}, h("p.mb-quiet", {}, one.part && h("strong", {}, one.part), one.part && " · ", facts.filter(Boolean).join(" · ")),
    text(one.stretches), one.uncut.length > 0 && h("details", {}, h("summary", {}, d("uncut")), text(one.uncut)));
}

function text(stretches) {
  return h("pre", { tabindex: "0" }, stretches.map(([words, count, isTrained]) =>
    h(isTrained ? "mark" : "span", { title: d("tokens", { count: grouped(count) }) }, words)));
}

export const dataPreviewPanels = { data_preview: draw };
