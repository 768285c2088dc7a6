"""`sora export`: a trained model for other programs."""

from dataclasses import dataclass
from typing import Literal

from sora._devices import set_threads
from sora.cli._parse import DATA_DIR, flag, parse, print_json
from sora.cli._tables import plain_table
from sora.errors import UserError
from sora.export import export


@dataclass(frozen=True)
class Flags:
    """Write the model of a run for other programs, load it again and measure it.

    torch: model.pt2, for torch.export.load. onnx: model.onnx, for ONNX Runtime. python: model.py beside its
    weights, which needs torch and safetensors. hub: the same with config.json and a card, for Hugging Face.
    """

    run: str = flag("", "a run folder, or zoo:NAME (`sora list zoo`)", metavar="RUN", positional=True)
    to: Literal["torch", "onnx", "hub", "python"] | None = flag(None, "the format; required")
    out: str | None = flag(None, "folder to write, new or empty; default: RUN/export/FORMAT")
    limit: int | None = flag(
        None, "test images to compare on, class-balanced; default: 500, or all if there are fewer; 0: all"
    )
    model: str | None = flag(None, "for a run with a custom network: its package.module:function")
    data_dir: str | None = flag(None, DATA_DIR)
    threads: int = flag(0, "CPU threads; 0: torch's choice")
    json: bool = flag(False, "print the report as JSON")


def run(argv: list[str]) -> int:
    """Write, measure, print."""
    flags = parse(Flags, argv, "export")
    if flags.to is None:
        raise UserError("missing: --to; allowed: torch, onnx, hub, python")
    set_threads(flags.threads)
    exported = export(
        flags.run, flags.to, flags.out, model=flags.model, limit=flags.limit, data_dir=flags.data_dir
    )
    report = exported.report
    if flags.json:
        print_json(report)
        return 0
    rows = []
    for name, difference in report["largest_logit_difference"].items():
        shares = [f"{100 * report['accuracy'][which][name]:.1f} %" for which in ("run", "exported")]
        rows.append([name, *shares, str(report["changed_predictions"][name]), f"{difference:.1e}"])
    title = f"accuracy on {report['n']} test images, attacked with the run's model"
    columns = ["images", "run", "exported", "changed predictions", "largest difference of logits"]
    plain_table(title, columns, rows)
    print(
        f"{exported.main} ({report['bytes'] / 1e6:.1f} MB); the numbers are in {exported.folder}/export.json"
    )
    return 0
