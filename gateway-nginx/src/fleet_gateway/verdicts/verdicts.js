// Remembers for a moment who came with an API key, in memory that nginx's processes share: under the digest of the key,
// and on no disk. Refusals are not remembered, so trying keys does not fill it.
import crypto from "crypto";

function digest(r) {
  return crypto.createHash("sha256").update(r.variables.fleet_api_key).digest("hex");
}

/** What auth said of this key a moment ago: tenant, key id and scopes; nothing: it must be asked. */
function recall(r) {
  return ngx.shared.fleet_verdicts.get(digest(r)) || "";
}

/** Keep what auth has just said, if it lets the caller in. */
function remember(r) {
  const seen = r.variables;
  if (seen.upstream_status === "204") {
    const identity = [
      seen.upstream_http_x_pyoco_tenant_id,
      seen.upstream_http_x_pyoco_api_key_id,
      seen.upstream_http_x_pyoco_scopes,
    ];
    ngx.shared.fleet_verdicts.set(digest(r), identity.map((part) => part || "").join("\t"));
  }
  return "";
}

export default { recall, remember };
