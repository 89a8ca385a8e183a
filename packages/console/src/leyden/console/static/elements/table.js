/**
 * A table of any number of rows. Only the rows in sight have DOM nodes, and these are used again while the reader
 * scrolls.
 * @module
 */

import { element, setText } from "../dom.js";
import { go } from "../router.js";

const ROW_HEIGHT = 30;
/** Width of a cell's padding, in pixels. */
const PADDING = 20;
/** Pixels of a column's width for each character at the end of a text that is always shown. */
const PER_CHARACTER = 18;
/** Rows above and below the visible ones that are drawn, too. */
const MARGIN = 6;

/**
 * A row is any handle, for example an index into columns.
 * @template Row
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {number} width in pixels; a column of numbers is wider if a number needs that
 * @property {(row: Row) => string} text
 * @property {(row: Row) => number | string | null} [value] by which the column is sorted; not sortable without it
 * @property {(row: Row) => string | null} [href]
 * @property {(row: Row) => string} [tone] a class of the cell
 * @property {(row: Row, checked: boolean) => void} [onCheck] the column has a checkbox
 * @property {(row: Row) => boolean} [checked]
 * @property {boolean} [number] aligned to the right
 * @property {boolean} [wide] left out on narrow screens
 * @property {boolean} [middle] a text that is too long is shortened in its middle, as its end tells more; with `href`
 * @property {boolean} [rest] gets the width that the other columns leave, and at least `width`; at most one column
 */

let made = 0;

/** @template Row */
export class Table {
  /**
   * @param {string} label what the table lists
   * @param {Column<Row>[]} columns
   * @param {{open?: (row: Row) => string | null, sort?: string, onSort?: (sort: string) => void, signal: AbortSignal}}
   *     options
   *     `open` gives the link of a row; `sort` is a column's key, with "-" in front for descending
   */
  constructor(label, columns, { open, sort = "", onSort, signal }) {
    this.columns = columns;
    this.open = open ?? (() => null);
    this.sort = sort;
    this.onSort = onSort ?? (() => {});
    /** @type {ArrayLike<Row>} */
    this.given = [];
    /** @type {ArrayLike<Row>} */
    this.rows = [];
    this.active = -1;
    this.id = `table-${++made}`;
    /** @type {{tr: HTMLTableRowElement, cells: HTMLElement[], row: Row | undefined}[]} */
    this.pool = [];
    this.drawing = 0;
    /** @type {number[]} width of the longest number of each column, in digits */
    this.longest = columns.map(() => 0);
    this.#build(label);
    const sizes = new ResizeObserver(() => this.#drawSoon());
    sizes.observe(this.node);
    signal.addEventListener("abort", () => sizes.disconnect(), { once: true });
  }

  /**
   * Shows these rows. The scroll position stays; the selected row stays selected while it is among them.
   * @param {ArrayLike<Row>} rows
   */
  setRows(rows) {
    const selected = this.active >= 0 ? this.rows[this.active] : undefined;
    this.given = rows;
    this.rows = this.#sorted(rows);
    this.active = selected === undefined ? -1 : Array.prototype.indexOf.call(this.rows, selected);
    this.grid.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.draw();
  }

  /** Draws the rows in sight again, after their values changed. */
  draw() {
    this.drawing = 0;
    const first = Math.max(0, Math.floor(this.node.scrollTop / ROW_HEIGHT) - MARGIN);
    const visible = Math.ceil((this.node.clientHeight || 600) / ROW_HEIGHT) + 2 * MARGIN;
    const last = Math.min(this.rows.length, first + visible);
    const begin = Math.min(first, last);
    while (this.pool.length < last - begin) this.pool.push(this.#newRow());
    for (const [index, line] of this.pool.entries()) this.#drawRow(line, begin + index, last);
    this.#widen();
    this.above.style.height = `${begin * ROW_HEIGHT}px`;
    this.below.style.height = `${Math.max(0, this.rows.length - last) * ROW_HEIGHT}px`;
    this.#announceActive();
  }

  /**
   * Selects a row and scrolls to it.
   * @param {number} index
   */
  select(index) {
    if (!this.rows.length) return;
    this.active = Math.max(0, Math.min(this.rows.length - 1, index));
    const top = this.active * ROW_HEIGHT;
    const room = this.node.clientHeight - 2 * ROW_HEIGHT;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (top > this.node.scrollTop + room) this.node.scrollTop = top - room;
    this.draw();
  }

  #build(label) {
    this.body = element("tbody");
    this.above = element("td", { colspan: this.columns.length });
    this.below = element("td", { colspan: this.columns.length });
    this.heads = this.columns.map((column) => this.#head(column));
    this.cols = this.columns.map((column) => element(column.wide ? "col.wide" : "col"));
    const spacer = (cell) => element("tbody.spacer", { "aria-hidden": "true" }, element("tr", {}, cell));
    this.grid = element(
      "table.virtual",
      { role: "grid", "aria-label": label, tabindex: "0", onkeydown: (event) => this.#keys(event) },
      element("colgroup", {}, this.cols),
      element("thead", {}, element("tr", { "aria-rowindex": 1 }, this.heads)),
      spacer(this.above),
      this.body,
      spacer(this.below),
    );
    this.node = element("div.table-scroll", { "data-list": true, onscroll: () => this.#drawSoon() }, this.grid);
    this.#setWidths();
    this.node.addEventListener("list:move", (event) => this.#move(event.detail));
    this.node.addEventListener("list:open", () => this.#openActive());
    this.node.addEventListener("list:check", () => this.#checkActive());
  }

  /** A number is never cut: its column grows with the longest one that was drawn. */
  #widen() {
    const longest = this.columns.map((column, position) => {
      if (!column.number) return 0;
      const lengths = this.pool.map(({ tr, cells }) => (tr.hidden ? 0 : breadth(cells[position].textContent ?? "")));
      return Math.max(this.longest[position], ...lengths);
    });
    if (longest.every((length, position) => length === this.longest[position])) return;
    this.longest = longest;
    this.#setWidths();
  }

  #setWidths() {
    const widths = this.columns.map(({ width }, position) => `max(${width}px, ${this.longest[position]}ch + ${PADDING}px)`);
    const sum = (wanted) => `calc(${widths.filter((_, position) => wanted(this.columns[position])).join(" + ")})`;
    for (const [position, col] of this.cols.entries())
      if (!this.columns[position].rest) col.style.width = widths[position];
    this.grid.style.setProperty("--width", sum(() => true));
    this.grid.style.setProperty("--narrow-width", sum((column) => !column.wide));
  }

  #head(column) {
    const name = `th${column.number ? ".number" : ""}${column.wide ? ".wide" : ""}`;
    if (column.onCheck) return element(name, { scope: "col" }, element("span.visually-hidden", {}, column.title));
    if (!column.value) return element(name, { scope: "col" }, column.title);
    const button = element("button.sort", { type: "button", onclick: () => this.#sortBy(column.key) }, column.title);
    return element(name, { scope: "col", "aria-sort": ariaSort(this.sort, column.key) }, button);
  }

  #sortBy(key) {
    this.sort = this.sort === `-${key}` ? key : this.sort === key ? "" : `-${key}`;
    for (const [index, column] of this.columns.entries()) {
      if (column.value) this.heads[index].setAttribute("aria-sort", ariaSort(this.sort, column.key));
    }
    this.onSort(this.sort);
    this.setRows(this.given);
  }

  #sorted(rows) {
    const key = this.sort.replace(/^-/, "");
    const column = this.columns.find((one) => one.key === key && one.value);
    if (!column) return rows;
    const values = Array.from(rows, (row) => column.value(row));
    const order = values.map((_, index) => index).sort(comparison(values, this.sort.startsWith("-") ? -1 : 1));
    return order.map((index) => rows[index]);
  }

  #newRow() {
    const cells = this.columns.map((column) => newCell(column));
    const tr = element(
      "tr",
      { onclick: (event) => this.#clicked(event, tr) },
      cells.map((cell) => cell.td),
    );
    this.body.append(tr);
    const line = { tr, cells: cells.map((cell) => cell.inner), row: undefined };
    for (const [index, cell] of cells.entries()) {
      const { onCheck } = this.columns[index];
      // not "change": the click reaches the row first, which draws the checkbox as it was
      if (onCheck) cell.inner.addEventListener("click", () => onCheck(line.row, cell.inner.checked));
    }
    return line;
  }

  #drawRow(line, index, last) {
    line.tr.hidden = index >= last;
    if (line.tr.hidden) return;
    const row = this.rows[index];
    line.row = row;
    line.tr.id = `${this.id}-${index}`;
    line.tr.setAttribute("aria-rowindex", String(index + 2));
    line.tr.setAttribute("aria-selected", String(index === this.active));
    for (const [position, column] of this.columns.entries()) drawCell(line.cells[position], column, row);
  }

  #announceActive() {
    const shown = this.active >= 0 && document.getElementById(`${this.id}-${this.active}`);
    if (shown) this.grid.setAttribute("aria-activedescendant", shown.id);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  #clicked(event, tr) {
    this.active = Number(tr.id.slice(this.id.length + 1));
    this.draw();
    if (!event.target.closest("a, input, button") && !String(getSelection())) this.#openActive();
  }

  #keys(event) {
    const page = Math.floor(this.node.clientHeight / ROW_HEIGHT) - 2;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || event.target !== this.grid) return;
    this.#move(moves[event.key]);
    event.preventDefault();
  }

  #move(by) {
    if (document.activeElement !== this.grid) this.grid.focus({ preventScroll: true });
    this.select(this.active < 0 && by === 1 ? 0 : this.active + by);
  }

  #openActive() {
    const target = this.active >= 0 && this.active < this.rows.length ? this.open(this.rows[this.active]) : null;
    if (target) go(target);
  }

  #checkActive() {
    const column = this.columns.find((one) => one.onCheck);
    if (!column || this.active < 0) return;
    const row = this.rows[this.active];
    column.onCheck(row, !column.checked(row));
  }

  #drawSoon() {
    this.drawing ||= requestAnimationFrame(() => this.draw());
  }
}

/** Equal values keep their order; null comes last in both directions. */
function comparison(values, direction) {
  return (a, b) => {
    const [left, right] = [values[a], values[b]];
    if (left === right) return a - b;
    if (left === null || left === undefined) return 1;
    if (right === null || right === undefined) return -1;
    return left < right ? -direction : direction;
  };
}

function ariaSort(sort, key) {
  return sort === key ? "ascending" : sort === `-${key}` ? "descending" : "none";
}

function newCell(column) {
  const td = element("td");
  let inner = td;
  if (column.onCheck) inner = element("input", { type: "checkbox", tabindex: "-1" });
  else if (column.middle) inner = element("a.middle", { tabindex: "-1" }, element("span"), element("span"));
  else if (column.href) inner = element("a", { tabindex: "-1" });
  if (inner !== td) td.append(inner);
  td.className = `${column.number ? "number" : ""}${column.wide ? " wide" : ""}`;
  return { td, inner };
}

function drawCell(inner, column, row) {
  if (column.onCheck) {
    inner.checked = column.checked(row);
    inner.setAttribute("aria-label", column.text(row));
    return;
  }
  const text = column.text(row);
  if (column.middle) drawEnds(inner, text, Math.floor(column.width / PER_CHARACTER));
  else setText(inner, text);
  if (!column.number && inner.title !== text) inner.title = text;
  if (column.tone) inner.dataset.tone = column.tone(row);
  if (!column.href) return;
  const href = column.href(row);
  if (href) inner.setAttribute("href", href);
  else inner.removeAttribute("href");
}

/** The width of a number in digits: spaces, points and commas are narrower. */
function breadth(text) {
  return text.length - text.replace(/[^ .,]/g, "").length / 2;
}

/** A text whose last `count` characters stay when the rest is shortened. */
function drawEnds(inner, text, count) {
  const characters = [...text];
  inner.style.setProperty("--end", String(count));
  inner.setAttribute("aria-label", text); // the name of both parts would have a space between them
  setText(inner.firstChild, characters.slice(0, -count).join(""));
  setText(inner.lastChild, characters.slice(-count).join(""));
}
