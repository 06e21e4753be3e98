"""Build Kubernetes' own API server for tests of `make soak`; once, into the environment.

    .venv/bin/python scripts/kube_apiserver.py

Needs Go and its module proxy; takes 10 to 20 minutes on 2 cores and 3 GB of Go's caches, which may
go afterwards. The program is `tests/support/kube/apiserver/main.go`: kube-apiserver, etcd and the
Job controller in one process.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MINOR = "35.4"
"""Of Kubernetes 1 and of the libraries of version 0 that belong to it."""
PROGRAM = Path(sys.prefix) / "servers" / "kube-apiserver"
SOURCE = Path(__file__).parents[1] / "tests" / "support" / "kube" / "apiserver" / "main.go"


def module(given: str) -> str:
    """Return a go.mod for the program, from that of Kubernetes.

    Kubernetes requires its own libraries at version 0.0.0, which stands for folders beside it; in
    their place stand the published ones.
    """
    beside = sorted(set(re.findall(r"^\s*(k8s\.io/\S+) v0\.0\.0$", given, re.M)))
    kept = re.sub(r"^\s*k8s\.io/\S+ => \./.*\n", "", given, flags=re.M)
    lines = [re.sub(r"^module .*$", "module tests", kept, flags=re.M)]
    lines += [f"require k8s.io/kubernetes v1.{MINOR}"]
    lines += [f"replace {name} => {name} v0.{MINOR}" for name in beside]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Build what is missing."""
    if PROGRAM.exists():
        return 0
    sys.stdout.write(f"setup: building {PROGRAM.name}, 10 to 20 minutes\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "go.mod").write_text("module tests\n")
        download = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v1.{MINOR}"]
        said = subprocess.run(download, cwd=folder, check=True, capture_output=True, text=True)
        kubernetes = Path(json.loads(said.stdout)["Dir"])
        (folder / "go.mod").write_text(module((kubernetes / "go.mod").read_text()))
        (folder / "go.sum").write_text((kubernetes / "go.sum").read_text())
        shutil.copy(SOURCE, folder)
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        build = ["go", "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(PROGRAM), "."]
        subprocess.run(build, cwd=folder, check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
