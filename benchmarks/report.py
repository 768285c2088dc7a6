"""What `sora report` needs for many runs, and how soon its page shows a picture in Chromium.

python benchmarks/report.py runs/demo/fgsm-s0 runs/demo/sora-s0 [--runs 50] [--lines 1200]

The runs are copied under new seeds until there are `--runs` of them, their logs continued to `--lines` lines.
The browser's part needs what `make test-browser` installs and is left out without it.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _timing import arguments, finish, quartiles, start, table

SMALL = ("config.yaml", "summary.json", "evaluation.json", "evals.jsonl", "events.jsonl", "probes/*.json")
# When the first picture is on the screen and when the first one can be used, in milliseconds since opening.
WATCH = """
new PerformanceObserver((list) => { window.firstSeen ??= list.getEntries()[0].renderTime; })
  .observe({ type: "element", buffered: true });
new MutationObserver(() => { window.firstDrawn ??= performance.now(); })
  .observe(document, { subtree: true, attributes: true, attributeFilter: ["data-drawn"] });
"""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def copy_run(run: Path, folder: Path, seed: int, lines: int) -> None:
    """A copy without weights, with another seed and a log of that many lines."""
    for file in (file for pattern in SMALL for file in run.glob(pattern)):
        copy = folder / file.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(
            r""",?\s*"?\bblake2b"?: ["']\w+["']""", "", file.read_text(encoding="utf-8")
        )  # it changes
        copy.write_text(text.replace('"seed": 0', f'"seed": {seed}').replace("seed: 0", f"seed: {seed}"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary.pop("logs_blake2b", None)  # the checksums of the original logs: changed ones would be refused
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = rows[-1]["step"]
    longer = (
        {**rows[number % len(rows)], "step": rows[number % len(rows)]["step"] + last * (number // len(rows))}
        for number in range(lines)
    )
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in longer))


def write_page(runs: Path, page: Path) -> dict[str, float]:
    """Seconds, processor seconds and the largest resident set of `sora report` in a fresh process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "sora", "report", str(runs), "--out", str(page), "--quiet"]
    subprocess.run(command, check=True, capture_output=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu": cpu, "memory MB": after.ru_maxrss / 1024}


def open_page(page: Path, rounds: int) -> list[tuple[float, float]]:
    """Seconds from opening the page until a picture is seen and until one can be used, in new windows."""
    from playwright.sync_api import sync_playwright

    times = []
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(rounds):
            window = browser.new_page(viewport={"width": 1440, "height": 900})
            window.add_init_script(WATCH)
            window.goto(page.as_uri())
            while not window.evaluate("window.firstDrawn && window.firstSeen"):
                time.sleep(0.05)
            seen, drawn = window.evaluate("[window.firstSeen, window.firstDrawn]")
            times.append((seen / 1000, drawn / 1000))
            window.close()
        browser.close()
    return times


def main() -> None:
    parser = arguments(__doc__, runs=50, lines=1200, rounds=3)
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN")
    args = start(parser)
    with tempfile.TemporaryDirectory() as name:
        runs, page = Path(name) / "runs", Path(name) / "page.html"
        for number in range(args.runs):
            seed, which = divmod(number, len(args.folders))
            folder = args.folders[which]
            copy_run(folder, runs / f"{folder.name}-copy{seed}", seed, args.lines)
        rows: list[dict[str, Any]] = [write_page(runs, page) for _ in range(args.rounds)]
        for row in rows:
            row["page MB"] = page.stat().st_size / 1e6
        table(f"sora report of {args.runs} runs with {args.lines} log lines each", rows)
        try:
            times = open_page(page, args.rounds)
        except ImportError:
            times = []
            print("no browser driver: pip install 'sora-at[browser]'")
        else:
            for what, values in zip(("seen", "interactive"), zip(*times, strict=True), strict=True):
                print(f"first picture {what} after {quartiles(values)[1]:.2f} s (at best {min(values):.2f})")
    finish(args, "report", {"rows": rows, "first_picture": times})


if __name__ == "__main__":
    main()
