"""Pictures of what `sora probe` measured, drawn from its JSON alone; one panel a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.ticker import PercentFormatter

from sora.report._figure import BLUE, GREY, RED, panels, save

Found = Mapping[str, Mapping[str, Any]]  # a run's name and what its probe wrote
NOTICED = 0.02  # a rise of FGSM accuracy larger than this is marked
MARKS = {"FGSM": "X", "FGSM-RS": "^", "PGD-10": "*", "SORA": "o"}


def eps_curve_picture(found: Found, file: Path) -> None:
    """FGSM and PGD accuracy over the test radius; the largest rise is marked."""
    figure, axes = panels(len(found))
    for panel, (name, curve) in zip(axes, found.items(), strict=True):
        eps, multiples = curve["threat"]["eps"], curve["multiples"]
        panel.plot(multiples, curve["fgsm"], color=RED, label="FGSM", linewidth=1.8)
        strong = [(m, p) for m, p in zip(multiples, curve["pgd10"], strict=True) if p is not None]
        panel.plot(*zip(*strong, strict=True), color=BLUE, label="PGD-10", linewidth=1.8)
        panel.axvline(0, color=GREY, linewidth=0.8)
        panel.axvline(1, color=GREY, linewidth=0.8, linestyle="--")
        if curve["index"] > NOTICED:
            panel.axvspan(curve["rise"]["from"], curve["rise"]["to"], color=RED, alpha=0.10)
        panel.set(
            title=f"{name}: largest rise {100 * curve['index']:.1f} points",
            xlabel=f"step in multiples of eps = {eps:.4g} (trained at 1)",
            ylabel=f"accuracy (n = {curve['n']})",
            ylim=(0, 1.02),
        )
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        panel.legend(frameon=False)
    save(figure, file)


def landscape_picture(found: Found, file: Path) -> None:
    """The loss as a surface, and as contours under it, on one scale for all runs."""
    figure = plt.figure(figsize=(5.0 * len(found), 8.4))
    highest = max(np.max(surface["loss"]) for surface in found.values())
    levels = np.linspace(0, highest, 21)
    for column, (name, surface) in enumerate(found.items(), start=1):
        a, b = np.meshgrid(surface["axis"], surface["axis"])
        loss = np.array(surface["loss"])
        top: Any = figure.add_subplot(2, len(found), column, projection="3d")
        top.plot_surface(a, b, loss, cmap="viridis", vmin=0, vmax=highest, rcount=60, ccount=60)
        top.set(xlabel="FGSM direction", ylabel="random direction", zlabel="loss", zlim=(0, highest))
        top.set_title(f"{name}: loss (mean of {surface['n']} images)")
        flat = figure.add_subplot(2, len(found), len(found) + column)
        filled = flat.contourf(a, b, loss, levels=levels, cmap="viridis")
        flat.plot([0, 1], [0, 0], color="white", linewidth=1.2, marker="o", markersize=4)
        flat.annotate("x", (0, 0.08), color="white", ha="center")
        flat.annotate("FGSM", (1, 0.08), color="white", ha="center")
        flat.set(xlabel="FGSM direction", ylabel="random direction", title=f"bump {surface['bump']:.2f}")
        figure.colorbar(filled, ax=flat, label="loss")
    save(figure, file)


def boundary_picture(found: Found, file: Path) -> None:
    """Predicted classes around each image, one row a run, with the points that attacks reach."""
    rows, columns = len(found), max(len(run["images"]) for run in found.values())
    figure, grid = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.7 * rows), squeeze=False)
    figure.set_layout_engine("constrained")
    for row, (name, run) in zip(grid, found.items(), strict=True):
        for panel in row[len(run["images"]) :]:
            panel.axis("off")
        for panel, image in zip(row, run["images"], strict=False):
            _classes(panel, run["axis"], image)
            panel.set_title(f"{name}: image {image['image']}, class {image['label']}", fontsize=9)
    handles, labels = grid[0][0].get_legend_handles_labels()
    text = "white: the attack changed the prediction, black: it did not"
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, title=text)
    save(figure, file)


def _classes(panel: Axes, axis: list[float], image: Mapping[str, Any]) -> None:
    classes = np.array(image["classes"])
    norm = BoundaryNorm(np.arange(-0.5, 20.5), 20)  # a class keeps its colour in every panel
    panel.pcolormesh(axis, axis, classes % 20, cmap="tab20", norm=norm, alpha=0.55, shading="nearest")
    panel.contour(axis, axis, classes == image["label"], levels=[0.5], colors="black", linewidths=0.8)
    panel.plot(0, 0, "k+", markersize=9, label="x")
    for name, point in image["points"].items():
        fooled = point["class"] != image["label"]
        panel.plot(
            point["a"], point["b"], MARKS[name], color="black", markersize=8, label=name,
            markerfacecolor="white" if fooled else "black",
        )  # fmt: skip
    panel.set(xlabel="FGSM direction", ylabel="random direction", aspect="equal")


def curvature_picture(found: Found, file: Path) -> None:
    """How well second order explains the measured gradients, over the length of the step."""
    figure, axes = panels(len(found), width=5.6)
    for panel, (name, run) in zip(axes, found.items(), strict=True):
        eps = run["threat"]["eps"]
        steps = [line["step"] / eps for line in run["lemma"]]
        for key, colour, label in (("misalignment", RED, "1 - PertAlign"), ("bend", BLUE, "1 - linearity")):
            low, middle, high = zip(*(_numbers(line[key]) for line in run["lemma"]), strict=True)
            panel.plot(steps, middle, color=colour, marker="o", markersize=3, label=f"{label}: median")
            panel.fill_between(steps, low, high, color=colour, alpha=0.15)
        panel.axhline(1, color=GREY, linewidth=0.8)
        panel.set_yscale("symlog", linthresh=2)
        text = ", ".join(f"{key} {value:.2f}" for key, value in run["numbers"].items())
        panel.set(xscale="log", xlabel="step in multiples of eps", ylabel="measured / second order")
        panel.set_title(f"{name}\n{text}", fontsize=8)
        panel.legend(frameon=False, fontsize=8)
    save(figure, file)


def _numbers(values: list[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


PICTURES = {
    "eps-curve": eps_curve_picture,
    "landscape": landscape_picture,
    "boundary": boundary_picture,
    "curvature": curvature_picture,
}
