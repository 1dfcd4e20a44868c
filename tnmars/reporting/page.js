"use strict";
// Pointing at a bond, or reaching it with the keyboard, lights it up everywhere in its layer: lines, cores, gates, row.
const tnmarsReport = (() => {
  const MARK = "lit", BUSY = "pointing";
  let current = null;

  const parts = (layer, key) => layer.querySelectorAll(`[data-key="${CSS.escape(key)}"]`);

  function cores(bond) {
    const term = bond.closest("[data-term]");
    const ends = (bond.dataset.ends || "").split(" ").filter(Boolean);
    return term ? ends.flatMap(name => [...term.querySelectorAll(`[data-core="${CSS.escape(name)}"]`)]) : [];
  }

  function clear() {
    if (!current) return;
    current.classList.remove(BUSY);
    current.querySelectorAll("." + MARK).forEach(part => part.classList.remove(MARK));
    current = null;
  }

  function light(layer, key) {
    clear();
    current = layer;
    layer.classList.add(BUSY);
    for (const part of parts(layer, key)) {
      part.classList.add(MARK);
      cores(part).forEach(core => core.classList.add(MARK));
    }
  }

  function pointed(event) {
    const part = event.target.closest ? event.target.closest("[data-key]") : null;
    const layer = part && part.closest(".layer");
    if (layer) light(layer, part.dataset.key); else clear();
  }

  for (const name of ["mouseover", "focusin"]) document.addEventListener(name, pointed);
  document.addEventListener("focusout", clear);
  document.addEventListener("keydown", event => { if (event.key === "Escape") clear(); });

  async function copied(node) {
    try {
      await navigator.clipboard.writeText(node.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(node);
      return document.execCommand("copy");
    }
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const done = await copied(document.getElementById(button.dataset.copy));
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // A link to a layer opens its section.
  function unfold() {
    const section = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const inner = section && section.querySelector("details.whole-layer");
    if (inner) { inner.open = true; section.scrollIntoView(); }
  }
  addEventListener("hashchange", unfold);
  unfold();

  // Paper cannot be unfolded.
  const folded = [...document.querySelectorAll("details")];
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = folded.filter(part => !part.open);
    opened.forEach(part => { part.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach(part => { part.open = false; }));

  return { light, clear };
})();
