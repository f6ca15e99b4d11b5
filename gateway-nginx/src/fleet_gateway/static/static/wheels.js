// The view of wheels: what is registered, who changed it, uploading and deleting.

import { apiKey, deleteWheel, keyHeader, listWheelEvents, listWheels, uploadWheel } from "./api.js";
import { badge, el, emptyState, keep, moment } from "./dom.js";
import { lang, t } from "./i18n.js";

const at = (id) => document.getElementById(id);
const bytes = new Intl.NumberFormat(lang, { maximumFractionDigits: 1 });
const UNITS = ["B", "kB", "MB", "GB"];

// Pages of the history that somebody asked for, after the latest one, which is asked for again and again.
const older = { events: [], next: null, asked: false };
let uploading = null;
let deleting = null;

export async function askWheels() {
  const [wheels, page] = await Promise.all([listWheels(), listWheelEvents()]);
  if (!older.asked) older.next = page.next;
  return { wheels, wheelEvents: page.events };
}

/** Nothing is known any more, and nothing is shown. */
export function forgetWheels() {
  Object.assign(older, { events: [], next: null, asked: false });
  return { wheels: null, wheelEvents: [] };
}

export function showWheels({ wheels, wheelEvents }) {
  document.title = `${t("wheels")} · pyoco-fleet`;
  keep(at("wheels"), wheels ?? [], (wheel) => wheel.name, wheelRow);
  at("wheels-table").hidden = !wheels?.length;
  const empty = at("wheels-empty");
  empty.hidden = !wheels || wheels.length > 0;
  if (!empty.hidden) {
    const key = apiKey.get() ? ` -H "${keyHeader()}: $KEY"` : "";
    const command = `curl -F wheel=@shop-1.0-py3-none-any.whl -F tags=cpu,linux${key} ${location.origin}/wheels`;
    empty.replaceChildren(...emptyState(t("no_wheels"), t("no_wheels_next"), command));
  }
  showEvents(wheelEvents ?? []);
}

function showEvents(latest) {
  const known = new Set(latest.map((event) => event.event_id));
  const events = [...latest, ...older.events.filter((event) => !known.has(event.event_id))];
  keep(at("wheel-events"), events, (event) => event.event_id, eventRow);
  at("wheel-history").hidden = !events.length;
  at("older-events").hidden = !older.next;
}

function wheelRow(wheel) {
  const [name, version] = wheel.name.split("-");
  const button = el("button", { type: "button", "aria-label": `${t("delete")} ${wheel.name}` }, t("delete"));
  button.addEventListener("click", () => askBeforeDeleting(wheel.name));
  return el(
    "tr",
    {},
    el("td", { className: "name", title: wheel.name }, name, " ", el("div", { className: "hint" }, wheel.name)),
    el("td", {}, version ?? t("nothing")),
    el("td", {}, ...tagsOf(wheel)),
    el("td", { className: "wide" }, shortDigest(wheel.sha256_hex)),
    el("td", { className: "number" }, sizeText(wheel.size_bytes)),
    el("td", { className: "number" }, moment(wheel.modified)),
    el("td", { className: "number" }, button),
  );
}

function eventRow(event) {
  const { actor, source } = event;
  return el(
    "tr",
    {},
    el("td", {}, badge(event.action.toUpperCase())),
    el("td", { className: "name" }, event.wheel_name),
    el("td", { className: "wide" }, ...tagsOf(event)),
    el("td", {}, actor.tenant_id ?? t("nothing"), actor.api_key_id ? el("div", { className: "hint" }, actor.api_key_id) : null),
    el("td", { className: "wide", title: source.user_agent ?? "" }, source.remote_addr ?? t("nothing")),
    el("td", { className: "number" }, moment(event.occurred_at)),
  );
}

function tagsOf({ tags }) {
  if (!tags.length) return [el("span", { className: "faint" }, t("every_worker"))];
  return tags.map((tag) => el("span", { className: "tag" }, tag));
}

function shortDigest(digest) {
  return digest ? el("code", { title: digest }, digest.slice(0, 12)) : el("span", { className: "faint" }, t("nothing"));
}

function sizeText(size) {
  let unit = 0;
  let shown = size;
  for (; shown >= 1000 && unit < UNITS.length - 1; unit++) shown /= 1000;
  return `${bytes.format(shown)} ${UNITS[unit]}`;
}

// --- What happens on a click. `refresh` asks the server again, `askForKey` the person; `sentenceOf` describes a failure.

export function beginWheels({ refresh, askForKey, sentenceOf }) {
  at("older-events").addEventListener("click", async (event) => {
    event.target.disabled = true;
    try {
      const page = await listWheelEvents(older.next);
      older.asked = true;
      older.events.push(...page.events);
      older.next = page.next;
      refresh();
    } catch (error) {
      if (error.needsKey) askForKey(error.status);
    } finally {
      event.target.disabled = false;
    }
  });

  at("open-upload").addEventListener("click", () => at("upload-dialog").showModal());
  for (const dialog of [at("upload-dialog"), at("delete-dialog")]) {
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => (dialog.querySelector(".form-problem").hidden = true));
  }
  // Closing the dialog aborts the upload.
  at("upload-dialog").addEventListener("close", () => uploading?.abort());

  at("upload-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const form = event.target;
    const progress = form.querySelector("progress");
    const problem = form.querySelector(".form-problem");
    const button = form.querySelector("[type=submit]");
    uploading = new AbortController();
    begin(button, problem, t("sending"));
    progress.hidden = false;
    progress.value = 0;
    try {
      await uploadWheel(new FormData(form), {
        signal: uploading.signal,
        onProgress: (part) => {
          progress.value = part;
          if (part === 1) button.textContent = t("storing");
        },
      });
      form.reset();
      at("upload-dialog").close();
      refresh();
    } catch (error) {
      if (error.needsKey) return askForKey(error.status);
      showProblem(problem, uploading.signal.aborted ? "" : sentenceOf(error));
    } finally {
      uploading = null;
      progress.hidden = true;
      end(button, t("upload"));
    }
  });

  at("delete-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const problem = event.target.querySelector(".form-problem");
    const button = event.target.querySelector("[type=submit]");
    begin(button, problem, t("sending"));
    try {
      await deleteWheel(deleting);
      at("delete-dialog").close();
      refresh();
    } catch (error) {
      if (error.needsKey) return askForKey(error.status);
      showProblem(problem, sentenceOf(error));
    } finally {
      end(button, t("delete"));
    }
  });
}

function askBeforeDeleting(name) {
  deleting = name;
  at("delete-question").textContent = t("delete_question", { name });
  at("delete-dialog").showModal();
}

export function closeWheelDialogs() {
  for (const dialog of [at("upload-dialog"), at("delete-dialog")]) if (dialog.open) dialog.close();
}

function begin(button, problem, text) {
  problem.hidden = true;
  button.disabled = true;
  button.textContent = text;
}

function end(button, text) {
  button.disabled = false;
  button.textContent = text;
}

function showProblem(problem, text) {
  problem.textContent = text;
  problem.hidden = !text;
}
