"""What the tests of tier l1 share: dump_l1, the checkpoints of the goldens, and the manifest."""
import os
import pathlib
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tools" / "golden" / "l1"))

import golden  # noqa: E402
import snapshots  # noqa: E402


@pytest.fixture(scope="session")
def build_folder():
    program = os.environ.get("INGLE_PROGRAM")
    return pathlib.Path(program).resolve().parent if program else TOP / os.environ.get("B", "build")


@pytest.fixture(scope="session")
def dump_l1_program(build_folder):
    program = build_folder / "dump_l1"
    sources = [s for part in ("src", "tools", "tests") for s in (TOP / part).glob("**/dump_l1.c")]
    if not sources and not program.exists():
        pytest.skip("skipped, because this tree has no dump_l1.c: tier l1 cannot be looked into")
    assert program.exists(), f"{sources[0]} is there and {program} is not: make {program.name}"
    return program


@pytest.fixture(scope="session")
def dump_l1_can(dump_l1_program):
    """f(option): skips a test when dump_l1 does not have it."""
    text = subprocess.run([dump_l1_program, "--help"], capture_output=True, text=True)

    def can(option):
        if option not in text.stdout + text.stderr:
            pytest.skip(f"skipped, because this dump_l1 has no {option}")

    return can


@pytest.fixture(scope="session")
def dump_l1(dump_l1_program):
    """f(folder, model, ids, prefill, greedy, **options) -> what ingle computed, a golden.Run; folder is for its files."""

    def run(folder, model, ids, prefill, greedy, **options):
        tokens = folder / "ids"
        tokens.write_text(" ".join(map(str, ids)))
        more = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        done = subprocess.run([dump_l1_program, model, "--tokens", tokens, "--prefill", str(prefill), "--greedy", str(greedy),
                               *more], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"dump_l1 {model}: exit code {done.returncode}: {done.stderr[-2000:]}"
        return golden.parse(done.stdout)

    return run


@pytest.fixture(scope="session")
def checkpoint(build_folder):
    """f(name, sha256) -> the folder of a checkpoint with these hashes, made when it is not there."""
    import shutil

    def hashes(folder):
        return dict(config=golden.sha256(folder / "config.json"), weights=golden.sha256(folder / "model.safetensors"))

    def get(name, sha256):
        model = name.rsplit("-", 1)[0]
        if model in snapshots.REAL:
            try:
                snapshots.gguf_of(model)
            except FileNotFoundError as gone:
                pytest.skip(f"skipped, because {gone}")
        folder = snapshots.make(name, build_folder / "l1")
        if hashes(folder) != sha256 and folder.is_relative_to(build_folder):
            shutil.rmtree(folder)  # of an older recipe
            folder = snapshots.make(name, build_folder / "l1")
        assert hashes(folder) == sha256, f"{name}: not the checkpoint that the golden is of"
        return folder

    return get


@pytest.fixture(scope="session")
def manifest():
    return golden.manifest()
