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
