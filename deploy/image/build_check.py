"""Builds the images without Docker, and checks that they work: python deploy/image/build_check.py [BUILDAH_OPTION ...]

Needs root, and Debian's packages buildah, debootstrap and runc. Images are built by chroot, which needs no rights that
a container lacks. Containers are run by runc in their own network, as in docker-compose.yml: with a read-only root, no
capabilities, no new privileges, limits on memory and processes, and a filter of system calls.

The base image is made from Debian's packages, or named by the variable BASE_IMAGE. Options are passed to `buildah bud`,
for example `--volume /etc/pip.conf:/etc/pip.conf:ro` for a mirror of PyPI. The variables DRAFTWIRE_VERSION and
DRAFTWIRE_REVISION say what is built. Builds are kept, so that a second run builds
only what has changed; `buildah rmi --all` frees the space.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from container import Container, Limits, buildah

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("verifier", "drafter", "gateway", "models")
USER = 10001
MIRROR = "http://deb.debian.org/debian"
RELEASE = "bookworm"
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VERSION = os.environ.get("DRAFTWIRE_VERSION", "0.1.0.dev1+check")
REVISION = os.environ.get("DRAFTWIRE_REVISION", "0" * 40)
"""Version and commit for the build arguments, as the images' build context has no git."""
START_SECONDS = 300.0
POLL_SECONDS = 0.5
MEGABYTE = 1e6

LIMITS = {
    "verifier": Limits(memory_mebibytes=4096, processes=512),
    "drafter": Limits(memory_mebibytes=2048, processes=512),
    "gateway": Limits(memory_mebibytes=1024, processes=256),
    "models": Limits(memory_mebibytes=64, processes=16),
}
"""Limits of docker-compose.yml; for the models, those of the manifests."""

ENVIRONMENTS = {
    "verifier": {"DRAFTWIRE_MODEL": "/models/target", "DRAFTWIRE_METRICS_LISTEN": "0.0.0.0:9090"},
    "drafter": {
        "DRAFTWIRE_MODEL": "/models/draft",
        "DRAFTWIRE_METRICS_LISTEN": "0.0.0.0:9091",
        "DRAFTWIRE_ANNOUNCE_TO": "127.0.0.1:50051",
        "DRAFTWIRE_ADVERTISE": "127.0.0.1:50052",
        "DRAFTWIRE_NAME": "drafter",
    },
    "gateway": {"DRAFTWIRE_GATEWAY_VERIFIER": "127.0.0.1:50051", "DRAFTWIRE_GATEWAY_INSECURE": "true"},
}
"""Environment variables of each program; all share one network."""
SERVICE = {"DRAFTWIRE_INSECURE": "true", "DRAFTWIRE_THREADS": "1", "HF_HUB_OFFLINE": "1"}

LOOK_INSIDE = """
import importlib.util, os, shutil
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
system = ("/proc", "/dev", "/sys")
print("user", os.getuid(), os.getgid(), os.getgroups())
print("rights", {name: status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")})
print("tools", [tool for tool in ("gcc", "cc", "make") if shutil.which(tool)])
print("pip", importlib.util.find_spec("pip") is not None)
print("torch", importlib.util.find_spec("torch") is not None)
places = [place for place, _, _ in os.walk("/") if os.access(place, os.W_OK) and not place.startswith(system)]
print("writable", sorted(place for place in places if os.path.dirname(place) not in places))
"""

COMPLETE = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def main(options: list[str]) -> None:
    """Builds the images, inspects them, and runs their programs together."""
    os.environ["BUILDAH_ISOLATION"] = "chroot"
    base = base_image()
    for target in TARGETS:
        section(f"build {target}")
        arguments = {"PYTHON_IMAGE": base, "DRAFTWIRE_VERSION": VERSION, "DRAFTWIRE_REVISION": REVISION}
        names = ["--target", target, "--tag", image(target)]
        names += [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
        forget(target)
        command = ["buildah", "bud", "--layers", "--format", "docker", *names, *options, str(ROOT)]
        subprocess.run(command, check=True)
    section("sizes, without compression")
    for name in (base, *map(image, TARGETS)):
        print(f"{name}: {size(name) / MEGABYTE:.0f} MB", flush=True)
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        containers = {}
        for target in TARGETS:
            (place / target).mkdir()
            containers[target] = Container(image(target), place / target, LIMITS[target])
            ends.callback(containers[target].remove)
        section("labels")
        for target, container in containers.items():
            check_labels(target, container)
        section("models")
        volume = place / "volume"
        volume.mkdir()
        os.chown(volume, USER, USER)
        copy_models(containers.pop("models"), volume)
        section("together")
        start(containers, volume)
        for target, container in containers.items():
            wait_healthy(target, container)
        complete(containers["gateway"])
        for target, container in containers.items():
            section(f"inside {target}")
            look_inside(target, container)
        section("the end")
        for target in ("gateway", "drafter", "verifier"):
            check(containers[target].stop() == 0, f"{target} ends with status 0 on its image's signal")


def section(title: str) -> None:
    """Begins a section of the report."""
    print(f"\n==== {title} ====", flush=True)


def check(holds: bool, what: str) -> None:
    """Reports a check; ends the script if it failed."""
    print(f"{'ok' if holds else 'WRONG'}: {what}", flush=True)
    if not holds:
        sys.exit(1)


def image(target: str) -> str:
    """Returns the name of a target's image."""
    return f"localhost/draftwire-{target}:check"


def size(name: str) -> int:
    """Returns the bytes of an image's layers."""
    (found,) = json.loads(buildah("images", "--json", "--no-trunc", name))
    digits, unit = found["size"].split()
    return int(float(digits) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit])


def base_image() -> str:
    """Returns the name of the base image, which is made if there is none."""
    if given := os.environ.get("BASE_IMAGE"):
        return given
    name = f"localhost/draftwire-base:{RELEASE}"
    known = subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True, check=False)
    if known.returncode == 0:
        return name
    section("a base image of Debian's packages")
    with tempfile.TemporaryDirectory() as place:
        tree = f"{place}/root"
        packages = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(["debootstrap", "--variant=minbase", packages, RELEASE, tree, MIRROR], check=True)
        subprocess.run(["chroot", tree, "apt-get", "clean"], check=True)
        container = buildah("from", "scratch")
        subprocess.run(["cp", "-a", f"{tree}/.", buildah("mount", container)], check=True)
    buildah("umount", container)
    buildah("config", "--env", f"PATH={PATHS}", container)
    buildah("commit", "--quiet", "--rm", container, name)
    return name


def bound(source: Path, *options: str) -> dict[str, Any]:
    """Returns the bind mount of the models' directory."""
    return {"destination": "/models", "type": "bind", "source": str(source), "options": ["bind", *options]}


def forget(target: str) -> None:
    """Removes earlier images of a target, but not the layers that others have in common with it: Debian's buildah
    would take the last layer from its cache, with the labels of that version and revision."""
    title = f"label=org.opencontainers.image.title=draftwire-{target}"
    if earlier := buildah("images", "--quiet", "--filter", title).split():
        buildah("rmi", "--force", *set(earlier))


def check_labels(target: str, container: Container) -> None:
    """Checks the labels that identify an image."""
    labels = container.settings["Labels"]
    told = {name: labels[f"org.opencontainers.image.{name}"] for name in ("title", "version", "revision")}
    check(told == {"title": f"draftwire-{target}", "version": VERSION, "revision": REVISION}, f"{target}: {told}")


def copy_models(container: Container, volume: Path) -> None:
    """Copies the bundled models to a volume, as an init container does."""
    container.start({}, [bound(volume, "rw")])
    check(container.wait() == 0, f"the models are copied {container.log.read_text()}".rstrip())
    names = sorted(path.parent.name for path in volume.glob("*/config.json"))
    check(names == ["draft", "draft-early", "target"], f"they are {', '.join(names)}")


def start(containers: dict[str, Container], volume: Path) -> None:
    """Starts the programs, all of them on the verifier's network."""
    network = None
    for target, container in containers.items():
        told = ENVIRONMENTS[target] | ({} if target == "gateway" else SERVICE)
        container.start(told, [] if target == "gateway" else [bound(volume, "ro")], network)
        network = network or container.pid()


def wait_healthy(target: str, container: Container) -> None:
    """Waits until the image's health check finds the program healthy."""
    _, *command = container.settings["Healthcheck"]["Test"]
    deadline = time.monotonic() + START_SECONDS
    while (probe := container.run(*command)).returncode:
        if not container.runs() or time.monotonic() > deadline:
            print(container.log.read_text(), file=sys.stderr)
            check(False, f"{target}: {probe.stderr.strip()}")
        time.sleep(POLL_SECONDS)
    check(True, f"{target}: {probe.stdout.strip()}")


def complete(gateway: Container) -> None:
    """Generates text through the gateway, as soon as the drafter has announced itself."""
    body = json.dumps({"prompt": "def fib(n):", "max_tokens": 16, "temperature": 0})
    deadline = time.monotonic() + START_SECONDS
    while True:
        asked = gateway.run("python", "-c", COMPLETE, "http://127.0.0.1:8000/v1/completions", body)
        if asked.returncode:
            check(False, f"the gateway: {asked.stderr.strip()}")
        answer = json.loads(asked.stdout)
        if answer["speculation"]["draft_tokens"] > 0 or time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    check(answer["usage"]["completion_tokens"] > 0, f"a completion: {answer['choices'][0]['text']!r}")
    check(answer["speculation"]["draft_tokens"] > 0, f"speculation: {answer['speculation']}")


def look_inside(target: str, container: Container) -> None:
    """Checks what an image contains, what it lacks, and what its user may do."""
    seen = container.run("python", "-c", LOOK_INSIDE)
    check(seen.returncode == 0, seen.stderr.strip() or "Python runs")
    found = dict(line.split(" ", 1) for line in seen.stdout.splitlines())
    check(found["user"] in (f"{USER} {USER} []", f"{USER} {USER} [{USER}]"), f"it runs as {found['user']}")
    none = {"CapEff": "0" * 16, "CapPrm": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    version = container.run("draftwire", "--version").stdout.strip()
    check(version == VERSION, f"its version: {version}")
    check(found["rights"] == str(none), f"its rights: {found['rights']}")
    check(found["tools"] == "[]", f"build tools: {found['tools']}")
    check(found["pip"] == "False", "the environment has no pip")
    check(found["torch"] == str(target != "gateway"), f"torch: {found['torch']}")
    places = ["/tmp"] if target == "gateway" else ["/tmp", "/var/cache/huggingface", "/var/cache/triton"]
    check(found["writable"] == str(places), f"it may write to {found['writable']}")


if __name__ == "__main__":
    main(sys.argv[1:])
