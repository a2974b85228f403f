// <time datetime="..." data-age>: local time with its zone in the title, "3 min ago" as text, kept fresh.
// <time datetime="..." data-local>: local date and time to the second as text, the same title.
const STEPS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];
const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function duration(seconds) {
  const value = Math.max(0, seconds);
  if (value < 0.0995) return `${(value * 1000).toPrecision(2)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 60) return `${Math.round(value)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function age(date, now = Date.now()) {
  const seconds = (now - date) / 1000;
  if (Math.abs(seconds) < 5) return "just now";
  // What lies ahead is rounded, not cut: a key that was made for a day must not end "in 23 h" a moment later.
  const count = (unit) => (seconds < 0 ? Math.round(-seconds / unit) : Math.floor(seconds / unit));
  const [, unit, name] = STEPS.find(([limit, step]) => count(step) * step < limit);
  const amount = `${count(unit)} ${name}`;
  return seconds < 0 ? `in ${amount}` : `${amount} ago`;
}

function show(element) {
  const date = new Date(element.dateTime);
  if (Number.isNaN(date.getTime())) return;
  element.title = zoned.format(date);
  element.textContent = "age" in element.dataset ? age(date.getTime()) : local.format(date);
}

export function showTimes(root = document) {
  root.querySelectorAll("time[data-age], time[data-local]").forEach(show);
}

setInterval(() => document.querySelectorAll("time[data-age]").forEach(show), 5000);
