// The page of the API: Swagger UI with the gateway's own OpenAPI document.

import { apiKey, keyHeader } from "./api.js";
import { t, translatePage } from "./i18n.js";

const SCHEME = "apiKey";

/** Text with `code` in it as React elements. */
function words(React, text) {
  return text.split("`").map((part, at) => (at % 2 ? React.createElement("code", { key: at }, part) : part));
}

/** The Markdown that our document uses: paragraphs, lists and code. */
function blocks(React, source) {
  return source.trim().split(/\n{2,}/).map((block, at) => {
    const items = block.split(/^- /m).filter(Boolean);
    if (!block.startsWith("- ")) return React.createElement("p", { key: at }, ...words(React, block));
    return React.createElement("ul", { key: at }, ...items.map((item) => React.createElement("li", {}, ...words(React, item))));
  });
}

/** Swagger UI's own Markdown turns text into HTML, which the policy of this page forbids. */
function markdownWithoutHtml() {
  const Markdown = (_, { React }) => ({ source }) =>
    source ? React.createElement("div", { className: "markdown" }, ...blocks(React, source)) : null;
  return { wrapComponents: { Markdown } };
}

function followColorScheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", show);
  show();
}

async function show() {
  const response = await fetch("/openapi.json");
  if (!response.ok) throw new Error(t("http_failed").replace("{status}", response.status));
  const spec = await response.json();
  spec.components.securitySchemes[SCHEME].name = keyHeader();
  const key = apiKey.get();
  const ui = window.SwaggerUIBundle({
    spec,
    domNode: document.getElementById("api"),
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    docExpansion: "list",
    filter: true,
    tryItOutEnabled: true,
    validatorUrl: null,
    plugins: [markdownWithoutHtml],
    // The key of this tab's dashboard.
    onComplete: () => key && ui.preauthorizeApiKey(SCHEME, key),
  });
  document.getElementById("key-in-use").hidden = !key;
}

translatePage();
followColorScheme();
show().catch((error) => {
  const problem = document.getElementById("problem");
  problem.textContent = error.message;
  problem.hidden = false;
});
