// <table data-sortable>: headers with <button class="sort">; a cell's data-value (raw SI number) wins over its text.
// <input data-filter="#table-id">: hides rows without the typed words; [data-filter-count="#table-id"] says how many are left.
const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function value(row, column) {
  const cell = row.cells[column];
  const raw = cell?.dataset.value;
  return raw === undefined ? cell?.textContent.trim() ?? "" : Number.isNaN(Number(raw)) ? raw : Number(raw);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
}

function sort(header) {
  const body = header.closest("table").tBodies[0];
  const descending = header.ariaSort === "ascending";
  header.parentElement.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  header.ariaSort = descending ? "descending" : "ascending";
  const rows = [...body.rows].sort((a, b) => compare(value(a, header.cellIndex), value(b, header.cellIndex)));
  body.append(...(descending ? rows.reverse() : rows));
}

function filter(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...document.querySelector(input.dataset.filter).tBodies[0].rows];
  rows.forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
  const count = document.querySelector(`[data-filter-count="${input.dataset.filter}"]`);
  if (count) count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("table[data-sortable] .sort");
  if (button) sort(button.closest("th"));
});
document.addEventListener("input", (event) => event.target.dataset?.filter && filter(event.target));
