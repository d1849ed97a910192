/* The reading level, beyond what sphinx-design's tabs do by themselves:
   a switch in the page's header, `?level=advanced` understood on pages without
   tabs too, and an address that keeps up when the reader changes the level. */
"use strict";

const STORED = "sphinx-design-tab-id-level"; // the key under which the tabs remember the choice
const LEVELS = { elementary: "Elementary", advanced: "Advanced" };

function inputsOf(level) {
  const labels = document.querySelectorAll(
    `.sd-tab-label[data-sync-group="level"][data-sync-id="${level}"]`,
  );
  return [...labels].map((label) => document.getElementById(label.getAttribute("for")));
}

function currentLevel() {
  return Object.keys(LEVELS).find((level) => inputsOf(level).some((input) => input.checked));
}

function rememberAddressedLevel() {
  const asked = new URLSearchParams(location.search).get("level");
  if (!(asked in LEVELS)) return;
  try {
    localStorage.setItem(STORED, asked);
  } catch {
    // site data are blocked: the choice holds for this page only
  }
}

function updateAddress(level) {
  const address = new URL(location.href);
  if (!address.searchParams.has("level")) return;
  address.searchParams.set("level", level);
  history.replaceState(history.state, "", address);
}

function addSwitch() {
  const place = document.querySelector(".article-header-buttons");
  if (!place || !currentLevel()) return;
  const group = document.createElement("div");
  group.className = "level-switch";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Reading level");
  const buttons = Object.entries(LEVELS).map(([level, name]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => {
      const [first] = inputsOf(level);
      first.checked = true;
      first.dispatchEvent(new Event("change", { bubbles: true }));
    });
    group.append(button);
    return [level, button];
  });
  const show = () => {
    const current = currentLevel();
    for (const [level, button] of buttons) {
      button.setAttribute("aria-pressed", String(level === current));
    }
  };
  document.addEventListener("change", (event) => {
    if (!event.target.matches(".sd-tab-set > input")) return;
    show();
    updateAddress(currentLevel());
  });
  show();
  place.prepend(group);
}

rememberAddressedLevel();
// The tabs set themselves up on DOMContentLoaded; the switch follows them.
document.addEventListener("DOMContentLoaded", addSwitch);
