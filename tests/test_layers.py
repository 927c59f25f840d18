"""Lower layers never import upper ones."""

import ast
import subprocess
import sys
from pathlib import Path

import fewgraft

ROOT = Path(fewgraft.__file__).parent
# From the ground up; modules of one layer may know each other.
LAYERS = (
    {
        "errors",
        "draws",
        "progress",
        "files",
        "home",
        "leftovers",
        "locks",
        "extras",
        "html",
        "parsing",
        "plugins",
        "ray_cluster",
    },
    {"data", "backbones"},
    {
        "border",
        "densities",
        "prototypes",
        "whitening",
        "augment",
        "views",
        "model",
        "heads",
        "export",
    }
    | {"devices", "runtime", "weight_files", "checkpoints"},
    {"zoo", "episodes", "metrics", "network", "pieces", "sessions", "session_scores"}
    | {"base_knowledge"},
    {"methods"},
    {"feature_bank", "feature_set", "imported", "imported_model", "split_features"}
    | {"session_features", "base_pictures"},
    {"training"},
    {"evaluation"},
    {"bench", "app"},
    {"cli"},
    {"__main__", "__init__"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def home(module: Path) -> str:
    return module.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(module: Path) -> set[str]:
    """Top-level names under `fewgraft` that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fewgraft"):
            steps = (node.module or "").split(".")
            found = {steps[1]} if len(steps) > 1 else {alias.name for alias in node.names}
            names |= {name for name in found if name != "__version__"}
        if isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("fewgraft.")}
    return names


def test_every_module_has_a_layer_and_looks_down_only() -> None:
    modules = sorted(ROOT.rglob("*.py"))
    assert len(modules) > 30
    for module in modules:
        assert home(module) in RANK, f"{home(module)} has no layer: give it one in this test"
        for name in imported(module):
            assert RANK[name] <= RANK[home(module)], f"{module.name} looks up to {name}"


def test_a_type_has_one_meaning() -> None:
    """No two classes or aliases of types share a name."""
    places: dict[str, list[str]] = {}
    for module in ROOT.rglob("*.py"):
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for name in (n for n in names if n != n.upper()):
                    places.setdefault(name, []).append(module.name)
    twice = {name: where for name, where in places.items() if len(where) > 1 and name[0] != "_"}
    assert twice == {}


def test_bench_and_app_do_not_know_each_other() -> None:
    for own, other in (("bench", "app"), ("app", "bench")):
        for module in (ROOT / own).rglob("*.py"):
            assert other not in imported(module), f"{own}/{module.name} imports {other}"


def test_methods_do_not_pull_the_network_in() -> None:
    """A method knows its task; what moves the network is handed one."""
    code = (
        "import sys, fewgraft.methods as m; m.methods(); "
        "print([n for n in sys.modules if n in ('fewgraft.network', 'fewgraft.model')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_data_layer_needs_no_torch() -> None:
    """So that `fewgraft data` starts at once and works where torch is not installed yet."""
    for module in (ROOT / "data").rglob("*.py"):
        source = module.read_text()
        assert "import torch" not in source
        assert "from torch" not in source
