// Durations and times of day, by the browser's clock.
import { rounded } from "./format.js";
import { t, w } from "./words.js";

const two = (value) => String(value).padStart(2, "0");

// Example: 3 h 05 min.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const all = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
  if (all < 60) return w("time.seconds", { seconds: all });
  if (all < 3600) return w("time.minutes", { minutes, seconds: two(all % 60) });
  if (all < 86400) return w("time.hours", { hours, minutes: two(minutes) });
  return w("time.days", { days, hours });
}

// Example: 2026-11-21 09:30:00. In this order nobody takes the month for the day.
export function moment(epoch, withDate = true) {
  if (!epoch) return "–";
  const date = new Date(epoch * 1000);
  const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return withDate ? `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}` : clock;
}

// An estimated number of hours. Below one hour, it is shown in minutes.
export const hoursInWords = (value) => value < 1 ? t("wizard.time.in_minutes", { count: rounded(60 * value, 2) })
  : t("wizard.time.in_hours", { count: rounded(value, value < 10 ? 2 : 3) });
