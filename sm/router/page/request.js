// Build a request, and write it as code. A request is {path, headers, body, json, file, name, parameters}.
import { ANY_BYTES, toBase64 } from "./dom.js";

/** records: objects whose values may be files. A single file is sent as a raw body, anything else as JSON. */
export async function buildRequest(client, records, parameters, streamed) {
  const headers = { "X-Trireme-Timing": "1" };
  if (streamed) headers.Accept = "text/event-stream";
  if (client.tensors) return asJson(client, records[0], headers, `invocations?${new URLSearchParams({ modelname: client.name })}`);
  const raw = records.length === 1 ? rawFile(client, records[0], parameters) : null;
  if (raw) {
    headers["Content-Type"] = rawType(client, raw);
    const query = new URLSearchParams({ modelname: client.name, ...parameters });
    return { path: `invocations?${query}`, headers, body: raw, file: raw.name || "payload", name: client.name, parameters };
  }
  const payloads = [];
  for (const record of records) payloads.push(client.wholeBody ? record.body : await encodeFiles(record));
  const body = { modelname: client.name, payload: payloads.length === 1 ? payloads[0] : payloads };
  if (Object.keys(parameters).length) body.parameters = parameters;
  return asJson(client, body, headers, "invocations");
}

function asJson(client, json, headers, path) {
  headers["Content-Type"] = "application/json";
  return { path, headers, json, body: JSON.stringify(json), name: client.name };
}

function rawFile(client, record, parameters) {
  const plain = Object.values(parameters).every(value => typeof value !== "object");
  if (client.wholeBody) return plain ? record.file || null : null;
  const keys = Object.keys(record), file = record[client.mainField];
  return plain && keys.length === 1 && file instanceof Blob && rawType(client, file) ? file : null;
}

/** The content type for a file as a raw body; empty if the client accepts the file only as base64. */
function rawType(client, file) {
  const takes = type => client.contentTypes.includes(type);
  if (client.wholeBody || takes(file.type)) return file.type || ANY_BYTES;
  // A body of JSON would be read as a request.
  if (file.type.includes("json")) return "";
  return takes(ANY_BYTES) ? ANY_BYTES : takes("*/*") ? file.type || ANY_BYTES : "";
}

/** Replace files in a value by their base64. */
async function encodeFiles(value) {
  if (value instanceof Blob) return toBase64(value);
  if (Array.isArray(value)) return Promise.all(value.map(encodeFiles));
  if (value && typeof value === "object") {
    const encoded = {};
    for (const [key, each] of Object.entries(value)) encoded[key] = await encodeFiles(each);
    return encoded;
  }
  return value;
}

/** Characters of JSON in the shown code. Longer JSON is read from a file. */
const MAX_INLINE_JSON = 3000;
export const needsFile = request => request.json !== undefined && request.body.length > MAX_INLINE_JSON;

const shell = text => `'${text.replaceAll("'", "'\\''")}'`;
const fileOf = request => (request.file ? request.file : "request.json");
const isFile = request => Boolean(request.file) || needsFile(request);

function python(value, depth = 0) {
  const pad = "    ".repeat(depth + 1), end = "    ".repeat(depth);
  if (value === null) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(each => python(each, depth)).join(", ")}]`;
  if (typeof value === "object") {
    const rows = Object.entries(value).map(([key, each]) => `${pad}${JSON.stringify(key)}: ${python(each, depth + 1)},\n`);
    return rows.length ? `{\n${rows.join("")}${end}}` : "{}";
  }
  return JSON.stringify(value);
}

const customAttributes = request => (request.file
  ? [`modelname=${request.name}`, ...Object.entries(request.parameters).map(([key, value]) => `${key}=${value}`)].join(";")
  : request.path.includes("?") ? `modelname=${request.name}` : "");

const LANGUAGES = {
  curl(request, origin, keyed) {
    const lines = [`curl ${shell(`${origin}${request.path}`)}`, `-H ${shell(`Content-Type: ${request.headers["Content-Type"]}`)}`];
    if (request.headers.Accept) lines.push(`-N -H ${shell(`Accept: ${request.headers.Accept}`)}`);
    if (keyed) lines.push('-H "x-api-key: $API_KEY"');
    lines.push(isFile(request) ? `--data-binary @${shell(fileOf(request))}` : `-d ${shell(request.body)}`);
    return lines.join(" \\\n  ");
  },
  "Python requests"(request, origin, keyed) {
    const headers = { "Content-Type": request.headers["Content-Type"] };
    if (request.headers.Accept) headers.Accept = request.headers.Accept;
    let shown = python(headers);
    if (keyed) shown = shown.replace(/}$/, '    "x-api-key": os.environ["API_KEY"],\n}');
    const body = isFile(request) ? `open(${JSON.stringify(fileOf(request))}, "rb")` : `json.dumps(${python(request.json)})`;
    const imports = [keyed ? "import os" : null, isFile(request) ? null : "import json"].filter(Boolean).join("\n");
    const streamed = Boolean(request.headers.Accept);
    return `${imports ? `${imports}\n\n` : ""}import requests

answer = requests.post(
    ${JSON.stringify(`${origin}${request.path}`)},
    headers=${shown.replaceAll("\n", "\n    ")},
    data=${body.replaceAll("\n", "\n    ")},
    timeout=60,${streamed ? "\n    stream=True," : ""}
)
answer.raise_for_status()
${streamed ? "for line in answer.iter_lines():\n    print(line.decode())" : "print(answer.json())"}
`;
  },
  "Python boto3"(request, origin) {
    const body = isFile(request) ? `open(${JSON.stringify(fileOf(request))}, "rb").read()` : `json.dumps(${python(request.json)})`;
    const attributes = customAttributes(request);
    return `${isFile(request) ? "" : "import json\n\n"}import boto3

# Without endpoint_url it is an endpoint of yours on SageMaker.
runtime = boto3.client(
    "sagemaker-runtime",
    region_name="eu-west-1",
    endpoint_url=${JSON.stringify(origin.replace(/\/$/, ""))},
)
answer = runtime.invoke_endpoint(
    EndpointName="trireme",
    ContentType=${JSON.stringify(request.headers["Content-Type"])},${attributes ? `\n    CustomAttributes=${JSON.stringify(attributes)},` : ""}
    Body=${body.replaceAll("\n", "\n    ")},
)
print(answer["Body"].read().decode())
`;
  },
  JavaScript(request, origin, keyed) {
    const headers = [`"Content-Type": ${JSON.stringify(request.headers["Content-Type"])}`];
    if (request.headers.Accept) headers.push(`Accept: ${JSON.stringify(request.headers.Accept)}`);
    if (keyed) headers.push('"x-api-key": apiKey');
    const body = isFile(request) ? `file,  // ${fileOf(request)}, as of an <input type="file">` : `JSON.stringify(${JSON.stringify(request.json, null, 2).replaceAll("\n", "\n  ")}),`;
    return `const answer = await fetch(${JSON.stringify(`${origin}${request.path}`)}, {
  method: "POST",
  headers: { ${headers.join(", ")} },
  body: ${body}
});
console.log(await answer.${request.headers.Accept ? "text" : "json"}());
`;
  },
  "AWS CLI"(request, origin) {
    const attributes = customAttributes(request);
    // Versions 1 and 2 of the command take the text of --body differently. They take a file in the same way.
    return [
      `${isFile(request) ? "" : `printf %s ${shell(request.body)} | `}aws sagemaker-runtime invoke-endpoint`,
      `--endpoint-url ${shell(origin.replace(/\/$/, ""))}`,
      "--region eu-west-1",
      "--endpoint-name trireme",
      `--content-type ${shell(request.headers["Content-Type"])}`,
      attributes ? `--custom-attributes ${shell(attributes)}` : null,
      `--body ${isFile(request) ? shell(`fileb://${fileOf(request)}`) : "fileb:///dev/stdin"}`,
      "answer.json",
    ].filter(Boolean).join(" \\\n  ");
  },
};
export const languages = Object.keys(LANGUAGES);
export const code = (language, request, origin, keyed) => LANGUAGES[language](request, origin, keyed);

/** Yield the events of a stream as they arrive, each as {event, data}. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let partial = "";
  for (;;) {
    const { value, done } = await reader.read();
    partial += value || "";
    const blocks = partial.split("\n\n");
    partial = done ? "" : blocks.pop();
    for (const block of blocks) if (block.trim()) yield parseEvent(block);
    if (done) return;
  }
}

function parseEvent(block) {
  const parsed = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) parsed[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  return parsed;
}
