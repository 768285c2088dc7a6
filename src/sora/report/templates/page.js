"use strict";
(() => {
  const root = document.documentElement;
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;

  // Theme: the system's, until the button is used.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = (name) => { root.dataset.theme = name; };
  setTheme(system.matches ? "dark" : "light");

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const themed = () => ({
    ink: colour("--ink"), soft: colour("--soft"), grid: colour("--grid"), line: colour("--line"), paper: colour("--paper"),
  });

  const layoutOf = (plot, narrow) => {
    const c = themed();
    const own = structuredClone(plot.layout);
    const axis = (given) => ({
      gridcolor: c.grid, linecolor: c.line, zerolinecolor: c.line, tickfont: { color: c.soft }, automargin: true, ...given,
      title: { text: given.title.text, font: { color: c.soft, size: 12 }, standoff: 8 },
    });
    return {
      ...own,
      xaxis: { ...axis(own.xaxis), unifiedhovertitle: { text: `${own.xaxis.title.text} %{x}` } },
      yaxis: axis(own.yaxis),
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12, color: c.ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 48, r: 12, t: 8, b: 40 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: c.soft, size: 11 } },
      hoverlabel: { bgcolor: c.paper, bordercolor: c.line, font: { color: c.ink, size: 12 } },
      dragmode: touch ? false : "zoom",
      hoverdistance: own.hovermode === "x unified" ? -1 : 20, // steps may be far apart: the nearest is shown
    };
  };

  const drawn = new Set();
  const draw = (div) => {
    if (drawn.has(div) || !window.Plotly) return;
    drawn.add(div);
    div.replaceChildren(); // its static preview
    const plot = plots[Number(div.dataset.plot)];
    Plotly.newPlot(div, plot.data, layoutOf(plot, innerWidth < 640), {
      responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], scrollZoom: false,
    }).then(() => { div.dataset.drawn = "yes"; });
  };
  const visible = (div) => div.offsetParent !== null;

  // What is near the window is drawn first, the rest when there is time, closed runs when they are opened.
  const all = [...document.querySelectorAll(".plot")];
  // One at a time, so that the first picture is on the screen before the second is computed.
  const near = new Set();
  const drawNear = () => {
    const next = all.find((div) => near.has(div) && !drawn.has(div));
    if (next) { draw(next); setTimeout(drawNear); }
  };
  const watcher = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => near.add(entry.target));
    drawNear();
  }, { rootMargin: "200px" });
  const later = window.requestIdleCallback || ((call) => setTimeout(call, 30));
  const drawNext = () => {
    const next = all.find((div) => !drawn.has(div) && visible(div));
    if (next && window.Plotly) { draw(next); later(drawNext); }
  };
  // Plotly takes a second or two to load: it starts when the page, with its first picture, is on the screen.
  requestAnimationFrame(() => setTimeout(() => {
    const plotly = document.createElement("script");
    plotly.textContent = document.getElementById("plotly").textContent;
    document.head.append(plotly);
    all.forEach((div) => watcher.observe(div));
    later(drawNext);
  }));
  document.querySelectorAll("details").forEach((item) => item.addEventListener("toggle", () => later(drawNext)));
  addEventListener("beforeprint", () => {
    setTheme("light");
    document.querySelectorAll("details").forEach((item) => { item.open = true; });
    all.forEach(draw);
    recolour();
  });

  const recolour = () => drawn.forEach((div) => {
    const full = layoutOf(plots[Number(div.dataset.plot)], innerWidth < 640);
    Plotly.relayout(div, {
      "font.color": full.font.color, "legend.font.color": full.legend.font.color, hoverlabel: full.hoverlabel,
      ...Object.fromEntries(["xaxis", "yaxis"].flatMap((name) => [
        [`${name}.gridcolor`, full[name].gridcolor], [`${name}.linecolor`, full[name].linecolor],
        [`${name}.zerolinecolor`, full[name].zerolinecolor], [`${name}.tickfont.color`, full[name].tickfont.color],
        [`${name}.title.font.color`, full[name].title.font.color],
      ])),
    });
  });
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    recolour();
  });
  system.addEventListener("change", (event) => { setTheme(event.matches ? "dark" : "light"); recolour(); });

  // Arrow keys read a plot's values one by one.
  const place = new WeakMap();
  document.addEventListener("keydown", (event) => {
    const div = event.target;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !div.classList || !div.classList.contains("plot") || !drawn.has(div)) return;
    const curve = div.data.findIndex((trace) => trace.type === "scatter" && trace.hoverinfo !== "skip" && trace.x.length > 0);
    if (curve < 0) return;
    event.preventDefault();
    const count = div.data[curve].x.length;
    const at = ((place.has(div) ? place.get(div) : by > 0 ? -1 : count) + by + count) % count;
    place.set(div, at);
    const unified = div.layout.hovermode === "x unified";
    if (unified) Plotly.Fx.hover(div, { xval: div.data[curve].x[at] }, "xy");
    else Plotly.Fx.hover(div, [{ curveNumber: curve, pointNumber: at }]);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.classList && event.target.classList.contains("plot") && drawn.has(event.target)) Plotly.Fx.unhover(event.target);
  });

  // Tables are sorted by the values in data-order: numbers first, then text.
  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    table.querySelectorAll("thead th").forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const numeric = body.rows[0].cells[column].classList.contains("number");
        const before = head.getAttribute("aria-sort");
        const direction = before === "none" ? (numeric ? "descending" : "ascending") : before === "ascending" ? "descending" : "ascending";
        table.querySelectorAll("thead th").forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", direction);
        const value = (row) => { const text = row.cells[column].dataset.order; return numeric ? (text === "inf" ? Infinity : Number(text)) : text; };
        const sign = direction === "ascending" ? 1 : -1;
        [...body.rows]
          .sort((a, b) => { const x = value(a), y = value(b); return sign * (x < y ? -1 : x > y ? 1 : 0); })
          .forEach((row) => body.append(row));
      });
    });
  });
})();
