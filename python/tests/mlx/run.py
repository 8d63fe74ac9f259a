#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a file in the Python that has mlx-lm (scripts/get-mlx-lm), with this tree's package and library.

    python/tests/mlx/run.py FILE [ARGUMENT...]      a file of this folder, or a path

Environment: QUIRE_LIBRARY, the folder of libquire.so.0 (build/release/lib); QUIRE_PYTHON, another Python that has mlx-lm, with the package
installed. Exit status 77: there is no mlx-lm here.
"""
import glob
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def python():
    if os.environ.get("QUIRE_PYTHON"):
        return os.environ["QUIRE_PYTHON"]
    done = subprocess.run([ROOT / "scripts/get-mlx-lm", "0.32.2"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print("skipped: no mlx-lm 0.32.2")
        sys.exit(77)
    return done.stdout.strip()


def faster_products(interpreter, env):
    """See blas.c. Without a compiler or numpy's OpenBLAS the tests take longer."""
    found = glob.glob(str(Path(interpreter).parents[1] / "lib/python3*/site-packages/numpy.libs/libscipy_openblas64_*"))
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    library = Path(os.environ.get("QUIRE_CACHE") or Path(base) / "quire") / "mlx-blas.so"
    if not found:
        return
    if not library.exists() or library.stat().st_mtime < (HERE / "blas.c").stat().st_mtime:
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "blas.so"
            made = subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", part, HERE / "blas.c", "-ldl"])
            if made.returncode:
                return
            library.parent.mkdir(parents=True, exist_ok=True)
            beside = library.with_suffix(f".{os.getpid()}")
            beside.write_bytes(part.read_bytes())
            beside.replace(library)
    # More threads of it would fight with Quire's for the same processors.
    env.update(QUIRE_BLAS=found[0], LD_PRELOAD=str(library), OPENBLAS_NUM_THREADS="1")


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    interpreter, env = python(), dict(os.environ)
    if not os.environ.get("QUIRE_PYTHON"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), env.get("PYTHONPATH")]))
    env.setdefault("QUIRE_LIBRARY", str(ROOT / "build/release/lib"))
    if os.environ.get("QUIRE_PLAIN_BLAS") != "1":
        faster_products(interpreter, env)
    file = HERE / sys.argv[1] if (HERE / sys.argv[1]).exists() else Path(sys.argv[1])
    os.execve(interpreter, [interpreter, str(file), *sys.argv[2:]], env)


if __name__ == "__main__":
    sys.exit(main())
