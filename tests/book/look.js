/* What the tests ask of a rendered page. Loaded into each page as `look`. */
"use strict";

globalThis.look = {
  /* Formulas, markup that was left as it is, pictures and first-level headings of the page. */
  contents() {
    const raw = [];
    const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.data.trim();
      if (walker.currentNode.parentElement.closest("pre, code, script, style, mjx-container")) continue;
      if (/\\[()[\]]|[$`]|\\begin\{|\*\*/.test(text)) raw.push(text);
    }
    for (const code of document.querySelectorAll("article code")) {
      // a role between backticks
      if (/^\{(glue|cite|numref|ref|eq|doc|math|prf)[\w:-]*\}$/.test(code.textContent)) raw.push(code.textContent);
    }
    const formulas = [...document.querySelectorAll(".math")];
    return {
      raw,
      set: document.querySelectorAll("mjx-container").length,
      unset: formulas.filter((f) => !f.querySelector("mjx-container")).map((f) => f.textContent),
      broken: [...document.querySelectorAll("mjx-merror, [data-mml-node=merror]")].map((e) => e.textContent),
      pictures: [...document.images].map((picture) => ({
        alt: picture.getAttribute("alt") ?? "",
        src: picture.getAttribute("src"),
        loaded: picture.complete && picture.naturalWidth > 0,
        logo: picture.closest(".navbar-brand") !== null,
      })),
      headings: [...document.querySelectorAll("h1")].filter((h) => h.checkVisibility()).length,
    };
  },

  /* The reading chosen in each pair of level tabs. */
  readings() {
    const chosen = document.querySelectorAll('.sd-tab-set > input:checked + label[data-sync-group="level"]');
    return [...chosen].map((label) => label.dataset.syncId);
  },

  /* Visible text whose contrast with what lies behind it is below the limit. */
  faint(limit) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    const parsed = new Map();
    const rgba = (colour) => {
      if (!parsed.has(colour)) {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
        parsed.set(colour, [r, g, b, a / 255]);
      }
      return parsed.get(colour);
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
    const known = new Map();
    const surface = (element) => {
      if (!element) return { colour: [255, 255, 255], fade: 1 };
      if (!known.has(element)) {
        const below = surface(element.parentElement);
        const style = getComputedStyle(element);
        const colour = over(rgba(style.backgroundColor), below.colour);
        known.set(element, { colour, fade: below.fade * Number(style.opacity) });
      }
      return known.get(element);
    };
    const luminance = (colour) => {
      const [r, g, b] = colour
        .map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const seen = new Map();
    const ignored = "script, style, noscript, mjx-assistive-mml, .headerlink, .visually-hidden, .skip-link";
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.data.trim();
      const element = walker.currentNode.parentElement;
      if (!text || element.closest(ignored)) continue;
      if (!element.checkVisibility({ visibilityProperty: true })) continue;
      const { colour, fade } = surface(element);
      const ink = rgba(getComputedStyle(element).color);
      const front = over([ink[0], ink[1], ink[2], ink[3] * fade], colour);
      const [dark, light] = [luminance(front), luminance(colour)].sort((a, b) => a - b);
      const ratio = (light + 0.05) / (dark + 0.05);
      const place = [element.tagName.toLowerCase(), ...element.classList].join(".");
      if (ratio < limit && !seen.has(place)) seen.set(place, `${ratio.toFixed(2)} ${place} '${text.slice(0, 40)}'`);
    }
    return [...seen.values()];
  },

  /* Elements that stick out of the window and lie in nothing that scrolls. */
  overflowing(width) {
    const scrolls = (e) => ["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(e).overflowX);
    const contained = (element) => {
      for (let e = element; e && e !== document.body; e = e.parentElement) if (scrolls(e)) return true;
      return false;
    };
    const found = [...document.querySelectorAll("article *")]
      .filter((e) => e.checkVisibility() && !e.closest("mjx-assistive-mml"))
      .filter((e) => e.getBoundingClientRect().right > width + 1 && !contained(e))
      .map((e) => [e.tagName.toLowerCase(), ...e.classList].join("."));
    const page = document.documentElement.scrollWidth;
    return page > width ? [`the page is ${page} wide`, ...new Set(found)] : [...new Set(found)];
  },

  /* Printed results that are cut off at the edge until somebody scrolls. */
  cutOff() {
    return [...document.querySelectorAll("article .cell_output pre")]
      .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
      .map((e) => e.textContent.trim().slice(0, 40));
  },

  /* Readings and folded answers that the current medium does not show. */
  hidden() {
    const parts = document.querySelectorAll(".sd-tab-content, .admonition.dropdown > *:not(button)");
    return [...parts]
      .filter((e) => !e.checkVisibility({ opacityProperty: true }) || e.getBoundingClientRect().height === 0)
      .map((e) => `${e.className}: ${e.textContent.trim().slice(0, 40)}`);
  },
};
