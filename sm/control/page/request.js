// Build a request, and write it as code. A request is {path, headers, body, json, file, modelName, parameters, savesAs (the file that its answer was)}.
import { ANY_BYTES, toBase64 } from "./dom.js";

/** Characters of JSON in the code that is shown. Longer JSON is read from a file. */
const MAX_INLINE_JSON = 3000;

/** records: objects whose values may be files. A single file is sent as a raw body, anything else as JSON. */
export async function buildRequest(client, records, parameters, isStreamed) {
  const headers = { "X-Trireme-Timing": "1" };
  if (isStreamed) headers.Accept = "text/event-stream";
  if (client.tensors) return jsonRequest(client, records[0], headers, `invocations?${new URLSearchParams({ modelname: client.name })}`);
  const file = records.length === 1 ? fileForRawBody(client, records[0], parameters) : null;
  if (file) {
    headers["Content-Type"] = rawContentType(client, file);
    const query = new URLSearchParams({ modelname: client.name, ...parameters });
    return { path: `invocations?${query}`, headers, body: file, file: file.name || "payload", modelName: client.name, parameters };
  }
  const payloads = [];
  for (const record of records) payloads.push(client.wholeBody ? record.body : await encodeFiles(record));
  const message = { modelname: client.name, payload: payloads.length === 1 ? payloads[0] : payloads };
  if (Object.keys(parameters).length) message.parameters = parameters;
  return jsonRequest(client, message, headers, "invocations");
}

function jsonRequest(client, json, headers, path) {
  headers["Content-Type"] = "application/json";
  return { path, headers, json, body: JSON.stringify(json), modelName: client.name };
}

/** Return the record's file if the request can be this file and a query. */
function fileForRawBody(client, record, parameters) {
  // An object or a list among the parameters does not fit into a query.
  if (Object.values(parameters).some(value => typeof value === "object")) return null;
  if (client.wholeBody) return record.file || null;
  const file = record[client.mainField];
  return Object.keys(record).length === 1 && file instanceof Blob && rawContentType(client, file) ? file : null;
}

/** The content type for a file as a raw body; empty if the client accepts the file only as base64. */
function rawContentType(client, file) {
  const accepts = type => client.contentTypes.includes(type);
  if (client.wholeBody || accepts(file.type)) return file.type || ANY_BYTES;
  // A body of JSON would be read as a request.
  if (file.type.includes("json")) return "";
  return accepts(ANY_BYTES) ? ANY_BYTES : accepts("*/*") ? file.type || ANY_BYTES : "";
}

/** Replace files in a value by their base64. */
async function encodeFiles(value) {
  if (value instanceof Blob) return toBase64(value);
  if (Array.isArray(value)) return Promise.all(value.map(encodeFiles));
  if (value && typeof value === "object") {
    const encoded = {};
    for (const [key, item] of Object.entries(value)) encoded[key] = await encodeFiles(item);
    return encoded;
  }
  return value;
}

// --- a request as code

/** True if the code reads the JSON from request.json, which the page offers to download. */
export const needsFile = request => request.json !== undefined && request.body.length > MAX_INLINE_JSON;
const bodyIsFile = request => Boolean(request.file) || needsFile(request);
const fileName = request => request.file || "request.json";
const shellQuote = text => `'${text.replaceAll("'", "'\\''")}'`;

/** Write a JSON value as Python. */
function pythonLiteral(value, depth = 0) {
  const indent = "    ".repeat(depth + 1), endIndent = "    ".repeat(depth);
  if (value === null) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(item => pythonLiteral(item, depth)).join(", ")}]`;
  if (typeof value === "object") {
    const lines = Object.entries(value).map(([key, item]) => `${indent}${JSON.stringify(key)}: ${pythonLiteral(item, depth + 1)},\n`);
    return lines.length ? `{\n${lines.join("")}${endIndent}}` : "{}";
  }
  return JSON.stringify(value);
}

const pythonSave = (request, content) => `with open(${JSON.stringify(request.savesAs)}, "wb") as file:\n    file.write(${content})`;

/** SageMaker passes no query on, so its custom attributes say what the query would. */
const customAttributes = request => (request.file
  ? [`modelname=${request.modelName}`, ...Object.entries(request.parameters).map(([key, value]) => `${key}=${value}`)].join(";")
  : request.path.includes("?") ? `modelname=${request.modelName}` : "");

/** By language: request, the box's address, and whether the box asks for an API key. */
const LANGUAGES = {
  curl(request, origin, needsKey) {
    const lines = [`curl ${shellQuote(`${origin}${request.path}`)}`, `-H ${shellQuote(`Content-Type: ${request.headers["Content-Type"]}`)}`];
    if (request.headers.Accept) lines.push(`-N -H ${shellQuote(`Accept: ${request.headers.Accept}`)}`);
    if (needsKey) lines.push('-H "x-api-key: $API_KEY"');
    if (request.savesAs) lines.push(`--output ${shellQuote(request.savesAs)}`);
    lines.push(bodyIsFile(request) ? `--data-binary @${shellQuote(fileName(request))}` : `-d ${shellQuote(request.body)}`);
    return lines.join(" \\\n  ");
  },
  "Python requests"(request, origin, needsKey) {
    const headers = { "Content-Type": request.headers["Content-Type"] };
    if (request.headers.Accept) headers.Accept = request.headers.Accept;
    let headersCode = pythonLiteral(headers);
    if (needsKey) headersCode = headersCode.replace(/}$/, '    "x-api-key": os.environ["API_KEY"],\n}');
    const bodyCode = bodyIsFile(request) ? `open(${JSON.stringify(fileName(request))}, "rb")` : `json.dumps(${pythonLiteral(request.json)})`;
    const imports = [needsKey ? "import os" : null, bodyIsFile(request) ? null : "import json"].filter(Boolean).join("\n");
    const isStreamed = Boolean(request.headers.Accept);
    return `${imports ? `${imports}\n\n` : ""}import requests

answer = requests.post(
    ${JSON.stringify(`${origin}${request.path}`)},
    headers=${headersCode.replaceAll("\n", "\n    ")},
    data=${bodyCode.replaceAll("\n", "\n    ")},
    timeout=60,${isStreamed ? "\n    stream=True," : ""}
)
answer.raise_for_status()
${isStreamed ? "for line in answer.iter_lines():\n    print(line.decode())" : request.savesAs ? pythonSave(request, "answer.content") : "print(answer.json())"}
`;
  },
  "Python boto3"(request, origin) {
    const bodyCode = bodyIsFile(request) ? `open(${JSON.stringify(fileName(request))}, "rb").read()` : `json.dumps(${pythonLiteral(request.json)})`;
    const attributes = customAttributes(request);
    return `${bodyIsFile(request) ? "" : "import json\n\n"}import boto3

# Without endpoint_url this calls your endpoint on SageMaker.
runtime = boto3.client(
    "sagemaker-runtime",
    region_name="eu-west-1",
    endpoint_url=${JSON.stringify(origin.replace(/\/$/, ""))},
)
answer = runtime.invoke_endpoint(
    EndpointName="trireme",
    ContentType=${JSON.stringify(request.headers["Content-Type"])},${attributes ? `\n    CustomAttributes=${JSON.stringify(attributes)},` : ""}
    Body=${bodyCode.replaceAll("\n", "\n    ")},
)
${request.savesAs ? pythonSave(request, 'answer["Body"].read()') : 'print(answer["Body"].read().decode())'}
`;
  },
  JavaScript(request, origin, needsKey) {
    const headers = [`"Content-Type": ${JSON.stringify(request.headers["Content-Type"])}`];
    if (request.headers.Accept) headers.push(`Accept: ${JSON.stringify(request.headers.Accept)}`);
    if (needsKey) headers.push('"x-api-key": apiKey');
    const bodyCode = bodyIsFile(request) ? `file,  // ${fileName(request)}, as of an <input type="file">` : `JSON.stringify(${JSON.stringify(request.json, null, 2).replaceAll("\n", "\n  ")}),`;
    return `const answer = await fetch(${JSON.stringify(`${origin}${request.path}`)}, {
  method: "POST",
  headers: { ${headers.join(", ")} },
  body: ${bodyCode}
});
console.log(await answer.${request.headers.Accept ? "text" : request.savesAs ? "blob" : "json"}());
`;
  },
  "AWS CLI"(request, origin) {
    const attributes = customAttributes(request);
    // Versions 1 and 2 of the command read the text of --body differently, but a file alike.
    return [
      `${bodyIsFile(request) ? "" : `printf %s ${shellQuote(request.body)} | `}aws sagemaker-runtime invoke-endpoint`,
      `--endpoint-url ${shellQuote(origin.replace(/\/$/, ""))}`,
      "--region eu-west-1",
      "--endpoint-name trireme",
      `--content-type ${shellQuote(request.headers["Content-Type"])}`,
      attributes ? `--custom-attributes ${shellQuote(attributes)}` : null,
      `--body ${bodyIsFile(request) ? shellQuote(`fileb://${fileName(request)}`) : "fileb:///dev/stdin"}`,
      request.savesAs ? shellQuote(request.savesAs) : "answer.json",
    ].filter(Boolean).join(" \\\n  ");
  },
};
export const languages = Object.keys(LANGUAGES);
export const requestCode = (language, request, origin, needsKey) => LANGUAGES[language](request, origin, needsKey);

/** Yield the events of a stream as they arrive, each as {event, data}. */
export async function* readEvents(body) {
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
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  return fields;
}
