"""The torture bench: kills, damaged files, bad command lines, bad calls and hostile files.

`make torture`, or `python -m tests.torture --help`. What it promises is in `docs/reliability.md`.
"""
