/* A menu for each column of a table.explorer that is marked for one: rows that do not match are hidden. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.explorer")) {
    const rows = [...table.tBodies[0].rows];
    const count = Object.assign(document.createElement("output"), { className: "explorer-count" });
    const menus = [];
    const narrow = () => {
      let shown = 0;
      for (const row of rows) {
        row.hidden = menus.some(([column, menu]) => menu.value && row.cells[column].textContent !== menu.value);
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    const form = Object.assign(document.createElement("form"), { className: "explorer-menus" });
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!("choose" in head.dataset)) return;
      const menu = document.createElement("select");
      const label = document.createElement("label");
      label.append(head.textContent, menu);
      menu.add(new Option("all", ""));
      for (const value of new Set(rows.map((row) => row.cells[column].textContent))) menu.add(new Option(value, value));
      menu.addEventListener("change", narrow);
      menus.push([column, menu]);
      form.append(label);
    });
    form.append(count);
    table.closest(".wide").before(form);
    narrow();
  }
});
