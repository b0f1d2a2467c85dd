"""What someone gets who installs kvwatch: the wheel, built and opened."""

import gzip
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

import kvwatch

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = "kvwatch/data/runbooks"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    with zipfile.ZipFile(built) as opened:
        yield opened


def test_holds_every_committed_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "kvwatch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    sources = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    runbooks = {f"{RUNBOOKS}/{file.name}" for file in (ROOT / "alerts" / "runbooks").iterdir()}
    assert packed == sources | runbooks


def test_brings_the_runbooks_that_are_rendered(wheel: zipfile.ZipFile) -> None:
    """In the tree they are a link, so that there is one of each."""
    assert (ROOT / RUNBOOKS).is_symlink()
    rendered = (ROOT / "alerts" / "runbooks" / "kvwatchkvthrashing.md").read_bytes()
    assert wheel.read(f"{RUNBOOKS}/kvwatchkvthrashing.md") == rendered


def test_brings_the_recording_of_the_demo(wheel: zipfile.ZipFile) -> None:
    lines = gzip.decompress(wheel.read("kvwatch/data/demo.jsonl.gz")).splitlines()
    samples = [json.loads(line) for line in lines]
    assert samples[-1]["t"] - samples[0]["t"] > 90
    assert all(sample["status"] == 200 for sample in samples)
    assert "kvwatch/py.typed" in wheel.namelist()


def test_says_what_it_is_and_needs(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "kvwatch"
    assert metadata["Version"] == kvwatch.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    entries = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "kvwatch = kvwatch.__main__:main" in entries
    needed = [value for value in metadata.get_all("Requires-Dist", []) if "extra ==" not in value]
    assert not [value for value in needed if ">=" not in value], "a dependency has no lower bound"
