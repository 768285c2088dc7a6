"""What holds for the package as a whole: imports point one way, and little is imported early."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "sora"
# From the top of the house down; a room may import what comes after it.
ROOMS = [
    "cli",
    "report",
    "probes",
    "experiments",
    "training",
    "export",
    "evaluation",
    "runs",
    "settings",
    "metrics",
]
ROOMS += ["data", "models", "attacks", "methods", "curvature", "threat", "figures"]
# Rooms that know less than all rooms below them.
CLOSED = {
    **{room: set() for room in ("figures", "threat", "curvature", "models", "data")},
    "methods": {"threat", "curvature"},
    "attacks": {"threat"},
    "metrics": {"attacks", "curvature", "threat"},
    "settings": {"attacks", "data", "methods", "metrics", "models", "threat"},
    "runs": {"data", "models", "settings"},
}


def imports(path: Path) -> set[str]:
    """The rooms a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sora":
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1] for a in node.names if a.name.startswith("sora.")]
        found |= {name for name in names if name in ROOMS}
    return found


def files(room: str) -> list[Path]:
    return sorted((SRC / room).rglob("*.py")) if (SRC / room).is_dir() else [SRC / f"{room}.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    below = set(ROOMS[ROOMS.index(room) :])
    for path in files(room):
        assert imports(path) <= below, f"{path} imports from above"


@pytest.mark.parametrize("room", CLOSED)
def test_closed_rooms_know_only_what_the_design_says(room: str) -> None:
    for path in files(room):
        assert imports(path) <= CLOSED[room] | {room}, path


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_import_sora_needs_torch_numpy_and_safetensors_alone_and_its_help_not_even_those() -> None:
    code = "import sys, json, sora; sora.Linf, sora.methods, sora.models, sora.curvature, sora.Guard;"
    code += "print(json.dumps(list(sys.modules)))"
    roots = {name.split(".")[0] for name in json.loads(run_python(code))}
    heavy = {"rich", "tyro", "sklearn", "matplotlib", "plotly", "yaml", "pyautoattack", "jinja2", "PIL"}
    assert not roots & heavy
    code = "import sys; from sora.cli import main; main(['--help']); print('torch' in sys.modules)"
    assert run_python(code).splitlines()[-1] == "False"


def test_every_public_name_resolves_and_the_changelog_names_every_verb() -> None:
    import sora

    for name in sora.__all__:
        assert getattr(sora, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sora.nothing  # noqa: B018
    from sora.cli import VERBS

    text = (SRC.parents[1] / "CHANGELOG.md").read_text()
    assert [verb for verb in VERBS if f"`sora {verb}`" not in text] == []
