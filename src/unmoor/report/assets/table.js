// The table of tensors: search, filters, sorting, pages. Words become text nodes only, never markup.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  for (const choice of document.getElementsByName("theme")) {
    choice.addEventListener("change", () => {
      if (choice.value === "auto") delete root.dataset.theme;
      else root.dataset.theme = choice.value;
      document.dispatchEvent(new Event("recolour"));
    });
  }

  const data = JSON.parse(document.getElementById("data").textContent);
  const list = document.getElementById("list");
  const total = data.columns.bytes.length;
  const unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  const bytesText = (bytes) => {
    let size = bytes, at = 0;
    while (size >= 1023.95 && at < unit.length - 1) { size /= 1024; at += 1; }
    return at ? `${size.toFixed(1)} ${unit[at]}` : `${bytes} B`;
  };
  const number = (value) => value.toLocaleString("en-US");
  const tensors = (value) => (value === 1 ? "1 tensor" : `${number(value)} tensors`);
  const make = (tag, text, properties) => {
    const element = Object.assign(document.createElement(tag), properties);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const shared = { data, bytesText, number, tensors, make, narrow: () => {} };
  window.unmoor = shared;
  if (!list) return;

  const { module: modules, leaf: leaves, kind: kinds, shape: shapes, bytes, storage: storages } = data.columns;
  const name = (i) => data.modules[modules[i]] + data.leaves[leaves[i]];
  const kind = (i) => data.kinds[kinds[i]];
  const shape = (i) => data.shapes[shapes[i]][0];
  const sharing = (i) => (storages[i] < 0 ? 0 : data.storages[storages[i]][0]);
  const whole = (i) => (storages[i] < 0 ? bytes[i] : data.storages[storages[i]][1]);
  const [ROLE, DTYPE, DEVICE, LAYOUT] = [0, 1, 2, 3];
  const colourOf = new Map(data.legends.role.map(([role, , , colour]) => [role, colour]));

  const COLUMNS = [
    ["name", (i) => name(i)],
    ["role", (i) => kind(i)[ROLE]],
    ["shape", (i) => data.shapes[shapes[i]][1]],
    ["dtype", (i) => kind(i)[DTYPE]],
    ["device", (i) => kind(i)[DEVICE]],
    ["bytes", (i) => bytes[i]],
    ["storage", (i) => Math.max(sharing(i) - 1, 0) * 1e16 + Math.max(whole(i) - bytes[i], 0)],
  ];
  const NUMBERS = new Set(["shape", "bytes", "storage"]);
  const PAGE = 50;
  const PRINTED = 2000;
  const order = new Intl.Collator("en", { numeric: true });
  const haystack = [];
  const words = (i) => {
    if (haystack[i] === undefined) haystack[i] = `${name(i)} ${kind(i).join(" ")} ${shape(i)}`.toLowerCase();
    return haystack[i];
  };

  const at = { words: [], role: "", device: "", dtype: "", below: "", storage: -1, sort: "", down: false, page: 0 };
  let rows = [];

  const matches = (i) => {
    const own = kind(i);
    if (at.role && own[ROLE] !== at.role) return false;
    if (at.device && own[DEVICE] !== at.device) return false;
    if (at.dtype && own[DTYPE] !== at.dtype) return false;
    if (at.storage >= 0 && storages[i] !== at.storage) return false;
    if (at.below) {
      const path = name(i);
      if (path !== at.below && !path.startsWith(`${at.below}.`)) return false;
    }
    return at.words.every((word) => words(i).includes(word));
  };

  const find = () => {
    rows = [];
    for (let i = 0; i < total; i += 1) if (matches(i)) rows.push(i);
    const column = COLUMNS.find(([title]) => title === at.sort);
    if (column) {
      const keys = new Map(rows.map((i) => [i, column[1](i)]));
      const up = NUMBERS.has(at.sort) ? (a, b) => keys.get(a) - keys.get(b) : (a, b) => order.compare(keys.get(a), keys.get(b));
      rows.sort(at.down ? (a, b) => up(b, a) || a - b : (a, b) => up(a, b) || a - b);
    }
    at.page = 0;
    show();
  };

  const body = make("tbody");
  const heads = new Map();
  const table = make("table");
  table.setAttribute("role", "table");
  body.setAttribute("role", "rowgroup");
  table.append(make("caption", "Tensors of the checkpoint", { className: "visually-hidden" }), head(), body);
  list.append(table);

  function head() {
    const row = make("tr");
    row.setAttribute("role", "row");
    for (const [title] of COLUMNS) {
      const cell = make("th", undefined, { scope: "col", className: title === "bytes" ? "number" : "" });
      cell.setAttribute("role", "columnheader");
      const button = make("button", title, { type: "button" });
      button.addEventListener("click", () => sort(title));
      cell.append(button);
      heads.set(title, [cell, button]);
      row.append(cell);
    }
    const section = make("thead");
    section.setAttribute("role", "rowgroup");
    section.append(row);
    return section;
  }

  function sort(title) {
    const first = title === "bytes" || title === "storage" || title === "shape";
    if (at.sort !== title) Object.assign(at, { sort: title, down: first });
    else if (at.down === first) at.down = !first;
    else at.sort = "";
    for (const [other, [cell, button]] of heads) {
      const chosen = other === at.sort;
      if (chosen) cell.setAttribute("aria-sort", at.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      button.textContent = chosen ? `${other} ${at.down ? "↓" : "↑"}` : other;
    }
    find();
  }

  function line(i) {
    const [role, dtype, device, layout] = kind(i);
    const row = make("tr");
    row.setAttribute("role", "row");
    const cell = (content, tag, className) => {
      const made = make(tag || "td", undefined, { className: className || "" });
      made.setAttribute("role", tag ? "rowheader" : "cell");
      if (tag) made.scope = "row";
      made.append(content);
      row.append(made);
      return made;
    };
    cell(name(i) || "(the file itself)", "th");
    cell(make("span", undefined, { className: `swatch k${colourOf.get(role) ?? 7}` })).append(role);
    cell(shape(i));
    cell(layout === "strided" ? dtype : `${dtype} ${layout}`);
    cell(device);
    cell(bytesText(bytes[i]), undefined, "number").title = `${number(bytes[i])} bytes`;
    cell(storageText(i));
    return row;
  }

  function storageText(i) {
    const words = document.createDocumentFragment();
    if (storages[i] < 0) return words;
    const others = sharing(i) - 1;
    if (whole(i) > bytes[i]) words.append(`a view of ${bytesText(whole(i))}`, others > 0 ? ", " : "");
    if (others > 0) {
      const link = make("button", `shared with ${number(others)} ${others === 1 ? "other" : "others"}`, { type: "button", className: "link" });
      link.addEventListener("click", () => { narrow({ storage: storages[i] }); });
      words.append(link);
    }
    return words;
  }

  const found = document.getElementById("found");
  const pager = document.getElementById("pager");
  const turn = ["First", "Previous", "Next", "Last"].map((label) => {
    const button = make("button", label, { type: "button" });
    button.addEventListener("click", () => {
      const last = Math.max(Math.ceil(rows.length / PAGE) - 1, 0);
      at.page = { First: 0, Previous: at.page - 1, Next: at.page + 1, Last: last }[label];
      show();
      list.scrollIntoView({ block: "nearest" });
    });
    return button;
  });
  const where = make("span");
  pager.append(turn[0], turn[1], where, turn[2], turn[3]);

  function show(count) {
    const shown = count ? rows.slice(0, count) : rows.slice(at.page * PAGE, (at.page + 1) * PAGE);
    body.replaceChildren(...shown.map(line));
    if (!rows.length) {
      const row = make("tr");
      row.append(make("td", "No tensor fits. Clear the search or a filter.", { className: "nothing", colSpan: COLUMNS.length }));
      body.append(row);
    }
    const size = rows.reduce((sum, i) => sum + bytes[i], 0);
    found.textContent = rows.length === total
      ? `${tensors(total)}, ${bytesText(size)}`
      : `${number(rows.length)} of ${tensors(total)}, ${bytesText(size)}`;
    const first = at.page * PAGE;
    where.textContent = `${number(Math.min(first + 1, rows.length))} to ${number(Math.min(first + PAGE, rows.length))} of ${number(rows.length)}`;
    turn[0].disabled = turn[1].disabled = at.page === 0;
    turn[2].disabled = turn[3].disabled = first + PAGE >= rows.length;
    pager.hidden = rows.length <= PAGE;
  }

  const below = document.getElementById("below");
  function narrow(change) {
    Object.assign(at, change);
    const kept = [at.below && `below ${at.below}`, at.storage >= 0 && "one storage"].filter(Boolean);
    below.hidden = !kept.length;
    below.textContent = `${kept.join(", ")} ×`;
    below.setAttribute("aria-label", `Clear: ${kept.join(", ")}`);
    find();
  }
  below.addEventListener("click", () => { narrow({ below: "", storage: -1 }); });
  shared.narrow = narrow;

  for (const way of ["role", "device", "dtype"]) {
    const select = document.getElementById(`by-${way}`);
    select.append(make("option", "any", { value: "" }), ...data.legends[way].map(([text]) => make("option", text, { value: text })));
    select.addEventListener("change", () => narrow({ [way]: select.value }));
  }
  const search = document.getElementById("search");
  search.addEventListener("input", () => {
    at.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    find();
  });
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      search.focus();
    }
  });
  window.addEventListener("beforeprint", () => show(PRINTED));
  window.addEventListener("afterprint", () => show());
  find();
})();
