// How runs and workers look: each function turns data into elements.

import { serverNow } from "./api.js";
import { badge, durationText, el, json, moment, span } from "./dom.js";
import { lang, t } from "./i18n.js";

export const RUN_STATUSES = ["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLING", "CANCELLED"];
const TERMINAL = new Set(["COMPLETED", "FAILED", "CANCELLED"]);
const ALIVE = new Set(["RUNNING", "IDLE"]);

export const isTerminal = (run) => TERMINAL.has(run.status);

/** The time of submission in milliseconds: `./fleet` takes it for the id. */
export const shortId = (runId) => runId.slice(0, 13);

export function runLink(runId) {
  return el("a", { href: `#/runs/${encodeURIComponent(runId)}`, className: "id", title: runId }, shortId(runId));
}

export function countButton(status, count, chosen, onChoose) {
  const button = el(
    "button",
    { type: "button", className: `count ${status ? status.toLowerCase() : "every"}`, "aria-pressed": String(chosen) },
    el("strong", {}, count === undefined ? t("nothing") : count.toLocaleString()),
    el("span", {}, status ? t(status) : t("all")),
  );
  button.addEventListener("click", onChoose);
  return button;
}

export function runRow(run, chosen) {
  return el(
    "tr",
    { className: chosen ? "chosen" : "" },
    el("td", {}, badge(run.status)),
    el("td", { className: "name" }, run.flow_name ?? t("nothing")),
    el("td", {}, runLink(run.run_id)),
    el("td", { className: "wide" }, run.worker_id ?? el("span", { className: "faint" }, t("nothing"))),
    el("td", { className: "number" }, span(run.start_time, isTerminal(run) ? (run.end_time ?? run.updated_at) : null)),
    el("td", { className: "number" }, moment(run.submitted_at ?? run.updated_at)),
  );
}

/** `onAsk` is called with what is wanted of the worker. */
export function workerRow(worker, onAsk) {
  const current = worker.current_run_ids?.length
    ? worker.current_run_ids
    : [worker.current_run_id].filter((runId) => runId);
  const alive = ALIVE.has(worker.state);
  const slots = worker.slots ?? 1;
  const used = alive ? Math.min(current.length, slots) : 0;
  const busy = current.slice(0, 4).flatMap((runId) => [runLink(runId), " "]);
  return el(
    "tr",
    { className: alive ? "" : "gone" },
    el("td", {}, badge(worker.state), ...marks(worker)),
    el("td", { className: "name" }, worker.worker_id),
    el("td", { className: "wide" }, ...worker.tags.map((tag) => el("span", { className: "tag" }, tag))),
    el("td", {}, ...busy, el("span", { className: "faint whole-line" }, t("slots", { used, slots }))),
    el("td", { className: "wide" }, ...lastRun(worker)),
    el("td", { className: "wide" }, wheels(worker.wheel_sync)),
    el("td", { className: "wide number" }, moment(worker.last_seen_at)),
    el(
      "td",
      { className: "actions" },
      action(worker.draining ? "resume" : "drain", onAsk, false, worker.worker_id),
      action(worker.hidden ? "unhide" : "hide", onAsk, false, worker.worker_id),
    ),
  );
}

/** What operators have said about a worker. */
function marks(worker) {
  const said = [worker.draining ? "DRAINING" : null, worker.hidden ? "HIDDEN" : null];
  return said.filter(Boolean).flatMap((mark) => [" ", badge(mark)]);
}

function wheels(sync) {
  if (!sync?.enabled) return el("span", { className: "faint" }, t("nothing"));
  const count = t("wheels_installed", { count: sync.installed_wheels?.length ?? 0 });
  if (sync.last_result !== "error") return el("span", {}, count);
  const failed = badge("SYNC_FAILED");
  failed.title = sync.last_error ?? "";
  return el("span", {}, count, " ", failed);
}

function lastRun(worker) {
  if (!worker.last_run_id) return [el("span", { className: "faint" }, t("nothing"))];
  return [runLink(worker.last_run_id), " ", worker.last_run_status ? badge(worker.last_run_status) : null];
}

/** The whole panel of one run. `onAsk` is called with what is wanted of it. */
export function runDetail(run, onAsk) {
  return [
    el(
      "header",
      {},
      el("a", { href: "#/", className: "back" }, t("back")),
      el("h2", {}, run.flow_name ?? run.run_id, " ", badge(run.status)),
      note(run),
      action(isTerminal(run) ? "rerun" : "cancel", onAsk, run.status === "CANCELLING"),
    ),
    run.error ? el("section", { className: "failure" }, el("h3", {}, t("error")), el("pre", { className: "code" }, run.error)) : null,
    facts(run),
    el("section", {}, el("h3", {}, t("tasks")), ...tasks(run)),
    hasContent(run.result) ? el("section", {}, el("h3", {}, t("result")), json(run.result)) : null,
    el("section", {}, el("h3", {}, t("params")), json(run.params ?? {})),
  ].filter(Boolean);
}

function note(run) {
  let text = null;
  if (run.waiting_reason) {
    text = t(`waiting_${run.waiting_reason}`, { tag: run.tag ?? "default", at: timeOfDay(run.not_before) });
  } else if (!isTerminal(run) && run.worker_id && run.worker_alive === false) {
    text = t("worker_gone");
  }
  return text ? el("p", { className: "note" }, text) : null;
}

function timeOfDay(at) {
  return at ? new Date(at * 1000).toLocaleString(lang) : t("nothing");
}

/** `about` names what the button is for, where there are several of a kind. */
function action(what, onAsk, disabled, about = null) {
  const button = el("button", { type: "button", disabled }, t(what));
  if (about !== null) button.setAttribute("aria-label", `${t(what)}: ${about}`);
  button.addEventListener("click", async () => {
    // Not disabled meanwhile: that would take the focus away from people who use the keyboard.
    if (button.ariaBusy === "true") return;
    button.ariaBusy = "true";
    await onAsk(what);
    button.ariaBusy = "false";
  });
  return button;
}

function facts(run) {
  const rows = [
    ["run_id", el("code", { className: "whole" }, run.run_id)],
    ["worker", run.worker_id],
    ["tag", run.tag],
    ["attempt", run.attempt],
    ["interruptions", run.interruptions || null],
    ["failures", run.failures || null],
    ["deadline", run.deadline_at ? timeOfDay(run.deadline_at) : null],
    ["rerun_of", run.rerun_of ? runLink(run.rerun_of) : null],
    ["submitted", run.submitted_at ? moment(run.submitted_at) : null],
    ["started", run.start_time ? moment(run.start_time) : null],
    ["duration", run.start_time ? span(run.start_time, isTerminal(run) ? (run.end_time ?? run.updated_at) : null) : null],
    ["cancel_requested", run.cancel_requested_at ? moment(run.cancel_requested_at) : null],
    ["reason", run.reason],
  ];
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, ...shown.map(([name, value]) => el("div", {}, el("dt", {}, t(name)), el("dd", {}, value))));
}

function tasks(run) {
  const records = run.task_records ?? {};
  const names = [...new Set([...Object.keys(run.tasks ?? {}), ...Object.keys(records)])];
  if (!names.length) return [el("p", { className: "faint" }, t("no_tasks"))];
  const begin = run.start_time ?? Math.min(...names.map((name) => records[name]?.started_at ?? Infinity));
  const end = isTerminal(run) ? (run.end_time ?? run.updated_at) : serverNow();
  names.sort((a, b) => (records[a]?.started_at ?? Infinity) - (records[b]?.started_at ?? Infinity));
  const list = el("ol", { className: "tasks" });
  for (const name of names) list.append(task(name, run.tasks?.[name], records[name] ?? {}, begin, end));
  return [list, run.task_records_truncated ? el("p", { className: "hint" }, t("records_truncated")) : null].filter(Boolean);
}

function task(name, status, record, begin, end) {
  const state = status ?? record.state ?? "PENDING";
  const line = el("div", { className: "task" }, badge(state), el("span", { className: "name" }, name), bar(state, record, begin, end));
  const more = ["error", "traceback", "output", "inputs"].filter((field) => hasContent(record[field]));
  if (!more.length) return el("li", {}, line);
  return el("li", {}, el("details", { open: Boolean(record.error) }, el("summary", {}, line), ...more.map((field) => part(field, record[field]))));
}

function part(field, value) {
  const content = typeof value === "string" ? el("pre", { className: "code" }, value) : json(value);
  return el("div", { className: "part" }, el("h4", {}, t(field)), content);
}

function hasContent(value) {
  if (value === null || value === undefined || value === "") return false;
  return typeof value !== "object" || Object.keys(value).length > 0;
}

/** When the task ran within the run. Positions are set through the style object, which the page's policy allows. */
function bar(state, record, begin, end) {
  const track = el("span", { className: "track", "aria-hidden": "true" });
  const from = record.started_at;
  const took = el("span", { className: "took" });
  if (from === null || from === undefined) return el("span", { className: "timeline" }, track, took);
  const to = record.ended_at ?? end;
  const whole = Math.max(end - begin, 0.001);
  const fill = el("span", { className: `fill ${state.toLowerCase()}` });
  fill.style.left = `${clamp(((from - begin) / whole) * 100, 0, 99)}%`;
  fill.style.width = `${clamp(((to - from) / whole) * 100, 1, 100 - parseFloat(fill.style.left))}%`;
  track.append(fill);
  took.textContent = durationText(to - from);
  return el("span", { className: "timeline" }, track, took);
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
