// Draw the page's Mermaid diagrams, and draw them again when the reader changes between light and dark.
(() => {
  mermaid.initialize({ startOnLoad: false });
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let lastDrawing = Promise.resolve(null); // its theme

  const pageTheme = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "dark" || (chosen !== "light" && prefersDark.matches) ? "dark" : "neutral";
  };
  const draw = async (drawnTheme) => {
    const theme = pageTheme();
    if (theme === drawnTheme) return theme;
    const diagrams = document.querySelectorAll("pre.mermaid");
    for (const diagram of diagrams) {
      diagram.dataset.code ??= diagram.textContent;
      diagram.textContent = diagram.dataset.code;
      delete diagram.dataset.processed;
    }
    mermaid.initialize({ startOnLoad: false, theme });
    await mermaid.run({ nodes: diagrams });
    for (const diagram of diagrams) {
      // On a narrow screen a wide diagram is scrolled, because its text would be too small to read.
      diagram.style.overflowX = "auto";
      const svg = diagram.querySelector("svg");
      if (svg) svg.style.minWidth = `min(${svg.style.maxWidth || "100%"}, 45rem)`;
    }
    return theme;
  };
  // One drawing at a time: Mermaid measures text in the page.
  const update = () => (lastDrawing = lastDrawing.then(draw));

  addEventListener("load", () => {
    update();
    new MutationObserver(update).observe(document.body, { attributeFilter: ["data-theme"] });
    prefersDark.addEventListener("change", update);
  });
})();
