// A form from a JSON schema. Every field has: element, read() (undefined: not given), write(value), path errors.
import { ANY_BYTES, fromBase64, make, newId, prose } from "./dom.js";

export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Follow references, and take of several forms the one that a form can have. */
export function resolve(schema, schemas) {
  for (let depth = 0; depth < 20 && schema; depth++) {
    if (schema.$ref) {
      const { $ref, ...own } = schema;
      schema = { ...schemas[$ref.split("/").pop()], ...own };
    } else if (schema.allOf?.length === 1 && !schema.properties) {
      const { allOf, ...own } = schema;
      schema = { ...allOf[0], ...own };
    } else if (schema.anyOf || schema.oneOf) {
      const { anyOf, oneOf, ...own } = schema;
      const forms = (anyOf || oneOf).filter(form => form.type !== "null" && !form.$ref?.endsWith("/S3Object"));
      if (!forms.length) return own;
      schema = { ...forms[0], ...own };
    } else return schema;
  }
  return schema || {};
}

const isBytes = schema => schema.contentEncoding === "base64" || schema.format === "binary" || schema.format === "byte";
const SCALARS = new Set(["string", "number", "integer", "boolean"]);

/** context: schemas, contentTypes (of the main field), mainField, onFile(), isParameter, isTyped (a file's content type can be edited) */
export function field(name, schema, path, required, context) {
  schema = resolve(schema, context.schemas);
  const kind =
    isBytes(schema) ? bytesField
    : schema.enum || schema.const !== undefined ? choiceField
    : schema.type === "boolean" ? switchField
    : schema.type === "number" || schema.type === "integer" ? numberField
    : schema.type === "string" ? textField
    : schema.type === "array" && resolve(schema.items || {}, context.schemas).properties ? listField
    : schema.type === "object" && schema.properties ? objectField
    : jsonField;
  const made = kind({ name, schema, path, required, context });
  made.path = path;
  return made;
}

/** A label, the control, its help and the place of its error. */
function row({ name, schema, required }, control, ...more) {
  const id = control.id || (control.id = newId());
  const help = schema.description ? make("p", { class: "help", id: `${id}h` }, ...prose(schema.description)) : null;
  const error = make("p", { class: "error", id: `${id}e`, hidden: true });
  control.setAttribute("aria-describedby", `${help ? help.id : ""} ${error.id}`.trim());
  const element = make("div", { class: "field" },
    make("label", { for: id }, name, required ? make("span", { class: "must", title: "required" }, " *") : null), control, ...more, help, error);
  return {
    element,
    control,
    showError(message) {
      error.textContent = message || "";
      error.hidden = !message;
      if (message) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    },
    fields: [],
  };
}

function choiceField(said) {
  const { schema, required } = said;
  const values = schema.enum || [schema.const];
  const control = make("select");
  if (!required && schema.default === undefined) control.add(new Option("", ""));
  values.forEach((value, index) => control.add(new Option(String(value), String(index))));
  const made = row(said, control);
  made.read = () => (control.value === "" ? undefined : values[Number(control.value)]);
  made.write = value => { control.value = value === undefined ? "" : String(values.indexOf(value)); };
  made.write(schema.default ?? (required ? values[0] : undefined));
  return made;
}

function switchField(said) {
  const control = make("input", { type: "checkbox", role: "switch" });
  const made = row(said, control);
  made.element.classList.add("switch");
  made.read = () => control.checked;
  made.write = value => { control.checked = Boolean(value); };
  made.write(said.schema.default);
  return made;
}

function numberField(said) {
  const { schema, name } = said;
  const low = schema.minimum ?? schema.exclusiveMinimum, high = schema.maximum ?? schema.exclusiveMaximum;
  const step = schema.type === "integer" ? 1 : low !== undefined && high !== undefined ? (high - low) / 100 : "any";
  const control = make("input", { type: "number", step: schema.type === "integer" ? 1 : "any", min: low, max: high, inputmode: "decimal" });
  let slider = null;
  if (low !== undefined && high !== undefined) {
    slider = make("input", { type: "range", min: low, max: high, step, "aria-label": `${name}, slider` });
    slider.addEventListener("input", () => { control.value = slider.value; });
    control.addEventListener("input", () => { slider.value = control.value; });
  }
  const made = row(said, control, slider);
  made.element.classList.add(slider ? "slider" : "number");
  made.read = () => {
    if (control.value === "" && !control.validity.badInput) return undefined;
    const value = Number(control.value);
    if (control.validity.badInput || Number.isNaN(value)) throw new FieldError(made, "must be a number");
    return value;
  };
  made.write = value => {
    control.value = value ?? "";
    if (slider) slider.value = value ?? low;
  };
  made.write(schema.default ?? schema.examples?.[0]);
  return made;
}

function textField(said) {
  const { schema, context, name } = said;
  const long = !context.isParameter && (name === context.mainField || !(schema.maxLength <= 200));
  const control = long ? make("textarea", { rows: 4 }) : make("input", { type: "text" });
  const made = row(said, control);
  made.read = () => (control.value === "" && !said.required ? undefined : control.value);
  made.write = value => { control.value = value ?? ""; };
  made.write(schema.default ?? schema.examples?.[0]);
  return made;
}

function jsonField(said) {
  const { schema } = said;
  const control = make("textarea", { rows: 4, class: "code", spellcheck: "false" });
  const made = row(said, control);
  const textToo = schema.type === undefined;
  made.read = () => {
    const text = control.value.trim();
    if (text === "") return undefined;
    try {
      return JSON.parse(text);
    } catch (error) {
      const numbers = text.split(/[\s,;]+/).filter(Boolean).map(Number);
      if (SCALARS.has(schema.items?.type) && numbers.length && numbers.every(number => !Number.isNaN(number))) return numbers;
      throw new FieldError(made, `is not JSON: ${error.message}${textToo ? " (a text needs quotes)" : ""}`);
    }
  };
  made.write = value => { control.value = value === undefined ? "" : JSON.stringify(value); };
  made.write(schema.default ?? schema.examples?.[0]);
  return made;
}

function bytesField(said) {
  const { name, context, required } = said;
  const types = name === context.mainField ? context.contentTypes.filter(type => !["application/json", "*/*"].includes(type)) : [];
  const pictures = types.some(type => type.startsWith("image/"));
  // Where any bytes are taken the chooser must not grey out files whose type the browser knows better.
  const input = make("input", { type: "file", accept: types.includes(ANY_BYTES) ? undefined : types.join(",") || undefined, class: "file" });
  const preview = make("div", { class: "preview" });
  const camera = pictures ? make("input", { type: "file", accept: "image/*", capture: "environment", class: "file", "aria-label": "Take a photo" }) : null;
  const typed = context.isTyped ? make("input", { type: "text", "aria-label": `Content type of ${name}`, placeholder: ANY_BYTES, spellcheck: "false" }) : null;
  const choose = types.length > 1 && !pictures
    ? make("select", { "aria-label": `Content type of ${name}` }, ...types.map(type => new Option(type, type))) : null;
  const hint = make("span", { class: "hint" }, pictures ? "Drop, paste or choose a picture" : types.some(type => type.startsWith("audio/")) ? "Drop or choose a recording" : "Drop or choose a file");
  const zone = make("div", { class: "drop" }, preview, hint);
  // The page takes the bytes themselves.
  const schema = /base64/.test(said.schema.description) ? { ...said.schema, description: "" } : said.schema;
  const made = row({ ...said, schema }, input, zone, camera ? make("label", { class: "camera" }, "Camera ", camera) : null, choose, typed);
  let blob = null, shown = "";
  const set = (chosen, send) => {
    blob = chosen;
    if (shown) URL.revokeObjectURL(shown);
    shown = chosen ? URL.createObjectURL(chosen) : "";
    preview.replaceChildren();
    hint.hidden = Boolean(chosen);
    if (!chosen) return;
    if (choose && types.includes(chosen.type)) choose.value = chosen.type;
    if (typed) typed.value = chosen.type || ANY_BYTES;
    if (chosen.type.startsWith("image/")) preview.append(make("img", { src: shown, alt: "The picture to send" }));
    else if (chosen.type.startsWith("audio/")) preview.append(make("audio", { src: shown, controls: true }));
    preview.append(make("span", { class: "about" }, `${chosen.name || name} · ${chosen.type || "bytes"} · ${Math.ceil(chosen.size / 1024)} KB`));
    if (!required) preview.append(make("button", { type: "button", class: "quiet", onclick: remove }, "Remove"));
    made.showError("");
    if (send) context.onFile(made);
  };
  const remove = event => {
    event.stopPropagation();
    set(null, false);
    input.value = "";
    input.focus();
  };
  for (const each of [input, camera]) each?.addEventListener("change", () => each.files[0] && set(each.files[0], true));
  zone.addEventListener("dragover", event => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", event => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files[0]) set(event.dataTransfer.files[0], true);
  });
  zone.addEventListener("click", event => { if (event.target.tagName !== "AUDIO") input.click(); });
  made.takesFiles = true;
  made.take = file => set(file, true);
  made.read = () => {
    if (!blob && required) throw new FieldError(made, "choose a file, or click a sample");
    const type = choose?.value || typed?.value.trim();
    return blob && type ? new File([blob], blob.name || name, { type }) : blob || undefined;
  };
  made.write = value => {
    if (typeof value === "string") {
      const bytes = fromBase64(value);
      value = new File([bytes], `${name}.${bytes.type.split("/")[1]}`, { type: bytes.type });
    }
    set(value || null, false);
  };
  return made;
}

function objectField(said) {
  const { schema, path, context, name } = said;
  const fields = fieldsOf(schema, path, context);
  const id = newId(), error = make("p", { class: "error", hidden: true });
  const element = make("fieldset", {}, make("legend", { id }, name), ...fields.map(each => each.element), error);
  return group(element, error, fields, {
    read: () => readAll(fields),
    write: value => writeAll(fields, value),
  });
}

function group(element, error, fields, rest) {
  return {
    element, fields, control: element,
    showError(message) { error.textContent = message || ""; error.hidden = !message; },
    ...rest,
  };
}

/** The fields of an object's schema; other names of a field are left out. */
export function fieldsOf(schema, path, context) {
  const required = new Set(schema.required || []);
  for (const part of schema.allOf || []) if (part.oneOf?.[0].required) required.add(part.oneOf[0].required[0]);
  return Object.entries(schema.properties || {})
    .filter(([, each]) => !/^The same as `/.test(each.description || ""))
    .map(([key, each]) => named(key, field(key, each, `${path}.${key}`, required.has(key), context)));
}

const named = (key, made) => Object.assign(made, { key });

export function readAll(fields) {
  const given = {};
  for (const each of fields) {
    const value = each.read();
    if (value !== undefined) given[each.key] = value;
  }
  return given;
}

export function writeAll(fields, value) {
  for (const each of fields) if (value && each.key in value) each.write(value[each.key]);
}

/** A list of objects; records that are added begin empty. ``single``: one of them is no list. */
export function listField({ name, schema, path, context, single = false }) {
  const item = single ? schema : resolve(schema.items, context.schemas);
  const list = make("div", { class: "records" }), error = make("p", { class: "error", hidden: true });
  const rows = [], fields = [];
  const add = (value, focus) => {
    const index = rows.length;
    const own = fieldsOf(item, single && index === 0 ? path : `${path}[${index}]`, context);
    const remove = make("button", { type: "button", class: "quiet", onclick: () => drop(entry) }, "Remove");
    const head = make("div", { class: "record-head" }, make("span", {}, `${single ? "Record" : name} ${index + 1}`), remove);
    const entry = { own, head, element: make("div", { class: "record", role: "group" }, head, ...own.map(each => each.element)) };
    rows.push(entry);
    list.append(entry.element);
    writeAll(own, value);
    number();
    if (focus) own[0]?.control.focus();
  };
  const drop = entry => {
    rows.splice(rows.indexOf(entry), 1);
    entry.element.remove();
    number();
  };
  const number = () => {
    fields.length = 0;
    rows.forEach((entry, index) => {
      entry.head.firstChild.textContent = `${single ? "Record" : name} ${index + 1}`;
      entry.element.setAttribute("aria-label", entry.head.firstChild.textContent);
      const many = !single || rows.length > 1;
      entry.head.hidden = !many;
      for (const each of entry.own) each.path = `${path}${many ? `[${index}]` : ""}.${each.key}`;
      fields.push(...entry.own);
    });
  };
  const more = make("button", { type: "button", class: "quiet", onclick: () => add(undefined, true) }, single ? "Add a record" : `Add to ${name}`);
  const element = make("div", { class: "list" }, single ? null : make("h3", {}, name), list, error, more);
  if (single) add();
  return group(element, error, fields, {
    read: () => rows.map(entry => readAll(entry.own)),
    write(value) {
      while (rows.length) drop(rows[0]);
      for (const each of Array.isArray(value) ? value : [value]) add(each);
    },
    isEmpty: () => !fields.length,
  });
}

/** Every field below these, outermost first. */
export function* everyField(fields) {
  for (const each of fields) {
    yield each;
    yield* everyField(each.fields || []);
  }
}
