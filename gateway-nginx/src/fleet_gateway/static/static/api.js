// Talks to the server: the API key, error messages a person can act on, and the server's clock.

const KEY_PLACE = "pyoco.api-key";
const TIMEOUT_MS = 10_000;
// A stream of events has a heartbeat every 10 s.
const SILENCE_MS = 30_000;

export class RequestFailed extends Error {
  /** `status` 0: no answer at all. `missingScope`: the API key is good, but may not do this. */
  constructor(status, message, missingScope = null) {
    super(message);
    this.status = status;
    this.missingScope = missingScope;
  }

  /** The API key is missing or wrong. A valid key without the scope is `missingScope` instead. */
  get needsKey() {
    return this.status === 401 || (this.status === 403 && !this.missingScope);
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY_PLACE),
  set: (key) => sessionStorage.setItem(KEY_PLACE, key),
  clear: () => sessionStorage.removeItem(KEY_PLACE),
};

export function keyHeader() {
  return window.PYOCO?.apiKeyHeader ?? "X-API-Key";
}

// How far the server's clock is ahead of this computer's; its Date header only knows whole seconds.
let clockAheadSeconds = 0;

export function serverNow() {
  return Date.now() / 1000 + clockAheadSeconds;
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = apiKey.get();
  if (key) headers[keyHeader()] = key;
  let response;
  try {
    response = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), ...options, headers, cache: "no-store" });
  } catch (error) {
    throw new RequestFailed(0, String(error.message));
  }
  noteClock(response.headers.get("date"));
  if (!response.ok) throw await failureOf(response);
  return response;
}

function noteClock(date) {
  const ahead = (Date.parse(date ?? "") - Date.now()) / 1000;
  if (Number.isFinite(ahead)) clockAheadSeconds = Math.abs(ahead) > 2 ? ahead : 0;
}

async function failureOf(response) {
  try {
    const body = await response.json();
    const message = body.error?.message ?? (typeof body.detail === "string" ? body.detail : "");
    return new RequestFailed(response.status, message, body.error?.meta?.missing_scope ?? null);
  } catch {
    return new RequestFailed(response.status, "");
  }
}

export async function listRuns(status) {
  const query = new URLSearchParams({ limit: "50" });
  if (status) query.set("status", status);
  const body = await (await request(`/runs?${query}`)).json();
  return Array.isArray(body) ? body : body.items;
}

export async function readRun(runId) {
  return (await request(`/runs/${encodeURIComponent(runId)}?include=full`)).json();
}

/** The workers that are of interest now; with `all` also those that have stopped or are hidden. */
export async function listWorkers(all) {
  const query = new URLSearchParams({ scope: "all", include_hidden: String(all), limit: "500" });
  const workers = await (await request(`/workers?${query}`)).json();
  return all ? workers : workers.filter((worker) => worker.state !== "STOPPED_GRACEFUL");
}

/** Ask for something to be done with a worker: "drain", "resume", "hide" or "unhide". */
export async function askWorker(what, workerId) {
  const path = `/workers/${encodeURIComponent(workerId)}`;
  if (what === "drain" || what === "resume") return request(`${path}/${what}`, { method: "POST" });
  return request(path, {
    method: "PATCH",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ hidden: what === "hide" }),
  });
}

export async function readFlow(name) {
  return (await request(`/flows/${encodeURIComponent(name)}`)).json();
}

/** Follow server-sent events until they end, or `signal` ends them. An EventSource could send no API key. */
export async function followEvents(path, { signal, lastEventId, onOpen, onEvent }) {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), TIMEOUT_MS);
  const headers = lastEventId ? { "Last-Event-ID": lastEventId } : {};
  try {
    const response = await request(path, { headers, signal: AbortSignal.any([signal, silent.signal]) });
    onOpen();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
      const { value, done } = await reader.read();
      if (done) return;
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const fields = Object.fromEntries(event.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
        onEvent(fields.event, JSON.parse(fields.data), fields.id ?? null);
      }
    }
  } catch (error) {
    throw error instanceof RequestFailed ? error : new RequestFailed(0, "");
  } finally {
    clearTimeout(timer);
  }
}

export async function listWheels() {
  return (await request("/wheels")).json();
}

/** A page of the wheels' history, and where the next one begins; null: there is none. */
export async function listWheelEvents(cursor) {
  const query = new URLSearchParams({ limit: "50" });
  if (cursor) query.set("cursor", cursor);
  const response = await request(`/wheels/history?${query}`);
  return { events: await response.json(), next: response.headers.get("x-next-cursor") };
}

export async function deleteWheel(name) {
  return (await request(`/wheels/${encodeURIComponent(name)}`, { method: "DELETE" })).json();
}

/** Upload a wheel; `onProgress` is called with the share that was sent. There is no timeout; `signal` aborts it. */
export function uploadWheel(form, { onProgress, signal }) {
  return new Promise((resolve, reject) => {
    // fetch() does not report how much of a body has been sent.
    const asking = new XMLHttpRequest();
    asking.open("POST", "/wheels");
    const key = apiKey.get();
    if (key) asking.setRequestHeader(keyHeader(), key);
    asking.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress(event.loaded / event.total));
    asking.addEventListener("load", async () => {
      const response = new Response(asking.responseText, { status: asking.status });
      if (response.ok) resolve(await response.json());
      else reject(await failureOf(response));
    });
    asking.addEventListener("error", () => reject(new RequestFailed(0, "")));
    asking.addEventListener("abort", () => reject(new RequestFailed(0, "")));
    signal.addEventListener("abort", () => asking.abort());
    asking.send(form);
  });
}

export async function submitRun(run) {
  const response = await request("/runs", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(run),
  });
  return response.json();
}

/** Ask for something to be done with a run: "cancel" or "rerun". */
export async function askFor(what, runId) {
  return (await request(`/runs/${encodeURIComponent(runId)}/${what}`, { method: "POST" })).json();
}

/** How many runs there are in each status, from the metrics. */
export async function countRuns() {
  const text = await (await request("/metrics")).text();
  const counts = {};
  for (const [, status, value] of text.matchAll(/^pyoco_runs_total\{[^}]*status="([A-Z]+)"[^}]*\} (\S+)/gm)) {
    counts[status] = Number(value);
  }
  return counts;
}
