#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Commands that pages, results and scripts/nightly name: their files exist, and they take the arguments. Nothing is measured.

A command of a script that has an ArgumentParser is parsed by it, so that options, choices and types count. Of others, each word that begins
with -- must stand in the source, of `quire` in its help. Files that are named together with others run these, as tests/vllm/run.py does.
And mypy finds no name, attribute or parameter in scripts/, eval/ and tests/ that is not there: QUIRE_OFFLINE=1 and no tools of
scripts/python-venv: exit status 77. Environment: QUIRE_TOOL, the command quire.
"""
import argparse
import ast
import contextlib
import inspect
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import unittest
from functools import lru_cache
from pathlib import Path

from scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
TOOL = Path(os.environ.get("QUIRE_TOOL") or ROOT / "build/release/bin/quire")
PLACES = ("", "tests/vllm", "python/tests/mlx", "python/tests/mlx_vlm", "python/tests")
PROGRAM = re.compile(r"(?:scripts|eval|tests|python/tests)/[\w./-]*\w|build/release/bin/\w+|quire")
# Of earlier versions: what was true then.
HISTORY = ("docs/releases/", "docs/adr/")


# --- commands, and where they stand ------------------------------------------------------------------

def pages():
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "eval").rglob("*.md")]
    return [p for p in sorted(found) if p.name != "CHANGELOG.md" and not str(p.relative_to(ROOT)).startswith(HISTORY)]


def spans(text):
    """Code of a page: lines of blocks, and what stands in backquotes, which may go on in the next line."""
    blocks = r"^```\w*[^\n]*\n(.*?)^```$"
    for block in re.findall(blocks, text, re.M | re.S):
        yield from block.replace("\\\n", " ").splitlines()
    for span in re.findall(r"`([^`]+)`", re.sub(blocks, "", text, flags=re.M | re.S)):
        yield span.replace("\\|", "|").replace("\n", " ")


def simple(text):
    """The words of each program of this project in a line."""
    text = re.sub(r"<[^<>]*>|\"?\$\(.*?\)\"?|\$\w+", "X", text.replace("...", ""))
    for part in re.split(r"&&|;|\|\|?|>", text):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            continue
        while words and (re.fullmatch(r"\w+=\S*", words[0]) or words[0] in ("python3", "chrt", "taskset", "nice") or
                         (words[0].startswith("-") or words[0][:1].isdigit())):
            words = words[1:]
        if words and PROGRAM.fullmatch(words[0]):
            yield words


def commands():
    """(where, words)"""
    for page in pages():
        for span in spans(page.read_text()):
            yield from ((str(page.relative_to(ROOT)), words) for words in simple(span))
    for path in sorted([*(ROOT / "docs").rglob("*.json"), *(ROOT / "docs").rglob("*.jsonl"), *(ROOT / "eval/results").rglob("*.jsonl")]):
        for told in set(re.findall(r'"command": ("(?:[^"\\]|\\.)*")', path.read_text())):
            yield from ((str(path.relative_to(ROOT)), words) for words in simple(json.loads(told)))
    for name, (command, _) in loaded("nightly").TESTS.items():
        yield from ((f"nightly {name}", words) for words in simple(command.format(seed="1")))
    for script in sorted((ROOT / "scripts").iterdir()):  # what it says about itself
        if script.is_file():
            text = re.sub(r"\n#? +(?=\[-)", " ", script.read_text())
            for line in re.findall(rf"^(?:#|) *(scripts/{script.name}(?: .*)?)$", text, re.M):
                line = re.sub(r"\|[^\s\]]+", "", re.split(r"  +", line)[0]).replace("[", " ").replace("]", " ")  # of A|B the first
                yield from ((f"scripts/{script.name} itself", words) for words in simple(line))


# --- checks ------------------------------------------------------------------------------------------

def find(word):
    return next((ROOT / place / word for place in PLACES if (ROOT / place / word).is_file()), None)


@lru_cache(maxsize=None)
def strings(path):
    """What can be an option in a file: of Python its constants without documentation, of others lines without comments."""
    text = path.read_text()
    if path.suffix != ".py" and "python3" not in text.split("\n", 1)[0]:
        return re.sub(r"^\s*#.*", "", text, flags=re.M)
    tree = ast.parse(text)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return " ".join(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told)


@lru_cache(maxsize=None)
def runs(path):
    """It and the files that a shell script runs, among them those whose names begin with its own. tests/llama/kit.py reads the arguments of those that import it."""
    text, found = path.read_text(), [path]
    if path.suffix != ".py" and "bash" in text.split("\n", 1)[0]:
        found += [ROOT / "scripts" / name for name in set(re.findall(r"[\w-]+", strings(path))) if (ROOT / "scripts" / name).is_file() and name != path.name]
        found += path.parent.glob(path.name + "-*")
        found += [file for name in re.findall(r"[\w./]*\w\.py", strings(path)) if (file := find(name.lstrip("./")))]
    return found + [ROOT / "tests/llama/kit.py"] * any(re.search(r"import .*\bkit\b", file.read_text()) for file in found if file.suffix == ".py")


def is_program(path):
    return path.is_file() and (path.suffix == ".py" or path.read_bytes().startswith(b"#!"))


class Parsed(Exception):
    pass


@contextlib.contextmanager
def only_parsing(words):
    """Whoever parses its arguments ends."""
    parse, argv, path = argparse.ArgumentParser.parse_args, sys.argv, list(sys.path)

    def parsed(self, *args, **named):
        parse(self, *args, **named)
        raise Parsed

    argparse.ArgumentParser.parse_args, sys.argv = parsed, words
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_args, sys.argv, sys.path[:] = parse, argv, path
        sys.modules.pop("run", None)  # of several folders


def parser_says(path, words):
    """Why the parser of a file refuses these words; "" if it takes them, None if there is none or if the file needs packages."""
    said = io.StringIO()
    with only_parsing([str(path), *words]), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        sys.path.insert(0, str(path.parent))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Parsed:
            return ""
        except ImportError as missing:
            return None if (missing.name or "").split(".")[0] in ("mlx", "mlx_lm", "mlx_vlm", "numpy", "vllm", "torch", "gguf", "quire", "transformers") else str(missing)
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
    return None


def numbered(words):
    """N, SECONDS and such stand for a number."""
    return ["1" if re.fullmatch(r"[A-Z][A-Z_]*", word) else word for word in words]


@lru_cache(maxsize=None)
def help_of(*words):
    return subprocess.run([TOOL, *words, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def of_quire(words):
    """What is wrong with the words after `quire`."""
    words = words[:words.index("--")] if "--" in words else words
    if not words or not re.fullmatch(r"[a-z]+", words[0]):
        return
    deep = words[:2] if words[0] == "store" and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]) and not words[1].startswith("-") else words[:1]
    text = help_of(*deep)
    if "usage: quire" not in text:
        yield f"there is no quire {' '.join(deep)}"
    for option in words:
        if option.startswith("--") and option.partition("=")[0] not in text:
            yield f"quire {' '.join(deep)} has no {option}"
    if deep == ["bench"] and "--isa" in words:
        known = re.search(r"instruction sets: ([\w\s,-]+);", text)[1].replace("\n", " ").split(",")
        for level in words[words.index("--isa") + 1].split(","):
            if level not in [x.strip() for x in known] + ["all", "X"]:
                yield f"quire bench knows no instruction set {level}"


class Commands(unittest.TestCase):
    def test_files_and_options(self):
        """A file with a parser is its own judge; see test_parsers."""
        n = 0
        for where, (program, *words) in commands():
            n += 1
            with self.subTest(where=where, command=shlex.join([program, *words])):
                if program == "quire" or program.endswith("/bin/quire"):
                    self.assertEqual(list(of_quire(words)), [])
                elif program.startswith("build/release/bin/"):
                    self.assertTrue((TOOL.parent / Path(program).name).exists(), "no such program")
                elif is_program(ROOT / program):
                    files = [*runs(ROOT / program), *(f for word in words if (f := find(word)))]
                    if any("argparse" in file.read_text() for file in files):
                        continue
                    text = " ".join(map(strings, files))
                    self.assertEqual([w for w in words if w.startswith("--") and w.partition("=")[0].rstrip(",") not in text], [], "not in its source")
                else:
                    self.assertTrue((ROOT / program).exists() or list(ROOT.glob(program + "*")), "no such file")
        self.assertGreater(n, 300)

    def test_parsers(self):
        seen, parsed = set(), 0
        for where, (program, *words) in commands():
            if (program, *words) in seen or not is_program(ROOT / program):
                continue
            seen.add((program, *words))
            files = [*runs(ROOT / program), *(f for word in words[:1] if (f := find(word)))]
            target = next((f for f in files[::-1] if f.name != "kit.py" and f.suffix == ".py" or "python3" in f.read_text().split("\n", 1)[0]), None)
            if not target or "argparse" not in target.read_text():
                continue
            if files[-1] != files[0] and words and find(words[0]) == files[-1]:
                words = words[1:]
            if not words:
                continue
            with self.subTest(where=where, command=shlex.join([program, *words])):
                said = parser_says(target, words)
                if said and numbered(words) != words:
                    said = parser_says(target, numbered(words))
                if said is None:
                    text = " ".join(map(strings, files))
                    self.assertEqual([w for w in words if w.startswith("--") and w.partition("=")[0] not in text], [], "not in its source")
                else:
                    # Pages name an option by itself, without what must stand before it; a usage says [--case ...].
                    self.assertTrue(not said or "arguments are required" in said or "expected one argument" in said and where.endswith(" itself"), said)
                parsed += 1
        self.assertGreater(parsed, 80)

    def test_names(self):
        """What scripts/nightly, scripts/check and ctest are asked for."""
        nightly = loaded("nightly").TESTS
        checks = re.search(r"^ALL=\(([^)]*)\)", (ROOT / "scripts/check").read_text(), re.M)[1].split()
        tests = [line.split()[0] for line in (ROOT / "tests/required").read_text().splitlines() if line and not line.startswith(("#", "waive"))]
        for page in pages():
            for span in spans(page.read_text()):
                with self.subTest(page=str(page.relative_to(ROOT)), command=span):
                    for words in simple(span):
                        known = {"scripts/nightly": nightly, "scripts/check": checks}.get(words[0])
                        self.assertEqual([w for w in words[1:] if known and not w.startswith("-") and w not in known and not w.isupper()], [])
                    for pattern in re.findall(r"^ctest .*-R (?:'([^']+)'|(\S+))", span):
                        if not "".join(pattern).isupper():
                            self.assertTrue(any(re.search("".join(pattern), name) for name in tests), "no such test")

    def test_jobs(self):
        """Every job of eval/results can be given to `quire eval --job`."""
        sys.path.insert(0, str(ROOT / "eval"))
        import caches
        import measure
        for path in sorted((ROOT / "eval/results").glob("*.jsonl")):
            for line in path.read_text().splitlines():
                job = json.loads(line)["job"]
                given = {"recipe": None, **{k: v for k, v in job.items() if k not in ("what", "model")}}
                inspect.signature(getattr(measure, job["what"])).bind(job["model"], **given)
                caches.Cache(job.get("cache", "f16"))

    def test_scripts_load(self):
        """Those that can be loaded without running."""
        for script in sorted((ROOT / "scripts").iterdir()):
            if script.is_file() and script.read_bytes().startswith(b"#!/usr/bin/env python3") and 'if __name__ == "__main__":' in script.read_text():
                with self.subTest(script=script.name), only_parsing([str(script)]):
                    sys.path.insert(0, str(ROOT / "scripts"))
                    loaded(script.name)


# Folders whose files import each other, with the folders that they look in besides. Names of files must differ in a group.
GROUPS = (("tests/serve", "tests/llama", "eval", "scripts", "scripts/peers"), ("tests/vllm", "tests/serve", "tests/llama", "eval", "scripts"), ("tests/llama", "eval"),
          ("eval", "tests/vllm"), ("tests/system", "eval"), ("scripts/golden", "scripts/peers"))
# What is not there: a name, an attribute of a module, an argument. Types of values are not declared in these files.
WRONG = re.compile(r'Module.* has no attribute|\[name-defined\]|\[call-arg\]|\[import-not-found\].*"(?:kit|llama|servers?|sidecar|run|models|scene|engines|checks)"|\[syntax\]')


class Names(unittest.TestCase):
    def test_mypy(self):
        done = subprocess.run([ROOT / "scripts/python-venv", "--tools"], stdout=subprocess.PIPE, text=True)
        if done.returncode == 3:
            self.skipTest("no tools")
        mypy, (config, cache) = Path(done.stdout.strip()) / "mypy", (Path(self.folder.name) / name for name in ("mypy.ini", "cache"))
        config.write_text("[mypy]\ncheck_untyped_defs = True\nignore_missing_imports = True\nstrict_optional = False\nscripts_are_modules = True\n")
        scripts = [s for s in sorted((ROOT / "scripts").iterdir()) if s.is_file() and s.read_bytes().startswith(b"#!/usr/bin/env python3")]
        of = {"tests/serve": [s for s in scripts if "vllm" not in s.name], "tests/vllm": [s for s in scripts if "vllm" in s.name],
              "scripts/golden": sorted((ROOT / "scripts/peers").glob("*.py"))}
        for folders in GROUPS:
            files = [*sorted((ROOT / folders[0]).glob("*.py")), *of.get(folders[0], [])]
            with self.subTest(folder=folders[0]):
                out = subprocess.run([mypy, "--config-file", config, "--cache-dir", cache, "--python-executable", sys.executable, "--no-error-summary", *files],
                                     cwd=ROOT, env={**os.environ, "MYPYPATH": ":".join(str(ROOT / f) for f in folders)}, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True).stdout
                self.assertNotRegex(out, r"(?m)^mypy: |INTERNAL|Duplicate module|is not a valid")
                self.assertEqual([line for line in out.splitlines() if WRONG.search(line)], [])

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-commands-")

    def tearDown(self):
        self.folder.cleanup()


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    result = unittest.main(exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
