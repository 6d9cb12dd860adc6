// Draw boxes and masks over the sent picture. The slider filters them in the page, without another request.
import { fromBase64, make, newId, save } from "./dom.js";

/** The hue of a label, the same in every picture. The golden angle keeps labels apart. */
const hue = label => ([...String(label)].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) * 137.508) % 360;

export async function overlay(kind, rows, picture) {
  const image = await createImageBitmap(picture);
  const objects = [];
  for (const row of rows) {
    const box = corners(row[kind.box], kind.relative, image);
    const mask = kind.mask && row[kind.mask] ? await maskOf(row[kind.mask], hue(row[kind.label])) : null;
    if (!box && !mask) return null;
    objects.push({ label: String(row[kind.label] ?? ""), score: Number(row[kind.score]), box, mask });
  }
  const canvas = make("canvas", { role: "img", "aria-label": `${objects.length} objects in the picture`, class: "picture" });
  [canvas.width, canvas.height] = [image.width, image.height];
  const tip = make("div", { class: "tip", hidden: true });
  const list = make("ul", { class: "found" });
  const hasScores = objects.every(each => Number.isFinite(each.score));
  let minScore = 0, chosen = null;

  const visible = () => objects.filter(each => !hasScores || each.score >= minScore);
  const draw = () => {
    const pen = canvas.getContext("2d");
    const scale = canvas.width / (canvas.clientWidth || canvas.width);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0);
    // The likeliest is drawn last, on top.
    const order = [...visible()].reverse().sort((one, other) => (one === chosen) - (other === chosen));
    // Masks first: no label is under another object's mask.
    for (const paint of [paintMask, paintBox])
      for (const each of order) {
        pen.globalAlpha = chosen && each !== chosen ? 0.35 : 1;
        paint(pen, each, scale, each === chosen);
      }
    pen.globalAlpha = 1;
  };
  const choose = each => {
    if (each === chosen) return;
    chosen = each;
    for (const entry of list.children) entry.firstChild.classList.toggle("on", entry.object === each);
    draw();
  };
  const fill = () => {
    list.replaceChildren(...visible().map(each => {
      const button = make("button", {
        type: "button", onfocus: () => choose(each), onblur: () => choose(null),
        onpointerenter: () => choose(each), onpointerleave: () => choose(null),
      }, make("i", { class: "dot" }), each.label, make("b", {}, hasScores ? each.score.toFixed(2) : ""));
      button.firstChild.style.background = `hsl(${hue(each.label)} 75% 50%)`;
      return Object.assign(make("li", {}, button), { object: each });
    }));
    count.textContent = `${visible().length} of ${objects.length}`;
  };
  const count = make("span", { role: "status" });
  const id = newId();
  const slider = make("input", { type: "range", id, min: 0, max: 1, step: 0.01, value: 0 });
  const shownMinScore = make("output", { for: id }, "0.00");
  slider.addEventListener("input", () => {
    minScore = Number(slider.value);
    shownMinScore.textContent = minScore.toFixed(2);
    fill();
    draw();
  });
  canvas.addEventListener("pointermove", event => {
    const bounds = canvas.getBoundingClientRect();
    const x = (event.clientX - bounds.left) * canvas.width / bounds.width, y = (event.clientY - bounds.top) * canvas.height / bounds.height;
    const under = visible().filter(({ box }) => box && x >= box[0] && x <= box[2] && y >= box[1] && y <= box[3]);
    const smallest = under.sort((one, other) => area(one.box) - area(other.box))[0] || null;
    choose(smallest);
    tip.hidden = !smallest;
    if (smallest) {
      tip.textContent = `${smallest.label} ${hasScores ? smallest.score.toFixed(4) : ""} · ${smallest.box.map(corner => Math.round(corner)).join(", ")}`;
      tip.style.left = `${Math.min(event.clientX - bounds.left + 12, bounds.width - 140)}px`;
      tip.style.top = `${event.clientY - bounds.top + 14}px`;
    }
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; choose(null); });
  new ResizeObserver(draw).observe(canvas);
  fill();
  draw();
  return make("div", { class: "overlay" },
    make("div", { class: "stage" }, canvas, tip),
    make("div", { class: "tools" },
      hasScores ? make("label", { for: id }, "Score at least ") : null, hasScores ? slider : null, hasScores ? shownMinScore : null, count,
      make("button", { type: "button", id: "save-picture", onclick: () => canvas.toBlob(blob => save("picture.png", blob)) }, "Download picture")),
    list);
}

const area = box => (box[2] - box[0]) * (box[3] - box[1]);

function corners(box, relative, image) {
  const four = Array.isArray(box) ? box.slice(0, 4) : box ? [box.x1, box.y1, box.x2, box.y2] : [];
  if (four.length !== 4 || !four.every(Number.isFinite)) return null;
  return relative ? four.map((corner, index) => corner * (index % 2 ? image.height : image.width)) : four;
}

function paintMask(pen, { mask }) {
  if (mask) pen.drawImage(mask, 0, 0, pen.canvas.width, pen.canvas.height);
}

function paintBox(pen, { label, score, box }, scale, strong) {
  const colour = hue(label);
  if (box) {
    const [x1, y1, x2, y2] = box;
    // A dark line around the coloured one: it shows on any background.
    pen.lineWidth = (strong ? 6 : 4.5) * scale;
    pen.strokeStyle = "rgb(0 0 0 / 55%)";
    pen.strokeRect(x1, y1, x2 - x1, y2 - y1);
    pen.lineWidth = (strong ? 3.5 : 2.5) * scale;
    pen.strokeStyle = `hsl(${colour} 85% 60%)`;
    pen.strokeRect(x1, y1, x2 - x1, y2 - y1);
    const text = Number.isFinite(score) ? `${label} ${score.toFixed(2)}` : label;
    pen.font = `600 ${13 * scale}px system-ui, sans-serif`;
    const width = pen.measureText(text).width + 10 * scale, height = 20 * scale;
    const left = Math.max(0, Math.min(x1, pen.canvas.width - width)), top = y1 >= height ? y1 - height : Math.max(0, y1);
    pen.fillStyle = `hsl(${colour} 80% 25%)`;
    pen.fillRect(left, top, width, height);
    pen.fillStyle = "#fff";
    pen.textBaseline = "middle";
    pen.fillText(text, left + 5 * scale, top + height / 2);
  }
}

async function maskOf(mask, colour) {
  const canvas = make("canvas"), pen = canvas.getContext("2d", { willReadFrequently: true });
  let alpha;
  if (mask.counts !== undefined) {
    [canvas.height, canvas.width] = mask.size;
    alpha = decodeRuns(mask.counts, canvas.width, canvas.height);
  } else {
    const image = await createImageBitmap(fromBase64(mask.image, mask.content_type));
    [canvas.width, canvas.height] = [image.width, image.height];
    pen.drawImage(image, 0, 0);
    alpha = pen.getImageData(0, 0, image.width, image.height).data.filter((_, index) => index % 4 === 0);
  }
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = `hsl(${colour} 85% 55%)`;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < alpha.length; at++) pixels.data[4 * at + 3] = alpha[at] ? 120 : 0;
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

/** Decode COCO's run lengths, column by column. They are numbers, or text with five bits a character. */
function decodeRuns(counts, width, height) {
  const lengths = typeof counts === "string" ? unpackLengths(counts) : counts;
  const marked = new Uint8Array(width * height);
  let at = 0, on = false;
  for (const length of lengths) {
    if (on) for (let each = at; each < at + length; each++) marked[(each % height) * width + Math.floor(each / height)] = 1;
    at += length;
    on = !on;
  }
  return marked;
}

function unpackLengths(text) {
  const lengths = [];
  for (let at = 0; at < text.length;) {
    let value = 0, shift = 0, letter;
    do {
      letter = text.charCodeAt(at++) - 48;
      value |= (letter & 31) << shift;
      shift += 5;
    } while (letter & 32);
    if (letter & 16) value |= -1 << shift;
    if (lengths.length > 2) value += lengths[lengths.length - 2];
    lengths.push(value);
  }
  return lengths;
}

