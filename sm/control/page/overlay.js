// Draw boxes and masks over the sent picture. The slider filters them in the page, without another request.
import { download, fromBase64, make, newId } from "./dom.js";

const MASK_ALPHA = 120;
const DIMMED_ALPHA = 0.35;
const TOOLTIP_WIDTH = 140;

/** The hue of a label, the same in every picture. The golden angle keeps labels apart. */
const hueOf = label => ([...String(label)].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) * 137.508) % 360;

/** Return the picture with its objects, a slider and a list; null if a row has neither a box nor a mask. */
export async function overlay(kind, rows, picture) {
  const image = await createImageBitmap(picture);
  const objects = [];
  for (const row of rows) {
    const box = boxCorners(row[kind.box], kind.relative, image);
    const mask = kind.mask && row[kind.mask] ? await maskCanvas(row[kind.mask], hueOf(row[kind.label])) : null;
    if (!box && !mask) return null;
    objects.push({ label: String(row[kind.label] ?? ""), score: Number(row[kind.score]), box, mask });
  }
  const hasScores = objects.every(object => Number.isFinite(object.score));
  const canvas = make("canvas", { role: "img", "aria-label": `${objects.length} objects in the picture`, class: "picture" });
  [canvas.width, canvas.height] = [image.width, image.height];
  const tooltip = make("div", { class: "tooltip", hidden: true });
  const list = make("ul", { class: "object-list" });
  const visibleCount = make("span", { role: "status" });
  const sliderId = newId();
  const slider = make("input", { type: "range", id: sliderId, min: 0, max: 1, step: 0.01, value: 0 });
  const minScoreText = make("output", { for: sliderId }, "0.00");
  let minScore = 0, highlighted = null;

  const visibleObjects = () => objects.filter(object => !hasScores || object.score >= minScore);
  const draw = () => {
    const context = canvas.getContext("2d");
    const scale = canvas.width / (canvas.clientWidth || canvas.width);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0);
    // The likeliest is drawn last, on top; above it only the highlighted one.
    const order = [...visibleObjects()].reverse().sort((a, b) => (a === highlighted) - (b === highlighted));
    // Masks first: no label is under another object's mask.
    for (const paint of [paintMask, paintBox])
      for (const object of order) {
        context.globalAlpha = highlighted && object !== highlighted ? DIMMED_ALPHA : 1;
        paint(context, object, scale, object === highlighted);
      }
    context.globalAlpha = 1;
  };
  const highlight = object => {
    if (object === highlighted) return;
    highlighted = object;
    for (const item of list.children) item.firstChild.classList.toggle("highlighted", item.object === object);
    draw();
  };
  const updateList = () => {
    list.replaceChildren(...visibleObjects().map(object => {
      const button = make("button", {
        type: "button", onfocus: () => highlight(object), onblur: () => highlight(null),
        onpointerenter: () => highlight(object), onpointerleave: () => highlight(null),
      }, make("i", { class: "dot" }), object.label, make("b", {}, hasScores ? object.score.toFixed(2) : ""));
      button.firstChild.style.background = `hsl(${hueOf(object.label)} 75% 50%)`;
      return Object.assign(make("li", {}, button), { object });
    }));
    visibleCount.textContent = `${visibleObjects().length} of ${objects.length}`;
  };
  slider.addEventListener("input", () => {
    minScore = Number(slider.value);
    minScoreText.textContent = minScore.toFixed(2);
    updateList();
    draw();
  });
  canvas.addEventListener("pointermove", event => {
    const bounds = canvas.getBoundingClientRect();
    const x = (event.clientX - bounds.left) * canvas.width / bounds.width, y = (event.clientY - bounds.top) * canvas.height / bounds.height;
    const underPointer = visibleObjects().filter(({ box }) => box && x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3]);
    const smallest = underPointer.sort((a, b) => area(a.box) - area(b.box))[0] || null;
    highlight(smallest);
    tooltip.hidden = !smallest;
    if (smallest) {
      tooltip.textContent = `${smallest.label} ${hasScores ? smallest.score.toFixed(4) : ""} · ${smallest.box.map(corner => Math.round(corner)).join(", ")}`;
      tooltip.style.left = `${Math.min(event.clientX - bounds.left + 12, bounds.width - TOOLTIP_WIDTH)}px`;
      tooltip.style.top = `${event.clientY - bounds.top + 14}px`;
    }
  });
  canvas.addEventListener("pointerleave", () => { tooltip.hidden = true; highlight(null); });
  new ResizeObserver(draw).observe(canvas);
  updateList();
  draw();
  return make("div", {},
    make("div", { class: "picture-frame" }, canvas, tooltip),
    make("div", { class: "tools" },
      ...(hasScores ? [make("label", { for: sliderId }, "Score at least "), slider, minScoreText] : []), visibleCount,
      make("button", { type: "button", id: "save-picture", onclick: () => canvas.toBlob(blob => download("picture.png", blob)) }, "Download picture")),
    list);
}

const area = box => (box[2] - box[0]) * (box[3] - box[1]);

/** Return [x1, y1, x2, y2] in pixels of the image; null if the box has another form. */
function boxCorners(box, isRelative, image) {
  const corners = Array.isArray(box) ? box.slice(0, 4) : box ? [box.x1, box.y1, box.x2, box.y2] : [];
  if (corners.length !== 4 || !corners.every(Number.isFinite)) return null;
  return isRelative ? corners.map((corner, index) => corner * (index % 2 ? image.height : image.width)) : corners;
}

function paintMask(context, { mask }) {
  if (mask) context.drawImage(mask, 0, 0, context.canvas.width, context.canvas.height);
}

function paintBox(context, { label, score, box }, scale, isHighlighted) {
  if (!box) return;
  const hue = hueOf(label), [x1, y1, x2, y2] = box;
  // A dark line around the coloured one: it shows on any background.
  context.lineWidth = (isHighlighted ? 6 : 4.5) * scale;
  context.strokeStyle = "rgb(0 0 0 / 55%)";
  context.strokeRect(x1, y1, x2 - x1, y2 - y1);
  context.lineWidth = (isHighlighted ? 3.5 : 2.5) * scale;
  context.strokeStyle = `hsl(${hue} 85% 60%)`;
  context.strokeRect(x1, y1, x2 - x1, y2 - y1);
  const text = Number.isFinite(score) ? `${label} ${score.toFixed(2)}` : label;
  context.font = `600 ${13 * scale}px system-ui, sans-serif`;
  const width = context.measureText(text).width + 10 * scale, height = 20 * scale;
  const left = Math.max(0, Math.min(x1, context.canvas.width - width)), top = y1 >= height ? y1 - height : Math.max(0, y1);
  context.fillStyle = `hsl(${hue} 80% 25%)`;
  context.fillRect(left, top, width, height);
  context.fillStyle = "#fff";
  context.textBaseline = "middle";
  context.fillText(text, left + 5 * scale, top + height / 2);
}

/** Return a canvas with the mask in its colour. A mask is COCO's run lengths, or a picture that is black outside. */
async function maskCanvas(mask, hue) {
  const canvas = make("canvas"), context = canvas.getContext("2d", { willReadFrequently: true });
  let isInside;
  if (mask.counts !== undefined) {
    [canvas.height, canvas.width] = mask.size;
    isInside = decodeRuns(mask.counts, canvas.width, canvas.height);
  } else {
    const image = await createImageBitmap(fromBase64(mask.image, mask.content_type));
    [canvas.width, canvas.height] = [image.width, image.height];
    context.drawImage(image, 0, 0);
    isInside = context.getImageData(0, 0, image.width, image.height).data.filter((_, index) => index % 4 === 0);
  }
  context.fillStyle = `hsl(${hue} 85% 55%)`;
  context.fillRect(0, 0, canvas.width, canvas.height);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let index = 0; index < isInside.length; index++) pixels.data[4 * index + 3] = isInside[index] ? MASK_ALPHA : 0;
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/** Decode COCO's run lengths, column by column. They are numbers, or text with five bits a character. */
function decodeRuns(counts, width, height) {
  const lengths = typeof counts === "string" ? unpackLengths(counts) : counts;
  const isInside = new Uint8Array(width * height);
  let start = 0, inMask = false;
  for (const length of lengths) {
    if (inMask) for (let index = start; index < start + length; index++) isInside[(index % height) * width + Math.floor(index / height)] = 1;
    start += length;
    inMask = !inMask;
  }
  return isInside;
}

function unpackLengths(text) {
  const lengths = [];
  for (let index = 0; index < text.length;) {
    let value = 0, shift = 0, bits;
    do {
      bits = text.charCodeAt(index++) - 48;
      value |= (bits & 31) << shift;
      shift += 5;
    } while (bits & 32);
    if (bits & 16) value |= -1 << shift;
    if (lengths.length > 2) value += lengths[lengths.length - 2];
    lengths.push(value);
  }
  return lengths;
}
