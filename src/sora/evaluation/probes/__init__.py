"""Looking inside a trained model: each probe turns a model and a few images into plain numbers."""

from sora.evaluation.probes.boundary import boundary
from sora.evaluation.probes.curvature_probe import curvature
from sora.evaluation.probes.eps_curve import eps_curve, largest_rise
from sora.evaluation.probes.landscape import landscape

__all__ = ["boundary", "curvature", "eps_curve", "landscape", "largest_rise"]
