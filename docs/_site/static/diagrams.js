// Draw the page's Mermaid diagrams, and draw them again when the reader changes between light and dark.
(() => {
  mermaid.initialize({ startOnLoad: false });
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let drawn = Promise.resolve(null); // the theme of the last drawing

  const theme = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "dark" || (chosen !== "light" && prefersDark.matches) ? "dark" : "neutral";
  };
  const draw = async (before) => {
    const wanted = theme();
    if (wanted === before) return wanted;
    const diagrams = document.querySelectorAll("pre.mermaid");
    for (const diagram of diagrams) {
      diagram.dataset.code ??= diagram.textContent;
      diagram.textContent = diagram.dataset.code;
      delete diagram.dataset.processed;
    }
    mermaid.initialize({ startOnLoad: false, theme: wanted });
    await mermaid.run({ nodes: diagrams });
    for (const diagram of diagrams) {
      // On a narrow screen a wide diagram is scrolled, because its text would be too small to read.
      diagram.style.overflowX = "auto";
      const drawing = diagram.querySelector("svg");
      if (drawing) drawing.style.minWidth = `min(${drawing.style.maxWidth || "100%"}, 45rem)`;
    }
    return wanted;
  };
  // One drawing at a time: Mermaid measures text in the page.
  const update = () => (drawn = drawn.then(draw));

  addEventListener("load", () => {
    update();
    new MutationObserver(update).observe(document.body, { attributeFilter: ["data-theme"] });
    prefersDark.addEventListener("change", update);
  });
})();
