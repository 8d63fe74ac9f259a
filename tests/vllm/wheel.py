#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What users of quire-vllm get.

    tests/vllm/wheel.py types     mypy --strict has nothing to say of the package
    tests/vllm/wheel.py engine    the wheels of quire and quire-vllm, installed beside vLLM 0.32.0, serve a policy in an engine without this source

Exit status 77: vLLM or the tools (scripts/python-venv --tools) are not to be had here.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import Checks
from run import HERE, ROOT, made, settings

check = Checks()

# In the Python of vLLM. The only entries of its path besides vLLM are the folder of the wheels and the models of these tests.
INSIDE = """
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    from models import answers, engine, make, prompt
    import quire
    import quire_vllm
    from quire_vllm import _native

    for module in (quire, quire_vllm):
        assert Path(sys.argv[1]) in Path(module.__file__).parents, module.__file__
    assert not any("/plugins/vllm" in path for path in sys.path), sys.path
    with tempfile.TemporaryDirectory() as folder:
        model = make(folder, "llama")
        llm = engine(model, "r8")
        print("blocks", llm.llm_engine.vllm_config.cache_config.num_gpu_blocks)
        tokens = answers(llm, [prompt(300)], 8)[0]
        assert len(tokens) == 8, tokens
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libquire" in line]
    assert loaded and all(Path(path).is_relative_to(sys.argv[1]) for path in loaded), sorted(set(loaded))
    print("answered")
"""


def types():
    mypy = Path(made("python-venv", "--tools")) / "mypy"
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run([mypy, "--config-file", ROOT / "plugins/vllm/pyproject.toml", "--strict", "--cache-dir", cache, "-p", "quire_vllm"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
                              env={**os.environ, "MYPYPATH": f"{ROOT / 'plugins/vllm'}{os.pathsep}{ROOT / 'python'}"})
    check(done.returncode == 0, "types", done.stdout)


def installed(python, folder):
    """The wheels of this source, unpacked into a folder by pip."""
    build = Path(made("python-venv", "--tools")) / "python"
    wheels = Path(folder, "wheels")
    subprocess.run([build, "-m", "build", "--no-isolation", "--wheel", "--outdir", wheels, "-C", f"build-dir={folder}/build", ROOT / "plugins/vllm"],
                   check=True, stdout=subprocess.DEVNULL)
    dist, = Path(made("python-venv", "--dist")).glob("*.whl")
    plugin, = wheels.glob("quire_vllm-*.whl")
    site = Path(folder, "site")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--target", site, dist, plugin], check=True)
    return site


def engine():
    python = made("get-vllm")
    with tempfile.TemporaryDirectory(prefix="quire-vllm-wheel-") as folder:
        site = installed(python, folder)
        script = Path(folder, "inside.py")
        script.write_text(INSIDE)
        env = settings({key: value for key, value in os.environ.items() if not key.startswith("QUIRE_")}, [site, HERE])
        done = subprocess.run([python, script, site], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(done.returncode == 0 and "answered" in done.stdout, "an engine answers with the wheels alone", done.stdout[-2000:])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"types": types, "engine": engine}[name]()
    sys.exit(check.end())
