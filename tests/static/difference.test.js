import assert from "node:assert/strict";
import { test } from "node:test";
import { rounded, short } from "../../static/lib/format.js";
import { addWords } from "../../static/lib/words.js";
import { figureText } from "../../static/wizard/difference.js";

addWords({ "accuracy.up_to": "up to {high}", "accuracy.beside": "{low} to {high}" });

test("a figure of a difference is its interval", () => {
  const side = { hours: 5, hours_low: 4.2, hours_high: 6.1, speed: 3140, speed_low: 2512, speed_high: 3925 };
  assert.equal(figureText(side, "hours", side.hours, short), "4.2 to 6.1");
  assert.equal(figureText(side, "speed", side.speed, rounded), "2,510 to 3,930");
});

test("a time without a low end is an upper bound", () => {
  assert.equal(figureText({ hours_low: null, hours_high: 6.1 }, "hours", 5, short), "up to 6.1");
});

test("a figure without an interval stands for itself, and one that is not known is a dash", () => {
  assert.equal(figureText({ need_gib_low: null, need_gib_high: null }, "need_gib", 43.219, short), "43");
  assert.equal(figureText({}, "plan", "TP2"), "TP2");
  assert.equal(figureText({ hours_low: null, hours_high: null }, "hours", null, short), "–");
});
