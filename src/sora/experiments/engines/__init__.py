"""Where the runs of a grid are computed: processes of this machine, a Ray cluster, or Slurm.

An engine starts `sora train --resume auto` somewhere and reports when it has ended. The grid decides
everything else: which runs there are, which are finished, and what is printed.
"""

from sora.experiments.engines.base import ENGINES, Ended, Engine, Handle, Work, create

__all__ = ["ENGINES", "Ended", "Engine", "Handle", "Work", "create"]
