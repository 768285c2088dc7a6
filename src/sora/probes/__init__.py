"""Probes, found by name: each measures a model, reads runs or data sets, draws and states what it found.

`create("eps-curve").measure(ProbedModel(model, (x, y), threat))` measures a model;
`probe_runs("eps-curve", folders)` does everything `sora probe` does.
"""

from sora.probes._base import PROBES, Probe, ProbedModel, ProbeInfo, Result, create, info, names, register
from sora.probes._runs import ProbeReport, SubjectOptions, load_subject, measure_named, probe_runs

__all__ = [
    "Probe",
    "ProbeInfo",
    "ProbeReport",
    "ProbedModel",
    "Result",
    "SubjectOptions",
    "create",
    "info",
    "load_subject",
    "measure_named",
    "names",
    "probe_runs",
    "register",
]

PROBES.discover()
