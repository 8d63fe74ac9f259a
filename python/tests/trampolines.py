# SPDX-License-Identifier: MIT
"""Assembler text for tests/macos: functions with the names that a library of macOS exports."""

from __future__ import annotations

from typing import Dict, List, Tuple

# How a function jumps to entry {i} of a table; what marks a function; the stack is not executable.
JUMPS: Dict[str, Tuple[str, str]] = {
    "arm64": ("    adrp x16, macos_table\n    add x16, x16, :lo12:macos_table\n    ldr x16, [x16, #{at}]\n    br x16\n", "%"),
    "x86_64": ("    jmpq *macos_table+{at}(%rip)\n", "@"),
}


def trampolines(names: List[str], processor: str = "arm64") -> str:
    """Functions with these names that jump through a table, which the loader fills."""
    jump, mark = JUMPS[processor]
    jumps = "".join(f".globl {name}\n.type {name}, {mark}function\n{name}:\n{jump.format(at=8 * i)}" for i, name in enumerate(names))
    words = "".join(f"n{i}: .asciz \"{name}\"\n" for i, name in enumerate(names))
    listed = "".join(f"    .quad n{i}\n" for i in range(len(names)))
    return (f".text\n{jumps}.section .rodata\n{words}.data\n.balign 8\n.globl macos_names\nmacos_names:\n{listed}    .quad 0\n"
            f".bss\n.balign 8\n.globl macos_table\nmacos_table: .skip {8 * len(names)}\n.section .note.GNU-stack,\"\",{mark}progbits\n")
