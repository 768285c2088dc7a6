"""Seconds until the command line answers, each in fresh processes.

python benchmarks/startup.py [--rounds 5]
"""

import subprocess
import sys

from _timing import arguments, finish, interleave, quartiles, start, table

COMMANDS = {
    "python, nothing imported": ["-c", "pass"],
    "import sora": ["-c", "import sora"],
    "import torch": ["-c", "import torch"],
    "sora --help": ["-m", "sora", "--help"],
    "sora train --help": ["-m", "sora", "train", "--help"],
    "sora list methods": ["-m", "sora", "list", "methods"],
    "sora train --dry-run": ["-m", "sora", "train", "--dry-run"],
}


def main() -> None:
    args = start(arguments(__doc__, rounds=5))
    if args.clock == "cpu":
        sys.exit("startup.py waits for other processes, whose time --clock cpu does not count")

    def call(words: list[str]) -> object:
        return subprocess.run([sys.executable, *words], check=True, capture_output=True)

    times = interleave({name: lambda w=words: call(w) for name, words in COMMANDS.items()}, args.rounds)
    rows = [
        {"command": name, "seconds": quartiles(values)[1], "at best": min(values)}
        for name, values in times.items()
    ]
    table("time to answer", rows)
    finish(args, "startup", {"rows": rows})


if __name__ == "__main__":
    main()
