// Show the OpenAPI document in Swagger UI. The page asks for an API key only if the box requires one.
const keyField = document.getElementById("key");
const withKey = request => {
  if (keyField.value && new URL(request.url, location).origin === location.origin) request.headers["x-api-key"] = keyField.value;
  return request;
};

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const followScheme = () => document.documentElement.classList.toggle("dark-mode", darkScheme.matches);
darkScheme.addEventListener("change", followScheme);
followScheme();

async function show() {
  const response = await fetch("openapi.json", { headers: keyField.value ? { "x-api-key": keyField.value } : {} });
  const openapi = await response.json();
  document.getElementById("key-panel").hidden = response.ok && !keyField.value;
  document.getElementById("state").textContent = response.ok ? "" : openapi.error;
  if (!response.ok) return;
  openapi.servers = [{ url: new URL(".", location).href.replace(/\/$/, "") }];
  SwaggerUIBundle({
    spec: openapi,
    domNode: document.getElementById("viewer"),
    validatorUrl: null,
    requestInterceptor: withKey,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    deepLinking: true,
  });
}

keyField.onchange = show;
show();
