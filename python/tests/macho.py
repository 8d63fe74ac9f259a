# SPDX-License-Identifier: MIT
"""Reads a program or library of macOS, and says what a Mac would not accept or should not get.

The rules for segments and for what lies in __LINKEDIT are those that Apple's loader (dyld, whose source is public) has for files of the
newest SDK; it refuses what breaks one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Set, Tuple

MAGIC, ARM64, X86_64, EXECUTE, DYLIB = 0xFEEDFACF, 0x0100000C, 0x01000007, 2, 6
NO_UNDEFINED, TWO_LEVEL, PIE = 0x1, 0x80, 0x200000  # flags of the header
SEGMENT, SYMTAB, LOAD_DYLIB, ID_DYLIB, UUID, SIGNATURE, MAIN, BUILD = 0x19, 0x2, 0xC, 0xD, 0x1B, 0x1D, 0x80000028, 0x32
DYSYMTAB, FUNCTION_STARTS, DATA_IN_CODE = 0xB, 0x26, 0x29
DYLD_INFO, EXPORTS_TRIE, RPATH = 0x80000022, 0x80000033, 0x8000001C
# What a loader of macOS 11 must know, or may leave alone.
HARMLESS = {0xE, 0x2A}  # LC_LOAD_DYLINKER, LC_SOURCE_VERSION
MACOS, SHA256, AD_HOC = 1, 2, 0x2
OS_PAGE = {ARM64: 0x4000, X86_64: 0x1000}
LIBRARIES = ("/usr/lib/libSystem.B.dylib",)
READ_ONLY = 0x10  # flag of a segment that the loader closes when it has filled in addresses
PROTECTION = {"__PAGEZERO": 0, "__TEXT": 5, "__DATA_CONST": 3, "__DATA": 3, "__LINKEDIT": 1}  # 1 read, 2 write, 4 execute
# Zig's linker exports these two of its own. Nobody finds them: names are looked up in the library that a program was linked with.
OF_THE_LINKER = {"__mh_dylib_header", "___dso_handle"}


class Broken(Exception):
    """It cannot be read."""


@dataclass
class Segment:
    name: str
    address: int
    memory: int
    offset: int
    bytes: int
    protection: int
    flags: int
    sections: List[Tuple[str, int, int]]  # name, address, size


@dataclass
class Piece:
    """Of __LINKEDIT."""

    what: str
    offset: int
    bytes: int
    align: int


@dataclass
class Macho:
    cpu: int
    kind: int
    flags: int
    minimum: Tuple[int, int] = (0, 0)
    platform: int = 0
    ident: str = ""  # of a library
    version: Tuple[int, int, int] = (0, 0, 0)
    libraries: List[str] = field(default_factory=list)
    search: List[str] = field(default_factory=list)  # LC_RPATH
    segments: List[Segment] = field(default_factory=list)
    pieces: List[Piece] = field(default_factory=list)
    n_symbols: int = 0
    dynamic: Tuple[int, ...] = ()  # LC_DYSYMTAB
    exports: Set[str] = field(default_factory=set)
    imports: Dict[str, int] = field(default_factory=dict)  # and the number of the library
    n_debug: int = 0  # symbols for debuggers
    has_main: bool = False
    has_uuid: bool = False
    unknown: List[int] = field(default_factory=list)  # load commands


def _take(form: str, data: bytes, at: int) -> Tuple[int, ...]:
    try:
        return struct.unpack_from(form, data, at)
    except struct.error:
        raise Broken(f"it ends before byte {at}") from None


def _text(data: bytes, at: int, end: int) -> str:
    stop = data.find(b"\0", at, end)
    if not 0 <= at < end <= len(data) or stop < 0:
        raise Broken(f"no string at byte {at}")
    return data[at:stop].decode()


def _name(data: bytes, at: int) -> str:
    return data[at:at + 16].rstrip(b"\0").decode()


def _uleb(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte, = _take("B", data, at)
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _trie(data: bytes, prefix: bytes = b"", at: int = 0, depth: int = 0) -> Set[str]:
    if depth > 128:
        raise Broken("the trie of exports is too deep")
    size, at = _uleb(data, at)
    found = {prefix.decode()} if size else set()
    at += size
    n, = _take("B", data, at)
    at += 1
    for _ in range(n):
        end = data.index(b"\0", at)
        child, after = _uleb(data, end + 1)
        found |= _trie(data, prefix + data[at:end], child, depth + 1)
        at = after
    return found


def _symbols(found: Macho, data: bytes, at: int, n: int, strings: int, size: int) -> None:
    for i in range(n):
        name, kind, _, desc, _ = _take("<IBBHQ", data, at + 16 * i)
        if kind & 0xE0:
            found.n_debug += 1
        elif kind & 0x0E == 0 and kind & 1:  # undefined, external
            found.imports[_text(data, strings + name, strings + size)] = desc >> 8


def read(data: bytes) -> Macho:
    magic, cpu, _, kind, n_commands, size, flags, _ = _take("<8I", data, 0)
    if magic != MAGIC or cpu not in OS_PAGE:
        raise Broken(f"magic {magic:#x} and processor {cpu:#x} are not those of Mach-O for a Mac with 64 bits")
    found = Macho(cpu, kind, flags)
    at = 32
    for _ in range(n_commands):
        command, length = _take("<2I", data, at)
        if length < 8 or length % 8 or at + length > 32 + size:
            raise Broken(f"load command {command:#x} has {length} bytes")
        if command == SEGMENT:
            address, memory, offset, n, _, protection, n_sections, bits = _take("<4Q4I", data, at + 24)
            sections = [(_name(data, s), *_take("<2Q", data, s + 32)) for s in range(at + 72, at + 72 + 80 * n_sections, 80)]
            found.segments.append(Segment(_name(data, at + 8), address, memory, offset, n, protection, bits, sections))
        elif command in (LOAD_DYLIB, ID_DYLIB):
            name, _, current, _ = _take("<4I", data, at + 8)
            path = _text(data, at + name, at + length)
            if command == ID_DYLIB:
                found.ident, found.version = path, (current >> 16, current >> 8 & 255, current & 255)
            else:
                found.libraries.append(path)
        elif command == RPATH:
            found.search.append(_text(data, at + _take("<I", data, at + 8)[0], at + length))
        elif command == BUILD:
            found.platform, minimum = _take("<2I", data, at + 8)
            found.minimum = (minimum >> 16, minimum >> 8 & 255)
        elif command == SYMTAB:
            symbols, found.n_symbols, strings, n = _take("<4I", data, at + 8)
            found.pieces += [Piece("symbols", symbols, 16 * found.n_symbols, 8), Piece("strings", strings, n, 1)]
            _symbols(found, data, symbols, found.n_symbols, strings, n)
        elif command == DYSYMTAB:
            found.dynamic = _take("<18I", data, at + 8)
            found.pieces.append(Piece("indirect symbols", found.dynamic[12], 4 * found.dynamic[13], 4))
        elif command in (DYLD_INFO, EXPORTS_TRIE, FUNCTION_STARTS, DATA_IN_CODE, SIGNATURE):
            pairs = _take("<10I", data, at + 8) if command == DYLD_INFO else _take("<2I", data, at + 8)
            found.pieces += [Piece(f"{command:#x}", *pair, 16 if command == SIGNATURE else 8) for pair in zip(pairs[::2], pairs[1::2])]
            if command in (DYLD_INFO, EXPORTS_TRIE) and pairs[-1]:
                found.exports = _trie(data[pairs[-2]:pairs[-2] + pairs[-1]])
        elif command == MAIN:
            found.has_main = True
        elif command == UUID:
            found.has_uuid = any(data[at + 8:at + 24])
        elif command not in HARMLESS:
            found.unknown.append(command)
        at += length
    return found


def _signature(data: bytes) -> Tuple[int, int]:
    """Where it lies, by the load command."""
    at = 32
    for _ in range(_take("<I", data, 16)[0]):
        command, length = _take("<2I", data, at)
        if command == SIGNATURE:
            begin, n = _take("<2I", data, at + 8)
            return begin, n
        at += length
    raise Broken("it is not signed, and a Mac with this processor runs no unsigned code")


def _directory(data: bytes, begin: int) -> int:
    magic, _, n = _take(">3I", data, begin)
    for i in range(n if magic == 0xFADE0CC0 else 0):
        kind, offset = _take(">2I", data, begin + 12 + 8 * i)
        if kind == 0 and _take(">I", data, begin + offset)[0] == 0xFADE0C02:
            return begin + offset
    raise Broken("the signature has no code directory")


def signature_faults(data: bytes) -> List[str]:
    """An ad-hoc signature is a list of checksums, one for each 4 KiB (or 16 KiB) of the file up to itself."""
    begin, n = _signature(data)
    if begin + n != len(data):
        return ["the signature is not at the end of the file"]
    at = _directory(data, begin)
    _, _, _, flags, hashes, ident, _, n_slots, limit = _take(">9I", data, at)
    size, kind, _, shift = _take("4B", data, at + 36)
    faults = []
    if not flags & AD_HOC or kind != SHA256 or size != 32 or shift not in (12, 14) or limit != begin:
        faults.append("the signature is not an ad-hoc one with SHA-256 over all that lies before it")
        return faults
    if not _text(data, at + ident, len(data)):
        faults.append("the signature has no identifier")
    page = 1 << shift
    if n_slots != -(-limit // page):
        return faults + [f"the signature covers {n_slots} pages of {-(-limit // page)}"]
    for i in range(n_slots):
        slot = at + hashes + size * i
        if hashlib.sha256(data[i * page:min(limit, (i + 1) * page)]).digest() != data[slot:slot + size]:
            faults.append(f"the signature does not fit the bytes of page {i}")
    return faults


def segment_faults(m: Macho, size: int) -> List[str]:
    found, address, offset = [], 0, 0
    for s in m.segments:
        if s.protection != PROTECTION.get(s.name) or s.name == "__DATA_CONST" and not s.flags & READ_ONLY:
            found.append(f"segment {s.name} has protection {s.protection} and flags {s.flags:#x}")
        if (s.address | s.offset) % OS_PAGE[m.cpu] or s.offset + s.bytes > size or s.bytes > s.memory:
            found.append(f"segment {s.name} does not begin at a multiple of {OS_PAGE[m.cpu]} bytes, or does not fit into the file or its memory")
        if s.address < address or s.bytes and s.offset < offset:
            found.append(f"segment {s.name} overlaps the one before it")
        if any(a < s.address or a + n > s.address + s.memory for _, a, n in s.sections):
            found.append(f"segment {s.name} does not contain its sections")
        address, offset = s.address + s.memory, s.offset + s.bytes
    return found


def linkedit_faults(m: Macho) -> List[str]:
    found = []
    local, n_local, defined, n_defined, undefined, n_undefined = m.dynamic[:6] or (0,) * 6
    if (local, defined, undefined, m.n_symbols) != (0, n_local, n_local + n_defined, n_local + n_defined + n_undefined):
        found.append("the parts of its table of symbols do not follow each other")
    if any(m.dynamic[14:18]):
        found.append("it has relocations of the old kind")
    last = m.segments[-1] if m.segments else None
    if not last or last.name != "__LINKEDIT":
        return found + ["its last segment is not __LINKEDIT"]
    at = last.offset
    for p in sorted((p for p in m.pieces if p.bytes), key=lambda p: p.offset):
        if p.offset < at or p.offset % p.align or p.offset + p.bytes > last.offset + last.bytes:
            found.append(f"{p.what} in __LINKEDIT: not at a multiple of {p.align}, or it overlaps something")
        at = p.offset + p.bytes
    return found


def faults(data: bytes, minimum: Tuple[int, int], allowed_imports: Set[str], never: List[bytes], libraries: Sequence[str] = LIBRARIES,
           search: Sequence[str] = (), cpu: int = ARM64) -> List[str]:
    """What is wrong with a file, one sentence each. never: bytes that may be nowhere in it. libraries: those that it needs, of which it may look for names
    in all; search: where it looks for them. An Intel Mac runs what is not signed."""
    try:
        m = read(data)
        found = signature_faults(data) if m.cpu == ARM64 else []
    except (Broken, ValueError, IndexError) as error:
        return [str(error)]
    if m.cpu != cpu:
        found.append(f"it is for processor {m.cpu:#x}, not {cpu:#x}")
    if m.kind not in (EXECUTE, DYLIB):
        found.append(f"it is of kind {m.kind}, neither a program nor a library")
    wanted = NO_UNDEFINED | TWO_LEVEL | (PIE if m.kind == EXECUTE else 0)
    if m.flags & wanted != wanted:
        found.append(f"its flags are {m.flags:#x}, which lack {wanted & ~m.flags:#x}")
    if (m.platform, m.minimum) != (MACOS, minimum):
        found.append(f"it is for platform {m.platform}, version {m.minimum}")
    if sorted(m.libraries) != sorted(libraries):
        found.append(f"it needs the libraries {m.libraries}")
    if m.unknown:
        found.append(f"it has other load commands than those that are known here: {[hex(c) for c in m.unknown]}")
    if m.search != list(search):
        found.append(f"it looks for libraries in {m.search}")
    if m.kind == EXECUTE and not m.has_main:
        found.append("it has no entry")
    if not m.has_uuid:
        found.append("it has no UUID")
    if m.n_debug:
        found.append(f"it has {m.n_debug} symbols for debuggers")
    found += segment_faults(m, len(data)) + linkedit_faults(m)
    if set(m.imports) - allowed_imports:
        found.append(f"it asks the system for {sorted(set(m.imports) - allowed_imports)}")
    if any(not 1 <= number <= len(libraries) for name, number in m.imports.items() if name != "dyld_stub_binder"):
        found.append("a name is looked up in other libraries than these")
    found += [f"it has the bytes {part!r}" for part in never if part in data]
    return found
