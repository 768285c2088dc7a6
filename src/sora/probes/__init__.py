"""Probes of a trained model or a run, found by name: each measures, draws and states its result.

`create("eps-curve").measure(ProbedModel(model, (x, y), threat))` measures a model;
`probe_runs("eps-curve", folders)` does everything `sora probe` does.
"""

from sora.probes._base import PROBES, Probe, ProbedModel, ProbeInfo, Result, create, info, names, register
from sora.probes._runs import ProbeReport, file_title, probe_runs
from sora.probes._subject import SubjectOptions, load_subject

__all__ = [
    "Probe",
    "ProbeInfo",
    "ProbeReport",
    "ProbedModel",
    "Result",
    "SubjectOptions",
    "create",
    "file_title",
    "info",
    "load_subject",
    "names",
    "probe_runs",
    "register",
]

PROBES.discover()
