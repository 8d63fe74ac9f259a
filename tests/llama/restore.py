#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A saved state in a program that keeps the cache in another way: other layers on the device, none, no flash attention,
another policy. Every answer is the one that belongs to the state, or the request fails; it is never something else.
"""
import json

import kit
import llama
from kit import expect, note
from slotfile import SlotFile

llama.uses_device = lambda log: True  # what a part of the layers does without the device is what is tested here

PROMPT = kit.text(33000, 600)
N = 8
CONTAINER = ["-ctk", "q8_0", "-ctv", "q4_0"]
MARK = b"\x51\x7e"
REJECTED = "a request failed because it needs a restored state that was rejected"


class Server(kit.Server):
    def __init__(self, path, policy, args=(), profile=None):
        env = {"QUIRE_KV": policy} if policy not in (None, "stock") else {}
        if profile:
            env["QUIRE_PROFILE"] = str(profile)
        super().__init__(path, "-c", 2048, "-np", 2, "--cache-ram", 0, "--no-kv-unified", *args, plugin=policy != "stock",
                         env=env)

    def ask(self, slot, cache=True):
        """The answer, or None: the request failed."""
        body = {"prompt": PROMPT, "n_predict": N, "temperature": 0, "seed": 1, "id_slot": slot, "cache_prompt": cache,
                "return_tokens": True, "n_probs": 10}
        raw, status = self.request("/completion", body)
        return kit.Answer(raw) if status == 200 else None

    def take(self, file, slot=0):
        """Restores a file. False: the host refuses it."""
        (self.slots / "taken").write_bytes(file.read_bytes())
        return self.request(f"/slots/{slot}?action=restore", {"filename": "taken"})[1] == 200


class State:
    """A slot file and what the server that saved it answered."""

    def __init__(self, name, path, policy, args=(), profile=None):
        self.name = name
        with Server(path, policy, args, profile) as s:
            self.answer = s.ask(0)
            self.file = s.save(0, "state")
        marked = [r.row(SlotFile(self.file).data, 0)[:2] == MARK for r in SlotFile(self.file).rows]
        note(f"{name}: {sum(marked)} of {len(marked)} tensors behind marks")


# How far the two answers may be apart where they part, by the coarser of the two codecs. Rounding alone: kit.TIE.
LIMIT = {"r8": kit.TIE, "r4": 4.0}


def near(a, b, limit):
    """Log-probabilities that are no numbers are never near."""
    known = all(p is not None for answer in (a, b) for list_ in answer.probs for _, p in list_)
    return known and kit.apart(a, b) <= limit


def check(s, target, state, limit, refused=None):
    """One state in a running server. refused: whether the host itself has to refuse it."""
    name = f"{state.name} in {target}"
    s.erase(0)
    if not s.take(state.file):
        return expect(refused is not False, f"{name}: refused by the host", s.log()[-300:])
    answer = s.ask(0)
    if answer is None:
        return expect(False, f"{name}: the request fails", s.log()[-600:])
    expect(not refused, f"{name}: not refused", answer.text)
    expect(answer.n_cached > 100, f"{name}: the prompt came from the file", f"{answer.n_cached} tokens")
    return expect(near(answer, state.answer, limit), f"{name}: the answer of the server that saved it",
                  f"{answer.text!r} and {state.answer.text!r}, {kit.apart(answer, state.answer):.2f} apart")


def layers(path):
    """Other layers on the device than when the state was saved, in both directions."""
    states = {"r8": State("r8", path, "r8"), "half": State("r8, 16 layers", path, "r8", ["-ngl", 16]),
              "stock": State("stock", path, "stock"), "r4": State("r4", path, "r4")}
    off = State("stock without flash attention", path, "stock", ["-fa", "off"]) if not kit.quick else None
    targets = [("r8", "r8", []), ("r8, 16 layers", "r8", ["-ngl", 16]), ("r8, -ngl 0", "r8", ["-ngl", 0, "-fa", "on"]),
               ("r8, -nkvo", "r8", ["-nkvo"]), ("r8, -dev none", "r8", ["-dev", "none"]),
               ("no policy", None, []), ("no policy, -dev none", None, ["-dev", "none"]), ("r4", "r4", [])]
    for target, policy, args in targets:
        kit.part(one_target, path, target, policy, args, states, off)
    with Server(path, "r8", ["-fa", "off"]) as s:  # V is transposed there: the host compares that
        check(s, "r8, -fa off", states["r8"], 0, refused=True)
        fresh = s.ask(1)
        expect(near(fresh, states["stock"].answer, kit.TIE), "r8, -fa off: the server goes on", fresh.text)


def one_target(path, target, policy, args, states, off):
    with Server(path, policy, args) as s:
        for key, state in states.items():
            coarse = "r4" if "r4" in (key, policy) else "r8"
            check(s, target, state, LIMIT[coarse], refused=False)
        if off:
            check(s, target, off, 0, refused=True)


def containers(path):
    """Rows in q8_0 and q4_0: marked ones, and stock's."""
    states = [State("r8/r4 in q8_0/q4_0", path, "r8/r4", CONTAINER),
              State("r8/r4 in q8_0/q4_0, 16 layers", path, "r8/r4", [*CONTAINER, "-ngl", 16])]
    for target, policy, args in [("r8/r4 in q8_0/q4_0", "r8/r4", []), ("the same, 16 layers", "r8/r4", ["-ngl", 16]),
                                 ("q8_0/q4_0, -dev none", None, ["-dev", "none"])]:
        with Server(path, policy, [*CONTAINER, *args]) as s:
            for state in states:
                check(s, target, state, LIMIT["r4"], refused=False)


def calibrated(path):
    """A codec that means something only with the profile it was saved with."""
    profile = kit.folder() / "profile"
    kit.run("llama-perplexity", ["-m", path, "-f", kit.TEXT_FILE, "-c", 512, "--chunks", 1, "-t", kit.threads],
            env={"QUIRE_PROFILE_RECORD": str(profile)})
    state = State("c:r4/r4", path, "c:r4/r4", profile=profile)
    for target, policy, args in [("the same, 16 layers", "c:r4/r4", ["-ngl", 16]), ("-dev none", None, ["-dev", "none"])]:
        with Server(path, policy, args, profile) as s:
            check(s, f"{target}, with the profile", state, LIMIT["r4"], refused=False)
    for target, policy, args in [("no policy", None, []), ("-dev none", None, ["-dev", "none"])]:
        with Server(path, policy, args) as s:
            name = f"c:r4/r4 in {target}, without the profile"
            expect(s.take(state.file) and s.ask(0) is None, f"{name}: the request fails")
            expect(s.says(REJECTED) and s.says("needs the profile"), f"{name}: says why", s.log()[-500:])


# --- damage ----------------------------------------------------------------------------------------

def damaged(state, what, edit):
    """A copy of a file in which `edit` has changed one row of one layer."""
    slot = SlotFile(state.file)
    rows = slot.of("k", 20)[0]
    row = bytearray(rows.row(slot.data, 30))
    assert row[:2] == MARK
    edit(row)
    at = rows.offset + 30 * rows.row_bytes
    slot.data[at:at + len(row)] = row
    path = kit.folder() / f"damaged-{what}"
    slot.write(path)
    return path


def flip(i):
    def edit(row):
        row[i] ^= 0x10
    return edit


def damage(path):
    """One bad row. Only requests that need it fail, and what is saved of it is refused again."""
    state = State("r8", path, "r8")
    files = {"fingerprint": damaged(state, "fingerprint", flip(3)), "first byte": damaged(state, "first", flip(0))}
    targets = [("r8", "r8", []), ("-dev none", "r8", ["-dev", "none"])]
    if not kit.quick:
        files["second byte"] = damaged(state, "second", flip(1))
        targets += [("no policy", None, []), ("r8, 16 layers", "r8", ["-ngl", 16]),
                    ("r8, -ngl 0", "r8", ["-ngl", 0, "-fa", "on"])]
    for target, policy, args in targets:
        with Server(path, policy, args) as s:
            fresh = s.ask(1, cache=False)
            for what, file in files.items():
                name = f"{what} of a mark flipped, {target}"
                s.erase(0)
                expect(s.take(file), f"{name}: the host takes it")
                answer = s.ask(0)
                expect(answer is None, f"{name}: the request fails", answer and answer.text)
                beside = s.ask(1, cache=False)
                expect(beside and near(beside, fresh, kit.TIE), f"{name}: another slot answers as before",
                       beside and beside.text)
            expect(s.says(REJECTED), f"{target}: says why", s.log()[-500:])
            s.erase(0)
            s.take(files["fingerprint"])
            saved = s.save(0, "again")
            s.erase(1)
            expect(s.take(saved, 1) and s.ask(1) is None, f"{target}: the same file saved again is refused too")
            s.erase(0)
            anew = s.ask(0, cache=False)
            expect(anew and near(anew, fresh, kit.TIE), f"{target}: the slot is usable again", anew and anew.text)


# --- llama-completion ------------------------------------------------------------------------------

def session(path):
    """--prompt-cache: the file of a whole context."""
    file = kit.folder() / "session"

    def complete(policy, *args):
        done = kit.run("llama-completion",
                       ["-m", path, "-p", "The capital of France is", "-n", 10, "--temp", 0, "-c", 1024, "-no-cnv",
                        "-t", kit.threads, "--no-warmup", *args], env={"QUIRE_KV": policy} if policy else None)
        return done.out, done.err

    complete("r8", "--prompt-cache", file)
    targets = [("16 layers", "r8", ["-ngl", 16]), ("-dev none", "r8", ["-dev", "none"])]
    if not kit.quick:
        targets += [("r8", "r8", []), ("-ngl 0", "r8", ["-ngl", 0, "-fa", "on"]), ("no policy", None, [])]
    for target, policy, args in targets:
        out, err = complete(policy, "--prompt-cache", file, "--prompt-cache-ro", *args)
        expect("loaded a session" in err, f"session of r8, {target}: taken", err[-600:])
        expect(out.startswith("The capital of France is Paris."), f"session of r8, {target}: goes on from it", json.dumps(out))


def run():
    smol = kit.model("smollm2-135m")
    kit.part(layers, smol)
    kit.part(containers, smol)
    kit.part(calibrated, smol)
    kit.part(damage, smol)
    kit.part(session, smol)


kit.main(run)
