"use strict";
(() => {
  const board = document.getElementById("board");
  const body = board.tBodies[0];
  const rows = [...body.rows];
  const pick = id => document.getElementById(id);
  const counts = new Map(rows.map(row => {
    const bytes = Uint8Array.from(atob(row.dataset.right), c => c.charCodeAt(0));
    return [row, new Uint16Array(bytes.buffer)];
  }));
  let order = { column: 3, down: true };

  // Mean difference of right answers with 1.96 standard errors, in points, over the same queries.
  const paired = (a, b) => {
    const x = counts.get(a), y = counts.get(b), n = x.length;
    if (a.dataset.queries !== b.dataset.queries || y.length !== n) return null;
    const points = 100 / Number(a.dataset.asked);
    let sum = 0, squares = 0;
    for (let e = 0; e < n; e++) sum += x[e] - y[e];
    const mean = sum / n;
    for (let e = 0; e < n; e++) squares += (x[e] - y[e] - mean) ** 2;
    return { mean: points * mean, half: points * 1.96 * Math.sqrt(squares / (n - 1) / n) };
  };

  const number = value => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

  const compare = () => {
    const reference = rows[pick("reference").value];
    for (const row of rows) {
      const cell = row.cells[4];
      const found = reference && reference !== row ? paired(row, reference) : null;
      cell.dataset.value = found ? found.mean : "";
      cell.className = "number" + (found && Math.abs(found.mean) > found.half
        ? (found.mean > 0 ? " above" : " below") : "");
      cell.textContent = found ? `${number(found.mean)} ± ${found.half.toFixed(2)}` : "";
    }
  };

  const sort = () => {
    const value = row => row.cells[order.column].dataset.value ?? row.cells[order.column].textContent;
    const sign = order.down ? -1 : 1;
    rows.slice().sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const numbers = !isNaN(x) && !isNaN(y);
      return sign * (numbers ? x - y : x.localeCompare(y));
    }).forEach(row => body.append(row));
    [...board.tHead.rows[0].cells].forEach((cell, n) => cell.setAttribute("aria-sort",
      n === order.column ? (order.down ? "descending" : "ascending") : "none"));
  };

  const filter = () => {
    const words = pick("search").value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const title = row.cells[0].textContent.toLowerCase();
      const fits = ["setting", "shots"].every(name =>
        !pick(name).value || pick(name).value === row.dataset[name]);
      row.hidden = !(fits && words.every(word => title.includes(word)));
      shown += !row.hidden;
    }
    pick("shown").textContent = `${shown} of ${rows.length} rows`;
  };

  board.tHead.addEventListener("click", event => {
    const cell = event.target.closest("th");
    if (!cell) return;
    const column = cell.cellIndex;
    order = { column, down: order.column === column ? !order.down : column > 2 };
    sort();
  });
  for (const name of ["search", "setting", "shots"]) pick(name).addEventListener("input", filter);
  pick("reference").addEventListener("input", () => { compare(); sort(); });
  compare();
  filter();
  sort();
})();
