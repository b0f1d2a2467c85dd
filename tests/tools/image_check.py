"""Runs the Dockerfile's steps without a container engine, and the image's command as the manifests run it.

The builder's steps run as they stand in the Dockerfile, in an overlay over this machine's files: this machine is in
place of the base image, and the Python and pip are its own. What they made is copied into a second overlay, which is
made read-only, and the image's command runs there: as the user, without capabilities, with the environment and the
memory that the Dockerfile and the manifests say, in a network of its own where nothing is but a recorded vLLM.

Needs root on Linux. Leaves nothing behind: all that is written is in memory and goes with the namespaces.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.dockerfile import Stage, parse  # noqa: E402
from tests.support.waiting import until  # noqa: E402

SIDECAR = ROOT / "deploy" / "kubernetes" / "components" / "sidecar" / "sidecar.yaml"
MADE = Path("opt/kvwatch")
WATCHED_S = 20.0
"""Seconds of watching before the memory is read."""
_UP = struct.pack("16sh", b"lo", 1)  # struct ifreq: IFF_UP
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS


def main() -> int:
    """Both steps, each in namespaces of its own; only the second is without a network, since building fetches."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("setpriv")):
        print("image-check: needs root on Linux, with unshare and setpriv (util-linux)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kvwatch-image-") as folder:
        for step, spaces in (("build", ["--mount"]), ("run", ["--mount-proc", "--net", "--pid", "--fork"])):
            began = time.monotonic()
            words = ["unshare", *spaces, sys.executable, __file__, step, folder]
            if subprocess.run(words, check=False).returncode:
                print(f"image-check: {step} failed", file=sys.stderr)
                return 1
            told(f"{step} took", f"{time.monotonic() - began:.1f} s")
    return 0


def told(what: str, value: str) -> None:
    print(f"{what:<26}{value}", flush=True)


def build(builder: Stage, folder: Path) -> bool:
    """The builder's steps, as they stand; what they made goes to `folder`."""
    with machine(folder / "builder") as root:
        context(root / builder.one("WORKDIR").lstrip("/"))
        # A Python that is nobody's: in the base image pip may install into the one that is there.
        subprocess.run([sys.executable, "-m", "venv", str(root / "python")], check=True)
        environment = clean() | builder.environment() | {"PATH": f"/python/bin:{os.environ['PATH']}"}
        steps = f"cd {builder.one('WORKDIR')} && {builder.one('RUN')}"
        words = ["chroot", str(root), "sh", "-ec", steps]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            return False
        (wheel,) = (root / "wheels").iterdir()
        told("wheel", wheel.name)
        shutil.copytree(root / MADE, folder / MADE, symlinks=True)
        size = sum(path.stat().st_size for path in (folder / MADE).rglob("*") if path.is_file())
        told("environment", f"{size / 2**20:.1f} MiB")
    return True


def run(final: Stage, folder: Path) -> bool:
    """The image's command, as the manifests run it."""
    kvwatch = yaml.safe_load(SIDECAR.read_text(encoding="utf-8"))["spec"]["template"]["spec"][
        "initContainers"
    ][0]
    limit = kvwatch["resources"]["limits"]["memory"]
    user, group = final.one("USER").split(":")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, _UP)
    with machine(folder / "image") as root, contextlib.ExitStack() as running:
        shutil.rmtree(root / MADE, ignore_errors=True)
        shutil.copytree(folder / MADE, root / MADE, symlinks=True)
        for above in Path(sys.executable).resolve().parents:  # here the interpreter may be in root's home
            (root / above.relative_to("/")).chmod(0o755)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
        environment = clean() | final.environment() | {"KVWATCH_TARGETS": "pod-0=http://localhost:8000"}
        environment["PATH"] = environment["PATH"].replace("$PATH", os.environ["PATH"])
        inside = ["chroot", str(root), "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        inside += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]

        def start(words: list[str], within: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([*inside, *words], env=environment, cwd="/", preexec_fn=within)  # noqa: PLW1509
            running.callback(process.kill)
            return process

        def ended(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*inside, *words], env=environment, capture_output=True, text=True, check=False
            )

        start(["kvwatch", "demo", "--server-only"])
        until("recorded vLLM", lambda: page("http://127.0.0.1:8000/metrics"), 20)
        how, within = running.enter_context(limited(limit))
        began = time.monotonic()
        process = start([*json.loads(final.one("ENTRYPOINT")), *json.loads(final.one("CMD"))], within)
        until("/metrics of kvwatch", lambda: page("http://127.0.0.1:9477/metrics"), 20, every_s=0.02)
        told("first /metrics after", f"{time.monotonic() - began:.2f} s")
        time.sleep(WATCHED_S)
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        )
        told("user; capabilities", f"{status['Uid'].split()[0]}; {status['CapEff'].strip()}")
        told("resident; highest", f"{status['VmRSS'].strip()}; {status['VmHWM'].strip()}")
        told("limit", f"{limit}, by {how}{within_group(process.pid)}")
        healthy = ended(*json.loads(final.one("HEALTHCHECK").partition("CMD ")[2]))
        told("health check", healthy.stdout.strip())
        written = ended("sh", "-c", "echo > /tmp/file")
        told("writing a file", written.stderr.strip() or "possible")
        watched = 'kvwatch_up{target="pod-0"} 1' in page("http://127.0.0.1:9477/metrics")
        told("sees the recorded vLLM", str(watched))
        process.terminate()
        told("exit code of SIGTERM", str(process.wait(10)))
        return watched and process.returncode == healthy.returncode == 0 and written.returncode != 0


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Path]:
    """This machine's files, with whatever is written kept in memory aside."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    upper, work, root = folder / "upper", folder / "work", folder / "root"
    for one in (upper, work, root):
        one.mkdir()
    layers = f"lowerdir=/,upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(root)], check=True)
    for name in ("proc", "dev"):
        subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def limited(limit: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """How a process is held below `limit` (as 192Mi), and what it does before it begins."""
    amount = int(limit.removesuffix("Mi")) << 20
    for how, parent, file in (
        ("cgroup v2", "/sys/fs/cgroup", "memory.max"),
        ("cgroup v1", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ):
        group = Path(parent) / f"kvwatch-image-check-{time.time_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():  # else it is a folder like any other
                (group / file).write_text(str(amount))
                yield how, partial(enter, group / "cgroup.procs")
                return
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    yield "RLIMIT_DATA", lambda: resource.setrlimit(resource.RLIMIT_DATA, (amount, amount))


def enter(tasks: Path) -> None:
    """Puts the process that calls it into a group."""
    tasks.write_text("0")


def within_group(pid: int) -> str:
    """The memory group that a process is in, as the kernel says."""
    groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    return next((f" ({line})" for line in groups if "kvwatch-image-check" in line), "")


def context(folder: Path) -> None:
    """What .dockerignore lets through to the engine."""
    for rule in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if rule.startswith("!"):
            source, copy = ROOT / rule[1:], folder / rule[1:]
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py[cod]"))
            else:
                shutil.copy(source, copy)


def clean() -> dict[str, str]:
    """This machine's environment without what would not be there in an image."""
    foreign = ("KVWATCH_", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def page(url: str) -> str:
    """A page; empty while there is none."""
    try:
        return httpx.get(url, trust_env=False, timeout=2).text
    except httpx.HTTPError:
        return ""


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    stages = parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    done = (
        build(stages[0], Path(sys.argv[2])) if sys.argv[1] == "build" else run(stages[-1], Path(sys.argv[2]))
    )
    sys.exit(0 if done else 1)
