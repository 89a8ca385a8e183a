/**
 * A tree whose branches open and close. Keys: up and down (or j and k) move, left and right close and open.
 * @module
 */

import { element, fill } from "../dom.js";

/**
 * @typedef {object} Branch
 * @property {string} id
 * @property {import("../dom.js").Child[]} label
 * @property {string} [tone] a class of its line
 * @property {Branch[]} children
 */

export class Tree {
  /**
   * @param {string} label what the tree shows
   * @param {Branch[]} roots
   * @param {(id: string) => void} onSelect
   * @param {(id: string) => void} [onOpen] Enter or a double click
   */
  constructor(label, roots, onSelect, onOpen = () => {}) {
    this.roots = roots;
    this.onSelect = onSelect;
    this.onOpen = onOpen;
    this.selected = roots[0]?.id ?? "";
    /** @type {Set<string>} */
    this.closed = new Set();
    this.node = element("div.tree", {
      role: "tree",
      "aria-label": label,
      "data-list": true,
      onkeydown: (event) => this.#keys(event),
    });
    this.node.addEventListener("list:move", (event) => this.#step(event.detail));
    this.node.addEventListener("list:open", () => this.onOpen(this.selected));
    this.draw();
  }

  /** Draws the tree again, after branches opened or closed. */
  draw() {
    this.lines = this.roots.flatMap((root) => this.#visible(root, 1));
    fill(
      this.node,
      this.lines.map((line) => this.#line(line)),
    );
  }

  /**
   * Selects a branch and scrolls to it; does not call `onSelect`.
   * @param {string} id
   */
  select(id) {
    this.selected = id;
    for (const item of this.node.children) {
      const chosen = item.dataset.id === id;
      item.setAttribute("aria-selected", String(chosen));
      item.tabIndex = chosen ? 0 : -1;
      if (chosen) item.scrollIntoView({ block: "nearest" });
    }
  }

  #visible(branch, level) {
    const below = this.closed.has(branch.id) ? [] : branch.children.flatMap((child) => this.#visible(child, level + 1));
    return [{ branch, level }, ...below];
  }

  #line({ branch, level }) {
    const opens = branch.children.length > 0;
    const open = !this.closed.has(branch.id);
    const chosen = branch.id === this.selected;
    const twig = element("span.twig", { "aria-hidden": "true" }, opens ? (open ? "▾" : "▸") : "");
    const attributes = {
      role: "treeitem",
      "data-id": branch.id,
      "aria-level": level,
      "aria-selected": String(chosen),
      "aria-expanded": opens ? String(open) : null,
      tabindex: chosen ? 0 : -1,
      onclick: (event) => (event.target === twig && opens ? this.#toggle(branch.id, !open) : this.#choose(branch.id)),
      ondblclick: () => this.onOpen(branch.id),
    };
    const item = element(`div.tree-line${branch.tone ? `.${branch.tone}` : ""}`, attributes, twig, branch.label);
    item.style.paddingInlineStart = `${(level - 1) * 1.1 + 0.25}rem`;
    return item;
  }

  #choose(id, focus = false) {
    this.select(id);
    if (focus) this.node.querySelector("[aria-selected=true]")?.focus();
    this.onSelect(id);
  }

  #toggle(id, open) {
    if (open) this.closed.delete(id);
    else this.closed.add(id);
    this.draw();
    this.#choose(id, true);
  }

  #step(by) {
    const index = this.lines.findIndex((line) => line.branch.id === this.selected);
    const next = this.lines[Math.max(0, Math.min(this.lines.length - 1, index + by))];
    if (next) this.#choose(next.branch.id, true);
  }

  #keys(event) {
    const { branch } = this.lines.find((line) => line.branch.id === this.selected) ?? {};
    if (!branch) return;
    const opens = branch.children.length > 0;
    if (event.key === "ArrowDown") this.#step(1);
    else if (event.key === "ArrowUp") this.#step(-1);
    else if (event.key === "ArrowLeft" && opens) this.#toggle(branch.id, false);
    else if (event.key === "ArrowRight" && opens) this.#toggle(branch.id, true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
