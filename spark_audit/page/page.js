"use strict";
/* Tables sort by click: numbers by their value (data-v), text as people sort it; what is unknown comes last. */
for (const table of document.querySelectorAll("table")) {
  const heads = Array.from(table.querySelectorAll("th"));
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) continue;
  heads.forEach((head, place) => {
    if ("fixed" in head.dataset) return;
    head.tabIndex = 0;
    head.setAttribute("role", "button");
    head.title = "sort";
    const isText = head.classList.contains("left");
    const sort = () => {
      const before = head.getAttribute("aria-sort");
      const up = before ? before === "descending" : isText;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[place];
        if (isText) return cell.textContent;
        return "v" in cell.dataset ? Number(cell.dataset.v) : null;
      };
      const compare = (one, other) => {
        const [left, right] = [key(one), key(other)];
        if (left === null || right === null) return (left === null) - (right === null);
        const order = isText ? left.localeCompare(right, "en", { numeric: true }) : left - right;
        return up ? order : -order;
      };
      body.append(...Array.from(body.rows).sort(compare));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}
/* Paper cannot be unfolded. */
let folded = [];
addEventListener("beforeprint", () => {
  folded = Array.from(document.querySelectorAll("details:not([open])"));
  folded.forEach((one) => { one.open = true; });
});
addEventListener("afterprint", () => { folded.forEach((one) => { one.open = false; }); });
