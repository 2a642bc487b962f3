// The treemap: tiles by bytes, coloured by role, device or dtype; its place in the tree narrows the table.
"use strict";
(() => {
  const { data, bytesText, number, tensors, make, narrow } = window.unmoor;
  const map = document.getElementById("map");
  const { label, parent, path, tensors: counts, bytes, kind } = data.tiles;
  const WAYS = ["role", "dtype", "device"];
  const total = bytes[0] || 0;
  let way = "role";
  let level = 0;

  // plotly reads tags in labels: what a name holds must not be one.
  const inert = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  const colourNames = () => new Map(data.legends[way].map(([name, , , colour]) => [name, colour]));
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const share = (part) => (total ? `${((100 * part) / total).toFixed(1)} %` : "");
  const bright = (hex) => {
    const [r, g, b] = [1, 3, 5].map((i) => {
      const value = parseInt(hex.slice(i, i + 2), 16) / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };

  const children = new Map();
  parent.forEach((above, i) => {
    if (!children.has(above)) children.set(above, []);
    if (i) children.get(above).push(i);
  });
  const inner = (i) => (children.get(i) || []).filter((child) => bytes[child] > 0);
  const depth = [];
  parent.forEach((above, i) => { depth[i] = above < 0 ? 0 : depth[above] + 1; });
  const levels = () => (map.clientWidth < 600 ? 3 : 5);

  if (!total) {
    map.replaceChildren(make("p", "The tensors of this file hold no bytes: there is nothing to draw.", { className: "none" }));
    map.removeAttribute("role");
    map.style.cssText = "height: auto; padding: 16px";
    return;
  }

  function colours() {
    const known = colourNames();
    const palette = Array.from({ length: 8 }, (_, i) => variable(`--c${i}`));
    const branch = variable("--raised");
    const open = (i) => inner(i).length && depth[i] - depth[level] < levels() - 1;
    const fill = kind.map((k, i) => (open(i) ? branch : palette[known.get(data.kinds[k][WAYS.indexOf(way)]) ?? 7]));
    const ink = variable("--ink");
    const text = fill.map((colour, i) => (open(i) ? ink : bright(colour) > 0.18 ? "#101214" : "#ffffff"));
    return { fill, text };
  }

  function draw() {
    const { fill, text } = colours();
    const words = kind.map((k, i) => `<br>${counts[i] > 1 ? "mostly " : ""}${inert(data.kinds[k].slice(0, 3).join(", "))}`);
    const trace = {
      type: "treemap",
      ids: label.map((_, i) => String(i)),
      labels: label.map(inert),
      parents: parent.map((i) => (i < 0 ? "" : String(i))),
      values: bytes,
      branchvalues: "total",
      sort: true,
      level: String(level),
      maxdepth: levels(),
      text: bytes.map(bytesText),
      texttemplate: "%{label}<br>%{text}",
      customdata: bytes.map((size, i) => `${inert(path[i] || "all tensors")}<br>${tensors(counts[i])}, ${bytesText(size)}, ${share(size)}${words[i]}`),
      hovertemplate: "%{customdata}<extra></extra>",
      textposition: "top left",
      textfont: { color: text, size: 12 },
      marker: { colors: fill, line: { width: 1, color: variable("--surface") }, pad: { t: 20, l: 3, r: 3, b: 3 }, cornerradius: 2 },
      tiling: { pad: 2 },
      pathbar: { visible: false },
      root: { color: "rgba(0,0,0,0)" },
    };
    const layout = {
      margin: { t: 6, l: 6, r: 6, b: 6 },
      paper_bgcolor: "rgba(0,0,0,0)",
      font: { family: variable("--sans") || "sans-serif", color: variable("--ink"), size: 12 },
      hoverlabel: { bgcolor: variable("--surface"), bordercolor: variable("--line"), font: { color: variable("--ink"), size: 13 }, align: "left" },
      uniformtext: { minsize: 9, mode: "hide" },
    };
    window.Plotly.react(map, [trace], layout, { displayModeBar: false, responsive: true });
    legend();
  }

  function legend() {
    document.getElementById("legend").replaceChildren(...data.legends[way].map(([name, count, size, colour]) => {
      const item = make("li");
      item.append(make("span", undefined, { className: `swatch k${colour}` }), `${name} `);
      item.append(make("small", `${tensors(count)}, ${bytesText(size)}, ${share(size)}`));
      return item;
    }));
  }

  function trail() {
    const chain = [];
    for (let i = level; i >= 0; i = parent[i]) chain.unshift(i);
    const buttons = chain.map((i) => {
      const button = make("button", label[i], { type: "button", title: path[i], disabled: i === level });
      button.addEventListener("click", () => go(i));
      return button;
    });
    const steps = inner(level).filter((i) => inner(i).length).sort((a, b) => bytes[b] - bytes[a]);
    const nav = document.getElementById("trail");
    nav.replaceChildren(...buttons);
    if (!steps.length) return;
    const select = make("select", undefined, { ariaLabel: "Open a module" });
    select.append(make("option", "open…", { value: "" }), ...steps.map((i) => make("option", `${label[i]} (${bytesText(bytes[i])})`, { value: String(i) })));
    select.addEventListener("change", () => go(Number(select.value)));
    nav.append(select);
  }

  function go(i) {
    level = i;
    draw();
    narrow({ below: path[i] });
    trail();
  }

  for (const choice of document.getElementsByName("colour")) {
    choice.addEventListener("change", () => {
      way = choice.value;
      draw();
    });
  }
  document.addEventListener("recolour", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  trail();
  map.on("plotly_treemapclick", (event) => {
    const next = Number(event.nextLevel);
    const clicked = Number(event.points[0].id);
    if (inner(clicked).length && Number.isInteger(next)) go(next);
    else narrow({ below: path[clicked] });
    return false;
  });
})();
