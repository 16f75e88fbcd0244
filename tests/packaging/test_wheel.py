"""The wheel, built through the sdist as an installer would, holds all of the package and nothing else."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Built(NamedTuple):
    sdist: Path
    wheel: Path


def build(out: Path, *options: str) -> Built:
    """Build the sdist, then the wheel from that sdist."""
    run = subprocess.run(
        [sys.executable, "-m", "build", *options, "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build without isolation: no index is asked, so it takes a second."""
    return build(tmp_path_factory.mktemp("dist"), "--no-isolation")


def modules(*folders: str) -> set[str]:
    """Every Python file under the folders themselves, not behind a link, as a path from the root."""
    return {str(file.relative_to(ROOT)) for folder in folders for file in (ROOT / folder).rglob("*.py")}


def test_wheel_holds_every_module_of_the_one_import_tree(built: Built) -> None:
    names = set(zipfile.ZipFile(built.wheel).namelist())
    wanted = {name.removeprefix("src/") for name in modules("src")}
    wanted |= {f"reknit/{name}" for name in modules("services", "worker")}

    assert "reknit/services/membership/__init__.py" in wanted
    assert wanted <= names
    assert "reknit/py.typed" in names


def test_wheel_holds_real_files_and_one_top_level_package(built: Built) -> None:
    wheel = zipfile.ZipFile(built.wheel)
    links = [info.filename for info in wheel.infolist() if (info.external_attr >> 16) & 0o170000 == 0o120000]

    assert links == []
    assert {name.split("/")[0] for name in wheel.namelist()} == {"reknit", "reknit-0.1.0.dist-info"}
    assert wheel.read("reknit/worker/__init__.py") == (ROOT / "worker" / "__init__.py").read_bytes()


def test_wheel_declares_command_license_and_python(built: Built) -> None:
    wheel = zipfile.ZipFile(built.wheel)
    info = "reknit-0.1.0.dist-info"

    assert "reknit = reknit.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_sdist_holds_what_a_rebuild_and_its_tests_need(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert modules("services", "worker", "tests") <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt"} <= names


def test_installed_wheel_imports_with_the_source_out_of_reach(built: Built, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(built.wheel).extractall(site)
    code = "import reknit.services.monitor as s, reknit.worker.ring as w; print(s.__file__, w.__file__)"

    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert [Path(name).is_relative_to(site) for name in run.stdout.split()] == [True, True]


@pytest.mark.slow
def test_declared_build_requirements_are_enough(built: Built, tmp_path: Path) -> None:
    isolated = build(tmp_path)

    assert sorted(zipfile.ZipFile(isolated.wheel).namelist()) == sorted(zipfile.ZipFile(built.wheel).namelist())
