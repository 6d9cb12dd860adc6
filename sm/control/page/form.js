// A form from a JSON schema. Every field has:
//   element, control, fields (those inside it), path (as in an error's "field"), key (its name in the object around it),
//   read() (undefined: not given), write(value), showError(message).
import { ANY_BYTES, docstringNodes, fileName, fromBase64, make, newId } from "./dom.js";

const MAX_REFERENCES = 20; // so that schemas that refer to each other come to an end
const MAX_LINE_LENGTH = 200; // longer texts get several lines
const SLIDER_STEPS = 100;

export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Follow references, and take of several forms the one that a form can have. */
export function resolveSchema(schema, schemas) {
  for (let depth = 0; depth < MAX_REFERENCES && schema; depth++) {
    if (schema.$ref) {
      const { $ref, ...rest } = schema;
      schema = { ...schemas[$ref.split("/").pop()], ...rest };
    } else if (schema.allOf?.length === 1 && !schema.properties) {
      const { allOf, ...rest } = schema;
      schema = { ...allOf[0], ...rest };
    } else if (schema.anyOf || schema.oneOf) {
      const { anyOf, oneOf, ...rest } = schema;
      const forms = (anyOf || oneOf).filter(form => form.type !== "null" && !form.$ref?.endsWith("/S3Object"));
      if (!forms.length) return rest;
      schema = { ...forms[0], ...rest };
    } else return schema;
  }
  return schema || {};
}

const isBytes = schema => schema.contentEncoding === "base64" || schema.format === "binary" || schema.format === "byte";
const SCALARS = new Set(["string", "number", "integer", "boolean"]);

/**
 * Create the field of a schema. context: schemas, contentTypes (of the main field), mainField, onFile(),
 * isParameter, hasTypeInput (a file's content type can be edited).
 */
export function createField(name, schema, path, required, context) {
  schema = resolveSchema(schema, context.schemas);
  const create =
    isBytes(schema) ? bytesField
    : schema.enum || schema.const !== undefined ? choiceField
    : schema.type === "boolean" ? switchField
    : schema.type === "number" || schema.type === "integer" ? numberField
    : schema.type === "string" ? textField
    : schema.type === "array" && resolveSchema(schema.items || {}, context.schemas).properties ? listField
    : schema.type === "object" && schema.properties ? objectField
    : jsonField;
  return Object.assign(create({ name, schema, path, required, context }), { path });
}

/** Return a field without read() and write(): a label, the control, its help and the place of its error. */
function labelledField({ name, schema, required }, control, ...others) {
  const id = control.id || (control.id = newId());
  const help = schema.description ? make("p", { class: "help", id: `${id}h` }, ...docstringNodes(schema.description)) : null;
  const error = make("p", { class: "error", id: `${id}e`, hidden: true });
  control.setAttribute("aria-describedby", `${help ? help.id : ""} ${error.id}`.trim());
  const element = make("div", { class: "field" },
    make("label", { for: id }, name, required ? make("span", { class: "required", title: "required" }, " *") : null), control, ...others, help, error);
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

function choiceField(options) {
  const { schema, required } = options;
  const values = schema.enum || [schema.const];
  const control = make("select");
  if (!required && schema.default === undefined) control.add(new Option("", ""));
  values.forEach((value, index) => control.add(new Option(String(value), String(index))));
  const field = labelledField(options, control);
  field.read = () => (control.value === "" ? undefined : values[Number(control.value)]);
  field.write = value => { control.value = value === undefined ? "" : String(values.indexOf(value)); };
  field.write(schema.default ?? (required ? values[0] : undefined));
  return field;
}

function switchField(options) {
  const control = make("input", { type: "checkbox", role: "switch" });
  const field = labelledField(options, control);
  field.element.classList.add("switch");
  field.read = () => control.checked;
  field.write = value => { control.checked = Boolean(value); };
  field.write(options.schema.default);
  return field;
}

function numberField(options) {
  const { schema, name } = options;
  const min = schema.minimum ?? schema.exclusiveMinimum, max = schema.maximum ?? schema.exclusiveMaximum;
  const isInteger = schema.type === "integer", hasSlider = min !== undefined && max !== undefined;
  const control = make("input", { type: "number", step: isInteger ? 1 : "any", min, max, inputmode: "decimal" });
  let slider = null;
  if (hasSlider) {
    slider = make("input", { type: "range", min, max, step: isInteger ? 1 : (max - min) / SLIDER_STEPS, "aria-label": `${name}, slider` });
    slider.addEventListener("input", () => { control.value = slider.value; });
    control.addEventListener("input", () => { slider.value = control.value; });
  }
  const field = labelledField(options, control, slider);
  if (hasSlider) field.element.classList.add("slider");
  field.read = () => {
    if (control.value === "" && !control.validity.badInput) return undefined;
    const value = Number(control.value);
    if (control.validity.badInput || Number.isNaN(value)) throw new FieldError(field, "must be a number");
    return value;
  };
  field.write = value => {
    control.value = value ?? "";
    if (slider) slider.value = value ?? min;
  };
  field.write(schema.default ?? schema.examples?.[0]);
  return field;
}

function textField(options) {
  const { schema, context, name, required } = options;
  const hasLines = !context.isParameter && (name === context.mainField || !(schema.maxLength <= MAX_LINE_LENGTH));
  const control = hasLines ? make("textarea", { rows: 4 }) : make("input", { type: "text" });
  const field = labelledField(options, control);
  field.read = () => (control.value === "" && !required ? undefined : control.value);
  field.write = value => { control.value = value ?? ""; };
  field.write(schema.default ?? schema.examples?.[0]);
  return field;
}

function jsonField(options) {
  const { schema } = options;
  const control = make("textarea", { rows: 4, class: "code", spellcheck: "false" });
  const field = labelledField(options, control);
  const mayBeText = schema.type === undefined;
  field.read = () => {
    const text = control.value.trim();
    if (text === "") return undefined;
    try {
      return JSON.parse(text);
    } catch (error) {
      // A list of numbers needs no brackets.
      const numbers = text.split(/[\s,;]+/).filter(Boolean).map(Number);
      if (SCALARS.has(schema.items?.type) && numbers.length && numbers.every(number => !Number.isNaN(number))) return numbers;
      throw new FieldError(field, `is not JSON: ${error.message}${mayBeText ? " (a text needs quotes)" : ""}`);
    }
  };
  field.write = value => { control.value = value === undefined ? "" : JSON.stringify(value); };
  field.write(schema.default ?? schema.examples?.[0]);
  return field;
}

/** A file: chosen, dropped, pasted or taken by the camera, with a preview. */
function bytesField(options) {
  const { name, context, required } = options;
  const contentTypes = name === context.mainField ? context.contentTypes.filter(type => !["application/json", "*/*"].includes(type)) : [];
  const takesPictures = contentTypes.some(type => type.startsWith("image/")), takesAudio = contentTypes.some(type => type.startsWith("audio/"));
  // Where any bytes are accepted, the system's window must not grey out files whose type the browser knows better.
  const input = make("input", { type: "file", accept: contentTypes.includes(ANY_BYTES) ? undefined : contentTypes.join(",") || undefined, class: "file" });
  const preview = make("div", { class: "preview" });
  const camera = takesPictures ? make("input", { type: "file", accept: "image/*", capture: "environment", class: "file", "aria-label": "Take a photo" }) : null;
  const typeInput = context.hasTypeInput ? make("input", { type: "text", "aria-label": `Content type of ${name}`, placeholder: ANY_BYTES, spellcheck: "false" }) : null;
  const typeSelect = contentTypes.length > 1 && !takesPictures
    ? make("select", { "aria-label": `Content type of ${name}` }, ...contentTypes.map(type => new Option(type, type))) : null;
  const hint = make("span", {}, takesPictures ? "Drop, paste or choose a picture" : takesAudio ? "Drop or choose a recording" : "Drop or choose a file");
  const dropZone = make("div", { class: "drop" }, preview, hint);
  // Help about base64 does not apply here: the page takes the bytes themselves.
  const schema = /base64/.test(options.schema.description) ? { ...options.schema, description: "" } : options.schema;
  const field = labelledField({ ...options, schema }, input, dropZone, camera ? make("label", { class: "camera" }, "Camera ", camera) : null, typeSelect, typeInput);
  let file = null, previewUrl = "";
  const setFile = chosen => {
    file = chosen;
    if (previewUrl) URL.revokeObjectURL(previewUrl);
    previewUrl = file ? URL.createObjectURL(file) : "";
    preview.replaceChildren();
    hint.hidden = Boolean(file);
    if (!file) return;
    if (typeSelect && contentTypes.includes(file.type)) typeSelect.value = file.type;
    if (typeInput) typeInput.value = file.type || ANY_BYTES;
    if (file.type.startsWith("image/")) preview.append(make("img", { src: previewUrl, alt: "The picture to send" }));
    else if (file.type.startsWith("audio/")) preview.append(make("audio", { src: previewUrl, controls: true }));
    preview.append(make("span", { class: "file-info" }, `${file.name || name} · ${file.type || "bytes"} · ${Math.ceil(file.size / 1024)} KB`));
    if (!required) preview.append(make("button", { type: "button", class: "quiet", onclick: removeFile }, "Remove"));
    field.showError("");
  };
  const removeFile = event => {
    event.stopPropagation();
    setFile(null);
    input.value = "";
    input.focus();
  };
  field.takesFiles = true;
  field.sendFile = chosen => {
    setFile(chosen);
    context.onFile();
  };
  for (const chooser of [input, camera]) chooser?.addEventListener("change", () => chooser.files[0] && field.sendFile(chooser.files[0]));
  dropZone.addEventListener("dragover", event => { event.preventDefault(); dropZone.classList.add("drag-over"); });
  dropZone.addEventListener("dragleave", () => dropZone.classList.remove("drag-over"));
  dropZone.addEventListener("drop", event => {
    event.preventDefault();
    dropZone.classList.remove("drag-over");
    if (event.dataTransfer.files[0]) field.sendFile(event.dataTransfer.files[0]);
  });
  dropZone.addEventListener("click", event => { if (event.target.tagName !== "AUDIO") input.click(); });
  field.read = () => {
    if (!file && required) throw new FieldError(field, "choose a file, or click a sample");
    const type = typeSelect?.value || typeInput?.value.trim();
    return file && type ? new File([file], file.name || name, { type }) : file || undefined;
  };
  field.write = value => {
    if (typeof value === "string") {
      const bytes = fromBase64(value);
      value = new File([bytes], fileName(name, bytes.type), { type: bytes.type });
    }
    setFile(value || null);
  };
  return field;
}

function objectField({ name, schema, path, context }) {
  const fields = objectFields(schema, path, context);
  const error = make("p", { class: "error", hidden: true });
  const element = make("fieldset", {}, make("legend", {}, name), ...fields.map(field => field.element), error);
  return groupField(element, error, fields, {
    read: () => readFields(fields),
    write: value => writeFields(fields, value),
  });
}

function groupField(element, error, fields, methods) {
  return {
    element, fields, control: element,
    showError(message) { error.textContent = message || ""; error.hidden = !message; },
    ...methods,
  };
}

/** Create the fields of an object's schema. Other names of a field are left out. */
export function objectFields(schema, path, context) {
  const required = new Set(schema.required || []);
  // Of a field with several names, any one is enough: the form asks for the first.
  for (const part of schema.allOf || []) if (part.oneOf?.[0].required) required.add(part.oneOf[0].required[0]);
  return Object.entries(schema.properties || {})
    .filter(([, property]) => !/^The same as `/.test(property.description || ""))
    .map(([key, property]) => Object.assign(createField(key, property, `${path}.${key}`, required.has(key), context), { key }));
}

export function readFields(fields) {
  const values = {};
  for (const field of fields) {
    const value = field.read();
    if (value !== undefined) values[field.key] = value;
  }
  return values;
}

export function writeFields(fields, values) {
  for (const field of fields) if (values && field.key in values) field.write(values[field.key]);
}

/** A list of objects. With `single` it begins with one, which is not a list until another is added. */
export function listField({ name, schema, path, context, single = false }) {
  const itemSchema = single ? schema : resolveSchema(schema.items, context.schemas);
  const list = make("div"), error = make("p", { class: "error", hidden: true });
  const records = [], allFields = [];
  const titleOf = index => `${single ? "Record" : name} ${index + 1}`;
  const addRecord = (value, takesFocus) => {
    const index = records.length;
    const fields = objectFields(itemSchema, single && index === 0 ? path : `${path}[${index}]`, context);
    const removeButton = make("button", { type: "button", class: "quiet", onclick: () => removeRecord(record) }, "Remove");
    const heading = make("div", { class: "record-head" }, make("span", {}, titleOf(index)), removeButton);
    const record = { fields, heading, element: make("div", { class: "record", role: "group" }, heading, ...fields.map(field => field.element)) };
    records.push(record);
    list.append(record.element);
    writeFields(fields, value);
    renumber();
    if (takesFocus) fields[0]?.control.focus();
  };
  const removeRecord = record => {
    records.splice(records.indexOf(record), 1);
    record.element.remove();
    renumber();
  };
  const renumber = () => {
    const isList = !single || records.length > 1;
    allFields.length = 0;
    records.forEach(({ fields, heading, element }, index) => {
      heading.firstChild.textContent = titleOf(index);
      heading.hidden = !isList;
      element.setAttribute("aria-label", titleOf(index));
      for (const field of fields) field.path = `${path}${isList ? `[${index}]` : ""}.${field.key}`;
      allFields.push(...fields);
    });
  };
  const addButton = make("button", { type: "button", class: "quiet", onclick: () => addRecord(undefined, true) }, single ? "Add a record" : `Add to ${name}`);
  const element = make("div", { class: "list" }, single ? null : make("h3", {}, name), list, error, addButton);
  if (single) addRecord();
  return groupField(element, error, allFields, {
    read: () => records.map(record => readFields(record.fields)),
    write(value) {
      while (records.length) removeRecord(records[0]);
      for (const item of Array.isArray(value) ? value : [value]) addRecord(item);
    },
  });
}

/** Yield these fields and those inside them, outermost first. */
export function* walkFields(fields) {
  for (const field of fields) {
    yield field;
    yield* walkFields(field.fields || []);
  }
}
