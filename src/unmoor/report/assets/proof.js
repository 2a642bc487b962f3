"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const target = document.getElementById("curves");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const numbers = (values) => values.map((value) => (typeof value === "number" ? value : null));
  const steps = data.losses.map((_, index) => index + 1);
  const later = steps.slice(data.cut);

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  function axis(title, more) {
    const own = { gridcolor: colour("line"), zerolinecolor: colour("soft"), linecolor: colour("soft") };
    return Object.assign({ title: { text: title }, color: colour("ink"), automargin: true }, own, more);
  }

  function draw() {
    const traces = [
      {
        x: steps, y: numbers(data.losses), name: "uninterrupted", mode: "lines",
        line: { color: colour("whole"), width: 3 }, hovertemplate: "%{y:.9g}",
      },
      {
        x: later, y: numbers(data.resumed), name: "cut and resumed", mode: "lines+markers",
        line: { color: colour("resumed"), width: 2, dash: "dash" }, marker: { size: 6 }, hovertemplate: "%{y:.9g}",
      },
      {
        x: later, y: numbers(data.differences), name: "difference", type: "bar", yaxis: "y2", showlegend: false,
        marker: { color: colour("resumed") }, hovertemplate: "%{y:.3e}",
      },
    ];
    const equal = data.differences.every((gap) => gap === 0 || gap === null);
    const cut = data.cut + 0.5;
    const note = { showarrow: false, font: { color: colour("soft") } };
    const notes = [Object.assign({ x: cut, y: 1, yref: "paper", yanchor: "bottom", text: "cut" }, note)];
    if (equal) {
      const place = { x: 1, xref: "paper", y: 0.2, yref: "paper", xanchor: "right", text: "0 at every step" };
      notes.push(Object.assign(place, note));
    }
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 10, r: 10, t: 30, b: 10 }, hovermode: "x unified",
      hoverlabel: { bgcolor: colour("panel"), font: { color: colour("ink") }, bordercolor: colour("line") },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: axis("step", { range: [0.5, data.losses.length + 0.5], anchor: "y2", tickformat: "d" }),
      yaxis: axis("loss", { domain: [0.36, 1], zeroline: false }),
      yaxis2: axis("difference", Object.assign({ domain: [0, 0.24] }, equal ? { range: [-1, 1], tickvals: [0] } : {})),
      shapes: [{ type: "line", x0: cut, x1: cut, y0: 0, y1: 1, yref: "paper", line: { color: colour("soft"), dash: "dot", width: 1 } }],
      annotations: notes,
    };
    const config = { responsive: true, displaylogo: false, displayModeBar: false };
    window.Plotly.react(target, traces, layout, config);
  }

  draw();
  dark.addEventListener("change", draw);
})();
