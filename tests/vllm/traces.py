# SPDX-License-Identifier: MIT
"""Of connector_parts.py and connector_share.py: salts, secrets and tokens are in no log and in no file."""
import base64
import contextlib
import logging
import os
import struct
import tempfile
import time
from pathlib import Path

import torch
from identities import ok, secret
from part import PAGE, Part, Request
from quire_vllm import settings


def forms_of_secret(data):
    """The ways in which the first 15 bytes could be written, by name."""
    data = data[:15]
    return {"raw": data, "in hex digits": data.hex().encode(), "in large hex digits": data.hex().upper().encode(), "in base64": base64.b64encode(data),
            "as Python prints it": repr(data)[2:-1].encode()}


def forms_of_tokens(tokens, n=4):
    """The same of n tokens in a row: at the begin, at the end, and around ends of pages."""
    found = {}
    for i in sorted({i for page in range(0, len(tokens), PAGE) for i in (page - n // 2, page) if 0 <= i <= len(tokens) - n} | {len(tokens) - n}):
        run = tokens[i:i + n]
        for kind in ("<I", ">I", "<Q"):
            found[f"tokens from {i} as {kind}"] = b"".join(struct.pack(kind, t) for t in run)
        for between in (" ", ",", ", ", "\n"):
            found[f"tokens from {i} with {between!r}"] = between.join(map(str, run)).encode()
    return found


def search(data, salt, key, tokens):
    """What of it is in these bytes, by name."""
    forms = {f"the salt {name}": form for name, form in forms_of_secret(salt.encode()).items()}
    forms.update({f"the secret {name}": form for name, form in forms_of_secret(key).items()})
    forms.update(forms_of_tokens(tokens))
    return [name for name, form in forms.items() if form in data]


def search_files(folders, salt, key, tokens):
    """The same for each file below these folders, and how many files there are."""
    files = [p for folder in folders for p in Path(folder).rglob("*") if p.is_file()]
    return [(p.name, name) for p in files for name in search(p.read_bytes(), salt, key, tokens)], len(files)


@contextlib.contextmanager
def captured():
    """Yields a function that gives all that was logged, on every level, and all that the process wrote to stdout and stderr, also by C."""
    with tempfile.TemporaryFile() as file:
        log = logging.getLogger("vllm")
        level, kept = log.level, [os.dup(fd) for fd in (1, 2)]
        stream = os.fdopen(os.dup(file.fileno()), "w")
        handler = logging.StreamHandler(stream)
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
        for fd in (1, 2):
            os.dup2(file.fileno(), fd)
        try:
            yield lambda: os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
        finally:
            for fd, old in zip((1, 2), kept):
                os.dup2(old, fd)
                os.close(old)
            log.removeHandler(handler)
            log.setLevel(level)
            stream.close()


def use(extra, key, salt, tokens):
    """All that writes a line: saves, loads, a load of damaged pages, a look-up, a load and a copy that fail, a secret that is refused."""
    def broken(*_):
        raise ValueError("made to fail")

    a = Part(extra, policy="bf16")
    request = Request("r1", tokens, salt=salt)
    a.matched(request)
    a.save(request, list(range(1, 7)))
    a.flush()
    again = Request("r2", tokens, salt=salt)
    whole = a.matched(again)[0]
    lost = [a.load(again, whole, list(range(11, 17)))]
    look_up, a.scheduling._look_up = a.scheduling._look_up, broken
    a.matched(Request("r3", tokens, salt=salt))
    a.scheduling._look_up = look_up
    load_pages, a.moving._load_pages = a.moving._load_pages, broken
    third = Request("r4", tokens, salt=salt)
    lost.append(a.load(third, a.matched(third)[0], list(range(11, 17))))
    a.moving._load_pages = load_pages
    copy, a.moving._blocks.copy = a.moving._blocks.copy, lambda *_: torch.empty(1 << 60)
    other = Request("r5", tokens[::-1], salt=salt)
    a.matched(other)
    a.save(other, list(range(1, 7)))
    end = time.monotonic() + 60
    while not a.counter.total["save_errors"] and time.monotonic() < end:
        time.sleep(0.01)
    a.moving._blocks.copy = copy
    a.flush()
    figures = dict(a.counter.total)
    a.close()
    try:
        settings.read({**extra, "secret_file": key + ".short"})
    except ValueError as error:
        logging.getLogger("vllm.quire").error("%s", error, exc_info=True)
    return whole, lost, figures


def check_traces(folder):
    folder = Path(folder) / "traces"
    (folder / "keys").mkdir(parents=True)
    generator = torch.Generator().manual_seed(os.getpid())
    # Numbers with six digits, between which numpy prints one space.
    tokens = torch.randint(100000, 1 << 17, (5 * PAGE + 1,), generator=generator).tolist()
    salt, bytes_ = "salt-" + os.urandom(8).hex(), os.urandom(32)
    key = secret(folder / "keys", data=bytes_)
    secret(folder / "keys", "tenant.key.short", bytes_[:31])
    for what, more in (("sealed", {}), ("plain", {"seal_disk": False})):
        extra = {"directory": str(folder / what), "disk_bytes": "64M", "secret_file": key, **more}
        with captured() as log:
            whole, lost, figures = use(extra, key, salt, tokens)
            text = log()
        ok(whole == 5 * PAGE and not lost[0] and lost[1] and figures["lookup_errors"] and figures["save_errors"], f"{what}: pages are saved and loaded, and some fail",
           f"{whole} {lost} {figures}")
        ok(all(line in text for line in (b"tokens loaded", b"a look-up failed", b"a load failed", b"a copy failed", b"32 bytes or 64 hex")),
           f"{what}: the log has a line for each", text.decode(errors="replace")[-2000:])
        ok(not search(text, salt, bytes_, tokens), f"{what}: the log has no salt, no secret and no tokens", str(search(text, salt, bytes_, tokens)))
        found, n = search_files([folder / what, os.environ["QUIRE_CACHE"]], salt, bytes_, tokens)
        ok(n >= 2 and not found, f"{what}: {n} files have no salt, no secret and no tokens", str(found[:10]))
    planted = b"x" + f"{tokens[PAGE:PAGE + 4]} {salt} {bytes_!r}".encode() + bytes_ + struct.pack("<4I", *tokens[:4])
    ok(len(search(planted, salt, bytes_, tokens)) >= 5, "the search finds what is there", str(search(planted, salt, bytes_, tokens)))
