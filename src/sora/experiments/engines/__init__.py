"""Where the runs of a grid are computed: processes of this machine, a Ray cluster, or Slurm.

An engine starts `sora train --resume auto` somewhere and tells when it has ended. Everything else, which runs
there are, which are finished, what is printed, is the grid's.
"""

from sora.experiments.engines.base import ENGINES, Ended, Engine, Handle, Work, create

__all__ = ["ENGINES", "Ended", "Engine", "Handle", "Work", "create"]
