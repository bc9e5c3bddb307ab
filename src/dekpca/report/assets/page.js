"use strict";
// Draws the figures of the report and makes its choices work. Everything it needs is in the page.
(() => {
  const figures = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement, touch = matchMedia("(pointer: coarse)").matches;
  const clear = "rgba(0,0,0,0)", axis = { automargin: true, zeroline: false, title: { standoff: 8 } };
  const template = { layout: {
    autosize: true, paper_bgcolor: clear, plot_bgcolor: clear, margin: { l: 8, r: 8, t: 16, b: 8 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 13 }, hoverlabel: { align: "left" },
    colorway: ["#3f7fc4", "#cf7428", "#3d9271", "#9172b8", "#cc5f5b", "#2b95a8"], xaxis: axis, yaxis: axis,
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" },
    coloraxis: {
      colorscale: [[0, "#d99a2b"], [0.5, "#4f9d8f"], [1, "#3a6fc4"]],
      colorbar: { orientation: "h", thickness: 9, len: 0.8, y: 1.02, yanchor: "bottom", outlinewidth: 0, title: { side: "top" } },
    },
    dragmode: touch ? false : "zoom", // or a finger on a figure could not scroll the page
  } };

  const draw = ([name, { data, layout }]) =>
    Plotly.newPlot("plot-" + name, data, { ...layout, template }, { displayModeBar: false, responsive: true });

  function controls(name, { options }) {
    const select = document.getElementById(name + "-choice"), save = document.querySelector(`[data-chart=${name}] .save`);
    save.addEventListener("click", () => Plotly.downloadImage("plot-" + name, { format: "svg", filename: "dekpca-" + name }));
    select?.addEventListener("change", () => Plotly.update("plot-" + name, ...structuredClone(options[select.value])));
  }

  // The traces of the embedding have the places of their rows as customdata, and no coordinates: these depend on the view.
  function embedding({ values, own }) {
    const [view, x, y] = ["view", "x", "y"].map((what) => document.getElementById("embedding-" + what));
    const place = document.getElementById("plot-embedding");
    const classes = place.data.slice(0, -1).map((trace) => trace.customdata);
    const component = (c) => new Float32Array(Uint8Array.from(atob(values[view.value][c]), (b) => b.charCodeAt(0)).buffer);
    const show = () => {
      const at = (all) => [...classes, own[view.value]].map((rows) => rows.map((i) => all[i]));
      const titles = { "xaxis.title.text": `component ${+x.value + 1}`, "yaxis.title.text": `component ${+y.value + 1}` };
      return Plotly.update(place, { x: at(component(x.value)), y: at(component(y.value)) }, titles);
    };
    for (const select of [view, x, y]) select.addEventListener("change", show);
    return show();
  }

  const scheme = document.getElementById("scheme");
  scheme.addEventListener("change", () => { root.style.colorScheme = scheme.value; });
  for (const entry of Object.entries(figures)) controls(...entry);
  Promise.all(Object.entries(figures).map(draw))
    .then(() => figures.embedding && embedding(figures.embedding))
    .then(() => { root.dataset.drawn = "yes"; });
})();
