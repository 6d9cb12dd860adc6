// The OpenAPI document in Swagger UI. A key is asked for only where the box wants one.
const field = document.getElementById("key");
const withKey = request => {
  if (field.value && new URL(request.url, location).origin === location.origin) request.headers["x-api-key"] = field.value;
  return request;
};

async function show() {
  const answer = await fetch("openapi.json", { headers: field.value ? { "x-api-key": field.value } : {} });
  const said = await answer.json();
  document.getElementById("keying").hidden = answer.ok && !field.value;
  document.getElementById("state").textContent = answer.ok ? "" : said.error;
  if (!answer.ok) return;
  said.servers = [{ url: new URL(".", location).href.replace(/\/$/, "") }];
  SwaggerUIBundle({
    spec: said,
    domNode: document.getElementById("viewer"),
    validatorUrl: null,
    requestInterceptor: withKey,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    deepLinking: true,
  });
}

field.onchange = show;
show();
