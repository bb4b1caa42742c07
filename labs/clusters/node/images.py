"""Images without a registry: an archive as `docker save` writes them, from files of this machine."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from labs.clusters.programs import ClusterError, Programs

PAUSE: Final = "local.test/pause:1"
BUSYBOX: Final = "local.test/busybox:1"
LOAD: Final = "local.test/load:1"
APPLETS: Final = ("sh", "sleep", "cat", "dd", "echo", "head", "kill", "nproc", "true", "wget")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
FOLDERS: Final = ("bin", "tmp", "etc", "proc", "sys", "dev")
HERE: Final = Path(__file__).parent


def write_images(programs: Programs, folder: Path) -> None:
    """Write the archives of all images of the node. Raises `ClusterError`."""
    folder.mkdir()
    for name, tag in (("pause", PAUSE), ("load", LOAD)):
        program = _compiled(programs, name, folder / name)
        _write(folder / f"{name}.tar", tag, [f"/bin/{name}"], {f"bin/{name}": program})
    busybox = Path(programs.path("busybox")).read_bytes()
    links = {f"bin/{each}": "busybox" for each in APPLETS}
    _write(folder / "busybox.tar", BUSYBOX, ["/bin/sh"], {"bin/busybox": busybox}, links)


def _compiled(programs: Programs, name: str, into: Path) -> bytes:
    command = [programs.path("gcc"), "-static", "-Os", "-o", str(into), str(HERE / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{name}.c cannot be compiled: {done.stderr.strip()}")
    return into.read_bytes()


def _write(
    archive: Path,
    tag: str,
    entry: Sequence[str],
    programs: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
) -> None:
    layer = _layer(programs, links or {})
    layer_id = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": list(entry), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_id}"]},
            "history": [{"created_by": "parley"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    index = [{"Config": config_name, "RepoTags": [tag], "Layers": [f"{layer_id}/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, f"{layer_id}/layer.tar", layer)
        _add(tar, config_name, config)
        _add(tar, "manifest.json", json.dumps(index).encode())


def _layer(programs: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, content in programs.items():
            _add(tar, name, content, mode=0o755)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
