"use strict";
// Draws the figures of the report and makes its switches work. Everything it needs is in the page.
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const paper = matchMedia("print");
  const root = document.documentElement;
  let printing = false, busy = 0;

  // ------------------------------------------------------------------ colours
  function isDark() {
    if (printing) return false;
    const chosen = root.dataset.scheme;
    return chosen ? chosen === "dark" : prefersDark.matches;
  }

  // Figures come in light colours; a known colour has a counterpart on a dark ground.
  function swapped(value) {
    if (typeof value === "string") return report.dark[value.toLowerCase()] ?? value;
    if (Array.isArray(value)) return typeof value.at(-1) === "number" ? value : value.map(swapped); // [0.5, color] is a step of a scale
    if (value && typeof value === "object" && !ArrayBuffer.isView(value)) {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, k === "bdata" ? v : swapped(v)]));
    }
    return value;
  }

  function themed(figure, place) {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(name).trim();
    const narrow = place.clientWidth < 560;
    const { data, layout } = isDark() ? swapped(figure) : structuredClone(figure);
    const ink = printing ? "#111" : color("--ink"), line = printing ? "#ccc" : color("--line");
    layout.autosize = true;
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, ...layout.font, color: ink };
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: color("--card"), bordercolor: line, font: { color: ink, size: 13 } };
    layout.xaxis ??= {};
    layout.yaxis ??= {};
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) layout[key] = { automargin: true, gridcolor: line, linecolor: line, zerolinecolor: line, ...layout[key] };
    }
    layout.legend = { bgcolor: "rgba(0,0,0,0)", ...layout.legend };
    if (touch.matches) layout.dragmode = false; // or a finger on a figure could not scroll the page
    return { data, layout };
  }

  // ------------------------------------------------------------------ figures
  function merged(base, patch) {
    if (!patch || typeof patch !== "object" || Array.isArray(patch) || patch.bdata) return patch;
    const out = base && typeof base === "object" && !Array.isArray(base) ? { ...base } : {};
    for (const [key, value] of Object.entries(patch)) out[key] = merged(out[key], value);
    return out;
  }

  const charts = [...document.querySelectorAll("figure.chart")].map((element) => {
    const name = element.dataset.chart, spec = report.figures[name];
    return { name, spec, element, place: element.querySelector(".plot"), hidden: new Set(), special: special(spec, element) };
  });

  function current(chart) {
    if (chart.special?.figure) return chart.special.figure();
    let { data, layout } = chart.spec;
    data = [...data];
    for (const select of chart.element.querySelectorAll('select[data-kind="switch"]')) {
      const patch = chart.spec.switches[Number(select.dataset.number)][Number(select.value)];
      for (const [i, change] of Object.entries(patch.data ?? {})) data[i] = merged(data[i], change);
      layout = merged(layout, patch.layout ?? {});
    }
    return chart.special?.change ? chart.special.change({ data, layout }) : { data, layout };
  }

  function draw(chart) {
    chart.height ??= parseFloat(chart.place.style.height);
    if (chart.spec.square) { // on a phone a round figure needs no more height than width, and room for its scale
      chart.place.style.height = Math.min(chart.height, chart.place.clientWidth + 90) + "px";
    }
    const figure = current(chart);
    const entries = legendEntries(figure);
    const data = figure.data.map((trace) => (chart.hidden.has(keyOf(trace)) ? { ...trace, visible: false } : trace));
    const ready = themed({ data, layout: entries ? { ...figure.layout, showlegend: false } : figure.layout }, chart.place);
    const config = { displaylogo: false, responsive: true, displayModeBar: false }; // its buttons are invisible stops for the keyboard
    root.dataset.busy = String(++busy);
    return Plotly.react(chart.place, ready.data, ready.layout, config)
      .then(() => showLegend(chart, entries ?? [], figure.data))
      .finally(() => { if (!--busy) delete root.dataset.busy; });
  }

  // ------------------------------------------------------------------ legends
  // Ours instead of plotly's: it wraps on a phone, takes no room from the figure, and its entries are buttons.
  const keyOf = (trace) => trace.legendgroup || trace.name;
  const words = (text) => new DOMParser().parseFromString(text.replace(/<br>/g, " "), "text/html").body.textContent;

  function legendEntries({ data, layout }) {
    const known = ["scatter", "scattergl", "bar", "box", "violin", "histogram", undefined];
    if (layout.showlegend === false || !data.every((trace) => known.includes(trace.type))) return null;
    const entries = new Map();
    data.forEach((trace, i) => {
      if (trace.name && trace.showlegend !== false && !entries.has(keyOf(trace))) entries.set(keyOf(trace), i);
    });
    return entries.size > 1 ? [...entries] : null;
  }

  function swatch(mark, trace, full) {
    const line = trace.type === undefined || trace.type.startsWith("scatter") ? full.mode?.includes("lines") && !full.fill?.startsWith("to") : false;
    const dots = !line && full.mode?.includes("markers");
    const color = [line || full.type === "box" ? full.line?.color : full.fillcolor, full.marker?.color, full.line?.color].find((c) => typeof c === "string");
    const hollow = /,\s*0\)$/.test(color ?? "") && typeof full.marker?.line?.color === "string";
    mark.className = "mark " + (line ? "line" : dots ? "dot" : "box");
    mark.style.cssText = line
      ? `border-top: ${Math.max(full.line.width, 1.5)}px ${{ dash: "dashed", dot: "dotted" }[full.line.dash] ?? "solid"} ${color}`
      : hollow ? `border: 1.5px solid ${full.marker.line.color}` : `background: ${color}`;
  }

  function showLegend(chart, entries, data) {
    const names = entries.map(([key]) => key).join("\n");
    if (chart.names !== names) {
      chart.names = names;
      chart.legend?.remove();
      chart.legend = document.createElement("ul");
      chart.legend.className = "legend";
      chart.legend.setAttribute("aria-label", "Legend: each button hides or shows");
      for (const [key, i] of entries) {
        const button = document.createElement("button");
        button.type = "button";
        button.append(document.createElement("span"), words(data[i].name));
        button.addEventListener("click", () => {
          if (!chart.hidden.delete(key)) chart.hidden.add(key);
          draw(chart);
        });
        const item = document.createElement("li");
        item.append(button);
        chart.legend.append(item);
      }
      if (entries.length) chart.place.before(chart.legend);
    }
    entries.forEach(([key, i], n) => {
      const button = chart.legend.children[n].firstChild, hidden = chart.hidden.has(key);
      button.setAttribute("aria-pressed", String(!hidden));
      const full = chart.place._fullData?.find((trace) => trace.index === i);
      if (full && !hidden) swatch(button.firstChild, data[i], full);
    });
  }

  const drawAll = () => Promise.all(charts.map(draw));

  // ------------------------------------------------------------------ figures with more than switches
  function special(spec, element) {
    if (spec.kind === "network") return network(spec, element);
    if (spec.kind === "embedding") return embedding(spec, element);
    return null;
  }

  // A node chosen by list or click is ringed, and its details are said: hovering needs a mouse.
  function network(spec, element) {
    const select = element.querySelector('select[data-kind="node"]'), output = element.querySelector("output");
    const choose = () => {
      const i = Number(select.value) - 1;
      output.textContent = i < 0 ? "" : spec.details[i].join(" · ");
      draw(charts.find((c) => c.spec === spec));
    };
    select.addEventListener("change", choose);
    queueMicrotask(() => drawn.then(() => element.querySelector(".plot").on("plotly_click", (event) => {
      const point = event.points.find((p) => p.data.name === "nodes");
      if (point) { select.value = String(point.pointNumber + 1); choose(); }
    })));
    return {
      change({ data, layout }) {
        const i = Number(select.value) - 1;
        if (i < 0) return { data, layout };
        const at = data.findIndex((trace) => trace.name === "nodes"), nodes = data[at];
        const width = spec.details.map((_, j) => (j === i ? 4 : 0.8));
        const copy = [...data];
        copy[at] = merged(nodes, { marker: { line: { width } } });
        return { data: copy, layout };
      },
    };
  }

  // Component values come as 16-bit whole numbers: views x components x points, scaled by component.
  function embedding(spec, element) {
    const bytes = Uint8Array.from(atob(spec.values), (c) => c.charCodeAt(0));
    const raw = new Int16Array(bytes.buffer), n = spec.points;
    const select = (kind) => element.querySelector(`select[data-kind="${kind}"]`);
    const output = element.querySelector("output");
    const component = (view, c) => {
      const [low, high] = spec.ranges[c], start = (view * spec.ranges.length + c) * n;
      return Float64Array.from(raw.subarray(start, start + n), (v) => low + ((v + 32767) / 65534) * (high - low));
    };
    for (const one of element.querySelectorAll("select")) {
      one.addEventListener("change", () => draw(charts.find((c) => c.spec === spec)));
    }
    return {
      figure() {
        const view = Number(select("view").value), [cx, cy] = ["x", "y"].map((k) => Number(select(k).value));
        const x = component(view, cx), y = component(view, cy);
        const coloring = spec.colorings[Number(select("color")?.value ?? 0)];
        const own = spec.views[view].node;
        output.textContent = spec.views[view].says;
        const mark = { size: n > 1500 ? 5 : 6, opacity: 0.8, line: { width: 0 } };
        const says = (i) => spec.owner ? `row ${spec.rows[i]}, node ${spec.names[spec.owner[i]]}` : `row ${spec.rows[i]}`;
        const trace = (rows, name, marker) => ({
          type: "scatter", mode: "markers", name, x: rows.map((i) => x[i]), y: rows.map((i) => y[i]),
          marker: { ...mark, ...marker }, hovertext: rows.map((i) => `${coloring.says ? coloring.says[coloring.of[i]] + "<br>" : ""}${says(i)}`), hoverinfo: "text",
        });
        const all = [...Array(n).keys()];
        const data = coloring.classes
          ? coloring.classes.map((name, c) => trace(all.filter((i) => coloring.of[i] === c), name, { color: coloring.colors[c] }))
          : [trace(all, "", { color: coloring.of, colorscale: coloring.scale, showscale: coloring.bar, colorbar: { title: { text: coloring.label, side: "top" }, orientation: "h", thickness: 9, len: 0.8, y: 1.02, yanchor: "bottom", outlinewidth: 0 } })];
        if (spec.owner && own !== null) { // rings lie on top, so that they can be seen in a crowd
          const mine = all.filter((i) => spec.owner[i] === own);
          data.push({
            type: "scatter", mode: "markers", name: "its own rows", x: mine.map((i) => x[i]), y: mine.map((i) => y[i]), hoverinfo: "skip",
            marker: { size: mark.size + 3, color: "rgba(0,0,0,0)", line: { color: spec.ink, width: 1.2 } },
          });
        }
        const around = (c) => { const [low, high] = spec.ranges[c], pad = 0.04 * (high - low || 1); return [low - pad, high + pad]; };
        const title = (c) => ({ text: `component ${c + 1}`, standoff: 8 });
        const layout = merged(spec.layout, {
          showlegend: Boolean(coloring.classes), xaxis: { title: title(cx), range: around(cx) }, yaxis: { title: title(cy), range: around(cy) },
        });
        return { data, layout };
      },
    };
  }

  // ------------------------------------------------------------------ tables, copying
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const value = (row, i) => {
      const text = row.cells[i].textContent, number = Number(text.replaceAll(",", ""));
      return text.trim() === "" || Number.isNaN(number) ? text : number;
    };
    const before = (a, b) => {
      if (typeof a === "number" && typeof b === "number") return a - b;
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // numbers first, then words
      return a.localeCompare(b, undefined, { numeric: true });
    };
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((p, q) => before(value(p, i), value(q, i)) * (down ? -1 : 1));
      body.append(...rows);
    }));
    const part = table.closest(".scroll").previousElementSibling;
    const filter = part.querySelector(".filter"), count = part.querySelector(".count");
    filter.addEventListener("input", () => {
      const wanted = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        const cells = [...row.cells].map((c) => c.textContent.toLowerCase());
        row.hidden = !wanted.every((word) => text.includes(word) && cells.some((c) => c.includes(word)));
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${body.rows.length} rows`;
    });
  }

  for (const chart of charts) {
    chart.element.querySelector("button.save").addEventListener("click", () => {
      Plotly.downloadImage(chart.place, { format: "svg", filename: "dekpca-" + chart.name, width: chart.place.clientWidth, height: chart.place.clientHeight });
    });
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch { // a file opened from disk may not have the clipboard: select the text instead
        getSelection().selectAllChildren(code);
        button.textContent = "Selected: press Ctrl-C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2500);
    });
  }

  // ------------------------------------------------------------------ what the reader changes
  for (const select of document.querySelectorAll('select[data-kind="switch"]')) {
    const chart = charts.find((c) => c.element.contains(select));
    select.addEventListener("change", () => draw(chart));
  }
  const scheme = document.getElementById("scheme");
  scheme.addEventListener("change", () => {
    if (scheme.value === "auto") delete root.dataset.scheme;
    else root.dataset.scheme = scheme.value;
    drawAll();
  });
  prefersDark.addEventListener("change", drawAll);

  function forPaper(now) {
    if (now === printing) return;
    printing = now;
    drawAll();
    if (now) charts.forEach((c) => Plotly.relayout(c.place, { width: Math.min(c.place.clientWidth, 680) }));
  }
  addEventListener("beforeprint", () => forPaper(true));
  addEventListener("afterprint", () => forPaper(false));
  paper.addEventListener("change", () => forPaper(paper.matches));

  const drawn = drawAll().then(() => { root.dataset.drawn = "yes"; });
})();
