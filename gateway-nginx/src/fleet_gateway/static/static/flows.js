// The view of flows: what live workers offer, what could not be loaded, one flow in full. It follows the server's events.

import { followEvents, readFlow, RequestFailed } from "./api.js";
import { el, emptyState, keep, moment } from "./dom.js";
import { t } from "./i18n.js";

const at = (id) => document.getElementById(id);

// The stream of events while the view is open; `first` is settled when the list is known, or cannot be asked for.
let stream = null;
let latest = { id: null, list: null };
let shownFlow = { name: null, id: null, flow: null };
let onNews = () => {};
let onRun = () => {};

/** `refresh` shows what has changed; `run` opens the form that submits a run. */
export function beginFlows({ refresh, run }) {
  onNews = refresh;
  onRun = run;
}

export async function askFlows(name) {
  stream ??= open();
  await stream.first;
  if (name && (shownFlow.name !== name || shownFlow.id !== latest.id)) {
    const { id } = latest;
    const flow = await readFlow(name).catch(orMissing);
    shownFlow = { name, id, flow };
  }
  return { flows: latest.list, flow: name ? shownFlow.flow : null };
}

function orMissing(error) {
  if (error.status === 404) return { missing: error.message };
  throw error;
}

function open() {
  const stop = new AbortController();
  const mine = { stop };
  const first = withResolvers();
  mine.first = first.promise;
  const follow = followEvents("/flows/events", {
    signal: stop.signal,
    lastEventId: latest.id,
    // Without news since the last event there is none to wait for.
    onOpen: () => latest.list && first.resolve(),
    onEvent: (kind, data, id) => {
      if (kind !== "flows" || stop.signal.aborted) return;
      latest = { id, list: data };
      first.resolve();
      onNews();
    },
  });
  follow
    .catch((error) => first.reject(error))
    .finally(() => {
      first.reject(new RequestFailed(0, ""));
      if (stream === mine) stream = null; // opened again at the next look
    });
  mine.first.catch(() => {}); // told to whoever waits for it
  return mine;
}

function withResolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/** Nobody looks at it any more. */
export function leaveFlows() {
  stream?.stop.abort();
  stream = null;
}

/** Nothing is known any more, and nothing is shown. */
export function forgetFlows() {
  leaveFlows();
  latest = { id: null, list: null };
  shownFlow = { name: null, id: null, flow: null };
  return { flows: null, flow: null };
}

export function showFlows({ flows: list, flow }, name) {
  document.title = `${name ?? t("flows")} · pyoco-fleet`;
  const flows = list?.flows ?? [];
  keep(at("flows-problems"), problemsOf(list), (problem) => JSON.stringify(problem), problemItem);
  at("flows-problems").hidden = !at("flows-problems").children.length;
  const rows = flows.map((one) => ({ ...one, chosen: one.name === name }));
  keep(at("flows"), rows, (one) => one.name, flowRow);
  at("flows-table").hidden = !flows.length;
  const hint = at("flows-hint");
  hint.hidden = !list?.open_tags.length;
  if (!hint.hidden) hint.textContent = t("flows_open", { tags: list.open_tags.join(", ") });
  const empty = at("flows-empty");
  empty.hidden = !list || flows.length > 0;
  if (!empty.hidden) empty.replaceChildren(...emptyState(t("no_flows"), t("no_flows_next"), "./fleet up --flows-dir my_flows"));
  document.body.classList.toggle("with-detail", Boolean(name));
  showFlow(name, flow);
}

function problemsOf(list) {
  if (!list) return [];
  const failures = list.reload_failures.map(({ error, workers }) => ({ title: t("reload_failed"), error, workers }));
  const broken = list.broken.map((one) => ({
    title: one.line ? t("broken_at", { place: one.place, line: one.line }) : one.place,
    error: `${one.exc_type}: ${one.message}`,
    workers: one.workers,
  }));
  return [...failures, ...broken];
}

function problemItem({ title, error, workers }) {
  return el(
    "li",
    { className: "failure" },
    el("strong", {}, title),
    " ",
    el("span", { className: "faint" }, t("on_workers", { workers: workers.join(", ") })),
    el("pre", { className: "code" }, error),
  );
}

function flowRow(flow) {
  const link = el("a", { href: `#/flows/${encodeURIComponent(flow.name)}`, className: "cover" }, flow.name);
  return el(
    "tr",
    { className: flow.chosen ? "chosen" : "" },
    el("td", { className: "name" }, link, flow.description ? el("div", { className: "hint" }, firstLine(flow.description)) : null),
    el("td", {}, ...tagsOf(flow.tags)),
    el("td", { className: "wide" }, flow.versions.join(", ") || el("span", { className: "faint" }, t("nothing"))),
    el("td", { className: "number" }, String(flow.workers), ...(flow.differs.length ? [" ", disagreement(flow)] : [])),
  );
}

function firstLine(text) {
  return text.trim().split("\n")[0];
}

function tagsOf(tags) {
  return tags.map((tag) => el("span", { className: "tag" }, tag));
}

function disagreement({ differs }) {
  const title = t("workers_disagree", { what: differs.join(", ") });
  return el("span", { className: "badge differs", title }, t("differs"));
}

function showFlow(name, flow) {
  const panel = at("flow-detail");
  panel.hidden = !name;
  if (!name) return panel.replaceChildren();
  const signature = JSON.stringify([name, flow]);
  if (panel.signature === signature && panel.children.length) return;
  panel.signature = signature;
  const back = el("a", { href: "#/flows", className: "back" }, t("back_to_flows"));
  if (flow?.name === name) panel.replaceChildren(...flowDetail(flow, back));
  else panel.replaceChildren(back, el("p", {}, flow?.missing ?? t("loading")));
}

function flowDetail(flow, back) {
  const button = el("button", { type: "button", className: "primary" }, t("run_flow"));
  button.addEventListener("click", () => onRun({ flow_name: flow.name, params: exampleOf(flow.params_schema), tag: flow.defaults.tag }));
  return [
    el("header", {}, back, el("h2", {}, flow.name, ...(flow.differs.length ? [disagreement(flow)] : [])), button),
    flow.description ? el("p", { className: "whole prose" }, flow.description.trim()) : null,
    flow.differs.length ? el("p", { className: "note" }, t("workers_disagree", { what: flow.differs.join(", ") })) : null,
    el("section", {}, el("h3", {}, t("params")), ...params(flow.params_schema)),
    defaults(flow.defaults),
    flow.graph?.nodes.length ? el("section", {}, el("h3", {}, t("graph")), graph(flow.graph)) : null,
    el("section", {}, el("h3", {}, t("offered_by")), offers(flow)),
  ].filter(Boolean);
}

// --- Parameters

// A schema is what a worker says: any part of it may be of another kind than expected.
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const listOf = (value) => (Array.isArray(value) ? value : []);
const objectOf = (value) => (isObject(value) ? value : {});
// A param that may be given in place of the result of a task.
const isReplacement = (part) => "x-replaces-result-of" in objectOf(part);

function params(schema) {
  if (!isObject(schema)) return [el("p", { className: "faint" }, t("params_unknown"))];
  const required = new Set(listOf(schema.required));
  const properties = objectOf(schema.properties);
  const all = Object.keys(properties);
  const names = all.filter((name) => !isReplacement(properties[name]));
  const replacements = all.filter((name) => isReplacement(properties[name]));
  const lines = names.map((name) => {
    const property = objectOf(properties[name]);
    const value = property.default === undefined ? null : el("code", {}, ` = ${JSON.stringify(property.default)}`);
    const mark = required.has(name) ? el("span", { className: "badge required" }, t("required")) : null;
    const about = property.description ? el("div", { className: "hint" }, String(property.description)) : null;
    return el("li", {}, el("code", { className: "name" }, name), el("code", { className: "faint" }, `: ${typeText(property, schema)}`), value, " ", mark, about);
  });
  const others = schema.additionalProperties === false ? null : el("p", { className: "hint" }, t("params_others"));
  const inPlace = replacements.length ? el("p", { className: "hint" }, t("params_replace", { tasks: replacements.join(", ") })) : null;
  return [names.length ? el("ul", { className: "plain" }, ...lines) : el("p", { className: "faint" }, t("params_none")), others, inPlace].filter(Boolean);
}

const MOST_LEVELS = 4;

/** The type of a part of a schema, in a few words. */
function typeText(part, schema, level = 0) {
  if (!isObject(part) || level > MOST_LEVELS) return "…";
  const within = (inner) => typeText(inner, schema, level + 1);
  if (part.$ref) return within(objectOf(schema.$defs)[String(part.$ref).replace("#/$defs/", "")]);
  const choices = part.anyOf ?? part.oneOf;
  if (Array.isArray(choices)) return choices.map(within).join(" | ");
  if (Array.isArray(part.enum)) return part.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in part) return JSON.stringify(part.const);
  if (part.type === "array" && part.items) return `array of ${within(part.items)}`;
  if (part.type === "object" && isObject(part.properties)) return `{${Object.keys(part.properties).join(", ")}}`;
  const type = Array.isArray(part.type) ? part.type.join(" | ") : (part.type ?? "any");
  return part.format ? `${type} (${part.format})` : type;
}

const EMPTY = { string: "", integer: 0, number: 0, boolean: false, array: [], object: {} };

/** Params to begin with: the defaults, and an empty value for each that is required. No result of a task is replaced. */
function exampleOf(schema) {
  const required = new Set(listOf(schema?.required));
  const all = Object.entries(objectOf(schema?.properties)).map(([name, part]) => [name, objectOf(part)]);
  const known = all.filter(([name, part]) => !isReplacement(part) && (required.has(name) || part.default !== undefined));
  return Object.fromEntries(known.map(([name, part]) => [name, part.default ?? listOf(part.enum)[0] ?? EMPTY[part.type] ?? null]));
}

function defaults({ retry, timeout_sec: timeout, tag }) {
  const rows = [
    ["tag", tag],
    ["max_attempts", retry?.max_attempts],
    ["time_limit", timeout ? `${timeout} s` : null],
  ].filter(([, value]) => value !== null && value !== undefined);
  if (!rows.length) return null;
  const items = rows.map(([name, value]) => el("div", {}, el("dt", {}, t(name)), el("dd", {}, String(value))));
  return el("section", {}, el("h3", {}, t("defaults")), el("dl", { className: "short" }, ...items));
}

// --- The graph: each node with those that follow it

function graph({ nodes, edges }) {
  const named = new Set(edges.map((edge) => edge.target));
  const begins = new Set(edges.map((edge) => edge.source));
  // A task at the end is named by those before it.
  const shown = nodes.filter((node) => begins.has(node.name) || !named.has(node.name) || node.kind !== "task");
  const lines = shown.map((node) => {
    const next = edges.filter((edge) => edge.source === node.name).flatMap((edge) => [
      el("span", { className: "faint" }, edge.label ? ` —${edge.label}→ ` : " → "),
      el("span", { className: "tag" }, edge.target),
    ]);
    const kind = node.kind === "task" ? null : el("span", { className: "faint" }, ` ${node.kind}`);
    return el("li", {}, el("span", { className: "tag" }, node.name), kind, ...next);
  });
  return el("ol", { className: "plain graph" }, ...lines);
}

function offers({ offers: all }) {
  const lines = all.map((offer) =>
    el(
      "li",
      {},
      el("span", { className: "name" }, offer.worker_id),
      " ",
      ...tagsOf(offer.tags),
      ...(offer.differs.length ? [disagreement(offer)] : []),
      el("div", { className: "hint" }, sourceText(offer.source), " · ", t("loaded"), " ", moment(offer.loaded_at)),
    ),
  );
  return el("ul", { className: "plain" }, ...lines);
}

function sourceText({ place, line, package: name, version }) {
  if (name) return `${name} ${version ?? ""} (${place})`;
  return line ? t("broken_at", { place, line }) : place;
}
