import assert from "node:assert/strict";
import { test } from "node:test";
import { axisStep, count, gib, mibAsGib, number, percent, rounded, whole } from "../../static/lib/format.js";
import { duration, moment } from "../../static/lib/time.js";
import { addWords, listed, sentences, setLanguage, t } from "../../static/lib/words.js";

test("numbers keep the digits that a reader can use", () => {
  assert.deepEqual([0, 0.25, 0.0312].map(percent), ["0%", "25.0%", "3.1%"]);
  assert.deepEqual([7.62e9, 72.7e9, 405e9, 12].map(count), ["7.62 B", "72.7 B", "405 B", "12"]);
  assert.deepEqual([9.96, 99.96, 1234.4].map(gib), ["10.0", "100.0", "1,234"]);
  assert.deepEqual([1234.5, 0.12345].map((value) => rounded(value)), ["1,230", "0.123"]);
  assert.deepEqual([0, 2.5, 12345.6, 1.5e-5, 3e12].map((value) => number(value)), ["0", "2.500", "12,346", "1.50e-5", "3.00e+12"]);
  assert.equal(mibAsGib(81559), "79.6");
});

test("a dash stands for what is not known", () => {
  for (const write of [number, whole, mibAsGib, duration, moment]) assert.equal(write(null), "–");
});

test("the step of an axis is 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual([[9, 8], [100, 6], [0.31, 8]].map((pair) => axisStep(...pair)), [2, 20, 0.05]);
});

test("words have their values filled in, and an unknown key stands for itself", () => {
  addWords({ "monitor.time.minutes": "{minutes} min {seconds} s", braces: "{{a}} {b} {c}" });
  assert.equal(t("braces", { b: 0 }), "{a} 0 {c}");
  assert.equal(t("unknown.key"), "unknown.key");
  assert.equal(duration(185.4), "3 min 05 s");
});

test("Chinese sentences have no space between them", () => {
  assert.deepEqual([sentences(["One.", null, "Two."]), listed(["a", "b"])], ["One. Two.", "a, b"]);
  setLanguage("zh");
  assert.deepEqual([sentences(["一。", "二。"]), listed(["甲", "乙"])], ["一。二。", "甲，乙"]);
  setLanguage("en");
});
