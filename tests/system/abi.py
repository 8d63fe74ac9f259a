#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The interface of the libraries is the one in abi/, and scripts/abi notices when it is not.

For the second part the stored description is changed as if an earlier release had had something else. Each change is one that breaks
programs, except the last, which only misses something new. Exit status 77: no abigail-tools. Environment: QUIRE_BUILD, the build folder.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BREAKS, ADDS = "can notice this", "additions that"


def check(folder=None):
    env = {**os.environ, **({"QUIRE_ABI": str(folder)} if folder else {})}
    done = subprocess.run([ROOT / "scripts" / "abi", "--check"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def once(pattern, replacement):
    """A change of the text that must find its place."""

    def change(text):
        changed, n = re.subn(pattern, replacement, text, count=1, flags=re.S)
        assert n == 1, f"{pattern} is not in the description"
        return changed

    return change


def without_function(name):
    return lambda text: once(rf"<elf-symbol name='{name}'[^\n]*\n", "")(once(rf"<function-decl name='{name}'.*?</function-decl>\s*", "")(text))


CHANGES = (
    ("a function that is gone", BREAKS, once(r"<elf-symbol name='quire_pool_create'", "<elf-symbol name='quire_pool_make'")),
    ("a member that moved", BREAKS, once(r"(<class-decl name='quire_pool_options'.*?layout-offset-in-bits=')64'", r"\g<1>96'")),
    ("a structure that became smaller", BREAKS,
     once(r"(<class-decl name='quire_pool_options' size-in-bits=')\d+'", r"\g<1>512'")),
    ("a status with another number", BREAKS, once(r"(name='QUIRE_EFULL' value=')\d+'", r"\g<1>33'")),
    ("a function of fewer arguments", BREAKS,
     once(r"(<function-decl name='quire_pool_create'.*?)(<parameter[^\n]*/>)", r"\1\2\2")),
    ("a function that abi/ does not have", ADDS, without_function("quire_seq_trim_floor")),
)


def main():
    code, said = check()
    if code == 77:
        print(f"skipped: {said.strip()}")
        sys.exit(77)
    if code:
        sys.exit(f"FAILED: the interface is not the one in abi/\n{said}")
    print("ok the interface is the one in abi/")
    failed = 0
    for what, wanted, change in CHANGES:
        with tempfile.TemporaryDirectory() as folder:
            for file in (ROOT / "abi").glob("*.abi"):
                text = file.read_text()
                (Path(folder) / file.name).write_text(change(text) if file.name.startswith("quire-") else text)
            code, said = check(folder)
        right = code == 1 and wanted in said
        failed += not right
        print(f"{'ok' if right else 'FAILED'} {what} is noticed{'' if right else f': exit status {code}, {said[:600]}'}")
    sys.exit(failed > 0)


main()
