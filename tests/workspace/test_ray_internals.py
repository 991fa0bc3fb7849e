"""What is not Ray's public API is in one package of fray-ray, and each call of it is described and tried."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAY = ROOT / "packages/fray-ray/src/fray_ray"
INTERNALS = RAY / "_ray_internals"
SOURCES = sorted(RAY.rglob("*.py"))
OUTSIDE = [path for path in SOURCES if INTERNALS not in path.parents]
# What Ray documents for everybody.
PUBLIC = {
    "ray",
    "ray.cloudpickle",
    "ray.cluster_utils",
    "ray.exceptions",
    "ray.job_submission",
    "ray.util",
    "ray.util.metrics",
    "ray.util.placement_group",
    "ray.util.scheduling_strategies",
}
# Paths of the dashboard; those of jobs alone are a documented API.
PATHS = ("/api/", "/nodes", "/logical", "/events")
DOCUMENTED = ("/api/jobs/",)


def modules_of(tree: ast.Module) -> Iterator[str]:
    """The modules of Ray that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "ray")
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "ray":
            if node.module != "ray":
                yield str(node.module)
            yield from (f"ray.{each.name}" for each in node.names if each.name.startswith("_"))


def private_attributes(tree: ast.Module) -> Iterator[str]:
    """The private names that a file asks of what is not its own object."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or ast.unparse(node.value) in ("self", "cls", "sys", "os"):
            continue
        if node.attr.startswith("_") and not node.attr.startswith("__"):
            yield node.attr


def own_names() -> set[str]:
    """The private names that Fray itself gives: functions, and attributes of its objects."""
    names = set()
    for path in ROOT.glob("packages/*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def texts_of(tree: ast.Module) -> Iterator[str]:
    """The strings of a file that are no docstrings."""
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def test_no_other_module_imports_what_is_private_to_ray() -> None:
    imported = {path: set(modules_of(ast.parse(path.read_text()))) - PUBLIC for path in OUTSIDE}
    assert {str(path): modules for path, modules in imported.items() if modules} == {}


def test_no_other_module_uses_private_attributes_of_rays_objects() -> None:
    own = own_names()
    used = {path: set(private_attributes(ast.parse(path.read_text()))) - own for path in OUTSIDE}
    assert {str(path): names for path, names in used.items() if names} == {}


def test_no_other_module_knows_the_dashboards_own_paths() -> None:
    for path in OUTSIDE:
        for text in texts_of(ast.parse(path.read_text())):
            assert not text.startswith(PATHS) or text.startswith(DOCUMENTED), (path, text)


def test_each_says_in_which_ray_it_was_read_and_is_tried() -> None:
    tried = (ROOT / "tests/ray/test_ray_internals.py").read_text()
    for path in sorted(INTERNALS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert "Ray 2." in (ast.get_docstring(node) or ""), (path.name, node.name)
                assert node.name in tried, (path.name, node.name)
