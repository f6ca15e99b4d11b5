// Builds and refreshes parts of the page. Data only ever becomes text: nothing here parses HTML.

import { serverNow } from "./api.js";
import { lang, t } from "./i18n.js";

/** An element with properties and children; null children are left out. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const FOCUSABLE = "a, button, summary";

/** Make `container` hold one child per item, building only what has changed, so that focus and selection stay. */
export function keep(container, items, keyOf, build) {
  const present = new Map([...container.children].map((node) => [node.dataset.key, node]));
  const wanted = items.map((item) => {
    const key = keyOf(item);
    const signature = JSON.stringify(item);
    const old = present.get(key);
    if (old?.signature === signature) return old;
    const node = build(item);
    node.dataset.key = key;
    node.signature = signature;
    const focused = old ? [...old.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : -1;
    if (focused >= 0) queueMicrotask(() => node.querySelectorAll(FOCUSABLE)[focused]?.focus());
    return node;
  });
  if (wanted.length !== container.children.length || wanted.some((node, at) => node !== container.children[at])) {
    container.replaceChildren(...wanted);
  }
}

export function badge(status) {
  return el("span", { className: `badge ${status.toLowerCase()}`, title: status }, t(status));
}

const relative = new Intl.RelativeTimeFormat(lang, { numeric: "auto", style: "short" });
const absolute = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function ago(seconds) {
  const passed = Math.max(0, serverNow() - seconds);
  const [unit, length] = UNITS.find(([, length]) => passed >= length) ?? UNITS.at(-1);
  return relative.format(-Math.floor(passed / length), unit);
}

/** A moment as "3 min. ago"; `tick` keeps it true. */
export function moment(seconds) {
  if (seconds === null || seconds === undefined) return el("span", { className: "faint" }, t("nothing"));
  const date = new Date(seconds * 1000);
  return el("time", { dateTime: date.toISOString(), title: absolute.format(date), dataset: { at: seconds } }, ago(seconds));
}

/** How long something took, or has taken until now if it has no end yet. */
export function span(start, end) {
  if (start === null || start === undefined) return el("span", { className: "faint" }, t("nothing"));
  if (end !== null && end !== undefined) return el("span", {}, durationText(end - start));
  return el("span", { dataset: { since: start } }, durationText(serverNow() - start));
}

export function durationText(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(1)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} m ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} m`;
}

/** Bring every shown time up to date. */
export function tick() {
  for (const node of document.querySelectorAll("time[data-at]")) node.textContent = ago(Number(node.dataset.at));
  for (const node of document.querySelectorAll("[data-since]")) {
    node.textContent = durationText(serverNow() - Number(node.dataset.since));
  }
}

export function json(value) {
  return el("pre", { className: "code" }, JSON.stringify(value, null, 2));
}

/** An empty place that says what to do next. */
export function emptyState(title, next, command) {
  return [
    el("h2", {}, title),
    el("p", {}, next),
    command ? el("pre", { className: "code" }, command) : null,
  ].filter(Boolean);
}
