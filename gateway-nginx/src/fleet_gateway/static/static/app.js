// The dashboard: which view is shown, when the server is asked, what happens on a click.

import { apiKey, askFor, askWorker, countRuns, keyHeader, listRuns, listWorkers, readRun, RequestFailed, submitRun } from "./api.js";
import { el, emptyState, keep, tick } from "./dom.js";
import { askFlows, beginFlows, forgetFlows, leaveFlows, showFlows } from "./flows.js";
import { t, translatePage } from "./i18n.js";
import { countButton, isTerminal, RUN_STATUSES, runDetail, runRow, shortId, workerRow } from "./views.js";
import { askWheels, beginWheels, closeWheelDialogs, forgetWheels, showWheels } from "./wheels.js";

const POLL_MS = 2000;
const POLL_AFTER_FAILURE_MS = 5000;

const at = (id) => document.getElementById(id);
const state = { runs: null, counts: {}, workers: [], workersKnown: false, status: null, missingScope: null };

let timer = null;
// Rises with every change of view: an answer to an older question is thrown away.
let generation = 0;
// Whether this key may read the numbers; asked once.
let mayCount = true;
// What went wrong with a click stays to be read until the next one.
let notice = "";

function route() {
  const [, view, id] = location.hash.split("/");
  const named = id ? decoded(id) : null;
  if (view === "workers" || view === "wheels") return { view, runId: null };
  if (view === "flows") return { view, runId: null, flowName: named };
  return { view: "runs", runId: view === "runs" ? named : null };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not written by us: then it names no run either
  }
}

// --- Asking the server

async function refresh() {
  clearTimeout(timer);
  if (document.hidden || at("key-dialog").open) return leaveFlows();
  const mine = ++generation;
  let pause = POLL_MS;
  try {
    const answers = await ask(route());
    if (mine !== generation) return;
    Object.assign(state, { missingScope: null }, answers);
    show();
    say("live");
  } catch (error) {
    if (!(error instanceof RequestFailed)) throw error;
    if (mine !== generation) return;
    pause = POLL_AFTER_FAILURE_MS;
    if (error.needsKey) return askForKey(error.status);
    if (error.missingScope) showRefused(error.missingScope);
    else say("lost", sentenceOf(error));
  }
  if (mine === generation) timer = setTimeout(refresh, pause);
}

async function ask({ view, runId, flowName }) {
  if (view === "flows") return askFlows(flowName);
  leaveFlows();
  if (view === "workers") return { workers: await listWorkers(at("workers-all").checked), workersKnown: true };
  if (view === "wheels") return askWheels();
  const [runs, counts, run] = await Promise.all([
    listRuns(state.status),
    mayCount ? countRuns().catch(orUncounted) : {},
    runId ? readRun(runId).catch(orMissing) : null,
  ]);
  return { runs, counts, run };
}

function orMissing(error) {
  if (error.status === 404) return { missing: true };
  throw error;
}

/** The counts need the scope of the metrics; without it the runs are shown without counts. */
function orUncounted(error) {
  if (!error.missingScope) throw error;
  mayCount = false;
  return {};
}

function sentenceOf(error) {
  if (error.missingScope) return t("scope_missing", { scope: error.missingScope });
  return error.message || t(error.status ? "http_failed" : "unreachable", { status: error.status });
}

// --- Showing

/** The key is good, but not for this view: nothing of an earlier key stays to be seen. */
function showRefused(scope) {
  clear();
  state.missingScope = scope;
  show();
  say("live");
}

function show() {
  const { view, runId, flowName } = route();
  at("refused").hidden = !state.missingScope;
  if (state.missingScope) at("refused").replaceChildren(...whyRefused());
  at("runs-view").hidden = view !== "runs" || Boolean(state.missingScope);
  at("flows-view").hidden = view !== "flows" || Boolean(state.missingScope);
  at("workers-view").hidden = view !== "workers" || Boolean(state.missingScope);
  at("wheels-view").hidden = view !== "wheels" || Boolean(state.missingScope);
  at("change-key").hidden = !apiKey.get();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "workers") showWorkers();
  else if (view === "wheels") showWheels(state);
  else if (view === "flows") showFlows(state, flowName);
  else showRuns(runId);
  tick();
}

function showRuns(runId) {
  showCounts();
  const runs = state.runs ?? [];
  const rows = runs.map((run) => ({ ...run, chosen: run.run_id === runId }));
  keep(at("runs"), rows, (run) => run.run_id, (run) => runRow(run, run.chosen));
  at("runs-table").hidden = !runs.length;
  const empty = at("runs-empty");
  empty.hidden = state.runs === null || runs.length > 0;
  if (!empty.hidden) empty.replaceChildren(...whyNoRuns());
  document.body.classList.toggle("with-detail", Boolean(runId));
  showDetail(runId);
}

function showCounts() {
  const { counts } = state;
  const known = RUN_STATUSES.filter((status) => status in counts);
  const total = known.length ? known.reduce((sum, status) => sum + counts[status], 0) : undefined;
  const items = [{ status: null, count: total }, ...RUN_STATUSES.map((status) => ({ status, count: counts[status] }))];
  keep(
    at("counts"),
    items.map((item) => ({ ...item, chosen: item.status === state.status })),
    (item) => item.status ?? "every",
    (item) => countButton(item.status, item.count, item.chosen, () => choose(item.status)),
  );
}

function choose(status) {
  state.status = status;
  showCounts();
  refresh();
}

function whyRefused() {
  const command = `./fleet admin api-key create --tenant T --scopes ${state.missingScope}`;
  return emptyState(t("scope_missing", { scope: state.missingScope }), t("scope_missing_next"), command);
}

function whyNoRuns() {
  if (state.status) return emptyState(t("no_match", { status: t(state.status) }), t("no_match_next"));
  const key = apiKey.get() ? ` -H "${keyHeader()}: $KEY"` : "";
  const command = `curl -X POST ${location.origin}/runs${key} -H 'content-type: application/json' -d '{"flow_name":"hello","params":{"name":"Ada"}}'`;
  return emptyState(t("no_runs"), t("no_runs_next"), command);
}

function showDetail(runId) {
  const panel = at("detail");
  panel.hidden = !runId;
  document.title = runId ? `${shortId(runId)} · pyoco-fleet` : `${t("runs")} · pyoco-fleet`;
  if (!runId) return panel.replaceChildren();
  const run = state.run;
  const known = run?.run_id === runId;
  // A finished run changes no more: leave it alone, so that what somebody opened or selected stays.
  const signature = JSON.stringify([runId, run, known && isTerminal(run) ? null : Math.floor(Date.now() / POLL_MS)]);
  if (panel.signature === signature) return;
  panel.signature = signature;
  const back = el("a", { href: "#/", className: "back" }, t("back"));
  if (known) replaceKeepingOpen(panel, runDetail(run, (what) => act(what, runId)));
  else panel.replaceChildren(back, el("p", {}, t(run?.missing ? "run_not_found" : "loading")));
}

/** Replace the content of the panel; what the reader has opened or closed, and the scroll position, stay. */
function replaceKeepingOpen(panel, content) {
  const before = [...panel.querySelectorAll("details")].map((node) => [node.querySelector(".name").textContent, node.open]);
  const wasOpen = new Map(before);
  const focused = [...panel.querySelectorAll("a, summary")].indexOf(document.activeElement);
  panel.replaceChildren(...content);
  for (const node of panel.querySelectorAll("details")) {
    const open = wasOpen.get(node.querySelector(".name").textContent);
    if (open !== undefined) node.open = open;
  }
  if (focused >= 0) panel.querySelectorAll("a, summary")[focused]?.focus();
}

async function act(what, runId) {
  await attempt(async () => {
    const answer = await askFor(what, runId);
    if (answer.run_id !== runId) location.hash = `#/runs/${encodeURIComponent(answer.run_id)}`;
    else await refresh();
  });
}

async function actOnWorker(what, workerId) {
  await attempt(async () => {
    await askWorker(what, workerId);
    await refresh();
  });
}

/** Do what a click asks for, and say so if it cannot be done. */
async function attempt(work) {
  notice = "";
  try {
    await work();
  } catch (error) {
    if (error.needsKey) return askForKey(error.status);
    notice = sentenceOf(error);
    say(error.status ? "live" : "lost");
  }
}

function showWorkers() {
  document.title = `${t("workers")} · pyoco-fleet`;
  const row = (worker) => workerRow(worker, (what) => actOnWorker(what, worker.worker_id));
  keep(at("workers"), state.workers, (worker) => worker.worker_id, row);
  at("workers-table").hidden = !state.workers.length;
  const empty = at("workers-empty");
  empty.hidden = !state.workersKnown || state.workers.length > 0;
  if (!empty.hidden) {
    const command = "pyoco-worker --nats-url nats://HOST:4222 --tags default";
    empty.replaceChildren(...emptyState(t("no_workers"), t("no_workers_next"), command));
  }
}

function say(what, problem = notice) {
  at("link").className = `link ${what}`;
  at("link").textContent = t(what);
  at("problem").hidden = !problem;
  at("problem").textContent = problem;
}

// --- The API key

/** Without an answer there is nothing to see: what an earlier key has shown is taken away. */
function askForKey(status) {
  say("paused");
  at("key-reason").textContent = t(status === 403 && apiKey.get() ? "key_invalid" : "key_required");
  apiKey.clear();
  forget();
  openKeyDialog({ canClose: false });
}

function forget() {
  generation++;
  notice = "";
  mayCount = true;
  clear();
  show();
}

function clear() {
  const nothing = { runs: null, run: null, counts: {}, workers: [], workersKnown: false, missingScope: null };
  Object.assign(state, nothing, forgetWheels(), forgetFlows());
}

function openKeyDialog({ canClose }) {
  if (at("submit-dialog").open) at("submit-dialog").close();
  closeWheelDialogs();
  for (const button of at("key-form").querySelectorAll("[data-close], [data-forget]")) button.hidden = !canClose;
  if (!at("key-dialog").open) at("key-dialog").showModal();
}

at("change-key").addEventListener("click", () => {
  at("key-reason").textContent = t("key_in_use");
  openKeyDialog({ canClose: true });
});
at("key-form").querySelector("[data-close]").addEventListener("click", () => at("key-dialog").close());
at("key-form").querySelector("[data-forget]").addEventListener("click", () => {
  apiKey.clear();
  forget();
  at("key-dialog").close();
});

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey.set(event.target.key.value.trim());
  event.target.reset();
  forget();
  at("key-dialog").close();
});
at("key-dialog").addEventListener("close", refresh);

// --- Submitting

at("open-submit").addEventListener("click", () => at("submit-dialog").showModal());
at("submit-dialog").querySelector("[data-close]").addEventListener("click", () => at("submit-dialog").close());

at("submit-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const problem = form.querySelector(".form-problem");
  const button = form.querySelector("[type=submit]");
  problem.hidden = true;
  button.disabled = true;
  button.textContent = t("sending");
  try {
    const accepted = await submitRun(runOf(form));
    at("submit-dialog").close();
    location.hash = `#/runs/${encodeURIComponent(accepted.run_id)}`;
  } catch (error) {
    if (error.needsKey) return askForKey(error.status);
    problem.textContent = error instanceof RequestFailed ? sentenceOf(error) : error.message;
    problem.hidden = false;
  } finally {
    button.disabled = false;
    button.textContent = t("submit");
  }
});

/** The form, filled in: to run a flow one only has to look it over. */
function openSubmit({ flow_name: name, params, tag }) {
  const form = at("submit-form");
  form.flow_name.value = name;
  form.params.value = Object.keys(params).length ? JSON.stringify(params, null, 2) : "";
  form.tag.value = tag ?? "";
  form.querySelector(".form-problem").hidden = true;
  at("submit-dialog").showModal();
}

function runOf(form) {
  const text = form.params.value.trim();
  let params;
  try {
    params = text ? JSON.parse(text) : {};
  } catch (error) {
    throw new Error(t("params_invalid", { reason: error.message }));
  }
  if (typeof params !== "object" || params === null || Array.isArray(params)) throw new Error(t("params_not_object"));
  const tag = form.tag.value.trim();
  return { flow_name: form.flow_name.value.trim(), params, ...(tag ? { tag } : {}) };
}

// --- Beginning

translatePage();
beginWheels({ refresh, askForKey, sentenceOf });
beginFlows({ refresh, run: openSubmit });
// Not a real jump: the address after # says which view is shown.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("main").focus();
});
addEventListener("hashchange", () => {
  notice = "";
  show();
  refresh();
});
at("workers-all").addEventListener("change", refresh);
document.addEventListener("visibilitychange", refresh);
setInterval(() => !document.hidden && tick(), 1000);
show();
refresh();
