#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a file in a Python that has mlx-lm 0.32.2, with products that are faster than those of MLX's wheel (blas.c).

    python/tests/mlx/run.py [--vlm] [--wheel] FILE [ARGUMENT...]      a file of this folder, or a path; @model stands for scripts/make-mlx-model

With --vlm it is a Python that has mlx-vlm 0.7.10 and not mlx-lm, and a file of ../mlx_vlm. With --wheel the package is the wheel of this
source (scripts/python-venv), else the source itself with the library in QUIRE_LIBRARY (build/release/lib). With QUIRE_PLAIN_BLAS=1 MLX is as
its wheel is. Exit status 77: mlx-lm, mlx-vlm, hypothesis (for fuzz_*.py) or the model is not to be had here.
"""
import glob
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def made(script, *arguments):
    """What a script that makes something prints."""
    done = subprocess.run([ROOT / "scripts" / script, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"skipped: scripts/{script} ends with {done.returncode}")
        sys.exit(77 if done.returncode == 3 else 1)
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
            done = subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", part, HERE / "blas.c", "-ldl"])
            if done.returncode:
                return
            library.parent.mkdir(parents=True, exist_ok=True)
            beside = library.with_suffix(f".{os.getpid()}")
            beside.write_bytes(part.read_bytes())
            beside.replace(library)
    # More threads of it would fight with Quire's for the same processors.
    env.update(QUIRE_BLAS=found[0], LD_PRELOAD=str(library), OPENBLAS_NUM_THREADS="1")


def main():
    arguments = sys.argv[1:]
    vlm = arguments[:1] == ["--vlm"]
    arguments = arguments[vlm:]
    wheel = arguments[:1] == ["--wheel"]
    arguments = arguments[wheel:]
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    env = dict(os.environ)
    if wheel:
        interpreter = made("python-venv", "--mlx-vlm" if vlm else "--mlx")
        for name in ("PYTHONPATH", "QUIRE_LIBRARY"):  # what is tested is what is installed
            env.pop(name, None)
    else:
        interpreter = made("get-mlx-vlm") if vlm else made("get-mlx-lm", "0.32.2")
        env["PYTHONPATH"] = str(ROOT / "python")
        env.setdefault("QUIRE_LIBRARY", str(ROOT / "build/release/lib"))
    if os.environ.get("QUIRE_PLAIN_BLAS") != "1":
        faster_products(interpreter, env)
    folder = HERE.parent / "mlx_vlm" if vlm else HERE
    file = folder / arguments[0] if (folder / arguments[0]).exists() else Path(arguments[0])
    if file.name.startswith("fuzz_"):
        env["QUIRE_HYPOTHESIS"] = made("python-venv", "--hypothesis")
    rest = [made("make-mlx-model") if a == "@model" else a for a in arguments[1:]]
    sys.stdout.flush()
    os.execve(interpreter, [interpreter, str(file), *rest], env)


if __name__ == "__main__":
    sys.exit(main())
