# SPDX-License-Identifier: MIT
"""Of connector_parts.py: settings, digests, identities, and what is refused at the start."""
import os
import time
from pathlib import Path
from types import SimpleNamespace

from checks import Checks
from quire_vllm import digests, identity, settings
from quire_vllm.connector import check

ok = Checks()


def secret(folder, name="tenant.key", data=bytes(range(32)), mode=0o600):
    path = Path(folder) / name
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def check_settings(folder):
    key = secret(folder)
    read = settings.read
    given = read({"directory": "d", "disk_bytes": "64G", "secret_file": key, "remote": "[::1]:7000"})
    ok((given.disk_bytes, given.remote_tier().host, given.remote_tier().port, given.secret) == (64 << 30, "::1", 7000, bytes(range(32))),
       "sizes with a letter, addresses in brackets, secrets")
    ok("00010203" not in repr(given) and repr(bytes(range(32))) not in repr(given), "the secret is not in what is printed")
    ok(read({"directory": "d", "secret_file": secret(folder, "hex", bytes(range(32)).hex().encode() + b"\n")}).secret == bytes(range(32)),
       "a secret in hex digits")
    for extra, what, part in (
            ({"secret_file": key}, "neither directory nor remote", "a directory, a remote, or both"),
            ({"directory": "d"}, "no secret", "secret_file"),
            ({"directory": "d", "secret_file": secret(folder, "open", mode=0o644)}, "a secret that others can read", "chmod 600"),
            ({"directory": "d", "secret_file": secret(folder, "loose", mode=0o602)}, "a secret that others can change", "chmod 600"),
            ({"directory": "d", "secret_file": secret(folder, "short", b"x" * 31)}, "a secret of 31 bytes", "32 bytes or 64 hex"),
            ({"directory": "d", "secret_file": str(Path(folder) / "none")}, "a secret that is not there", "No such file"),
            ({"directory": "d", "secret_file": key, "dir": "x"}, "an unknown setting", "'dir'"),
            ({"directory": 3, "secret_file": key}, "a directory that is a number", "must be a text"),
            ({"directory": "d", "secret_file": key, "load_ms": True}, "a time that is true", "whole number"),
            ({"directory": "d", "secret_file": key, "load_ms": 2**32}, "a time beyond what the store takes", "not below 2^32"),
            ({"directory": "d", "secret_file": key, "lookup_ms": 2**32}, "the same for look-ups", "not below 2^32"),
            ({"directory": "d", "secret_file": key, "load_ms": 0}, "no time to load", "less than 1"),
            ({"directory": "d", "secret_file": key, "disk_bytes": "64X"}, "a size that is none", "K, M, G or T"),
            ({"remote": "a:b:c", "secret_file": key}, "an address that is none", "HOST:PORT"),
            ({"directory": "d", "secret_file": key, "tls": 1}, "a flag that is a number", "true or false")):
        ok.raises(lambda: read(extra), what, part)


def check_digests(folder):
    os.environ["QUIRE_CACHE"] = str(Path(folder) / "cache")
    file = Path(folder) / "weights.safetensors"
    file.write_bytes(b"a" * 100000)
    os.utime(file, (1, 1))
    time.sleep(3.1)  # a file that has just changed is read again each time
    import hashlib
    want = hashlib.sha256(file.read_bytes()).hexdigest()
    ok(digests.of_file(str(file)) == want, "the digest is the SHA-256 of the contents")
    record = Path(folder) / "cache/digests"
    ok(want in record.read_text() and record.stat().st_mode & 0o777 == 0o600, "it is remembered in a file of mode 0600")
    planted = record.read_text().replace(want, "0" * 64)
    record.write_text(planted)
    ok(digests.of_file(str(file)) == want, "a damaged record is not used")
    line = "1" * 64 + digests._identity(file.stat())
    record.write_text(digests._HEAD + line + digests._check(line) + "\n")
    ok(digests.of_file(str(file)) == "1" * 64, "a whole record is used without reading the file")
    record.chmod(0o622)
    ok(digests.of_file(str(file)) == want, "a record that others can write to is not used")
    tool = os.environ.get("QUIRE_TOOL")
    if tool:  # the same file of records serves both
        record.unlink(missing_ok=True)
        digests.of_file(str(file))
        ok(want in record.read_text(), "records of the connector have the form of quire store's")


class HF:
    def __init__(self, **members):
        self.members = members

    def to_dict(self):
        return dict(self.members, _name_or_path="/somewhere", transformers_version="1")


def config(hf=None, model=None, **more):
    hf = HF(rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layers=3) if hf is None else hf
    members = dict(hf_config=hf, dtype="bfloat16", quantization=None, model_impl="auto", disable_sliding_window=False, max_model_len=4096,
                   model=str(model), revision=None, trust_remote_code=False, model_weights="", code_revision=None)
    load = dict(load_format="auto", download_dir=None, model_loader_extra_config={}, ignore_patterns=["original/**/*"])
    load.update({name: more.pop(name) for name in list(more) if name in load})
    members.update(more)
    return SimpleNamespace(model_config=SimpleNamespace(**members), cache_config=SimpleNamespace(cache_dtype="auto"),
                           load_config=SimpleNamespace(**load))


def check_identity(folder):
    def text(version="0.32.0", device="cpu", **members):
        return identity.model_text(config(**members), version, device)
    base = text()
    for what, other in (("vLLM's version", text(version="0.33.0")), ("the device", text(device="cuda")), ("the dtype", text(dtype="float16")),
                        ("the quantization", text(quantization="awq")),
                        ("the format of weights", text(load_format="pt")), ("the revision of code", text(code_revision="1")),
                        ("what the loader is told", text(model_loader_extra_config={"a": 1})),
                        ("which files are left out", text(ignore_patterns=[])),
                        ("RoPE's base", text(hf=HF(rope_parameters={"rope_type": "default", "rope_theta": 5e5}, layers=3))),
                        ("an override of the configuration", text(hf=HF(rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layers=2)))):
        ok(other != base, f"{what} is part of the identity")
    moved = HF(rope_parameters={"rope_type": "default", "rope_theta": 1e4}, layers=3)
    moved.to_dict = lambda: dict(moved.members, _name_or_path="/elsewhere", transformers_version="2")
    ok(text(hf=moved) == base, "where the model lies is not part of the identity")
    ok(text(max_model_len=8192) == base, "the longest context is not part of it with plain RoPE")
    for kind in ("dynamic", "longrope"):
        hf = HF(rope_scaling={"type": kind, "factor": 2.0})
        ok(text(hf=hf) != text(hf=hf, max_model_len=8192), f"the longest context is part of it with RoPE of the kind {kind}")
    master = bytes(range(32))
    salts = [None, "", "a", "b", "0", "1", "aa", "\udc80"]
    ok(len({identity.tenant_secret(master, s) for s in salts}) == len(salts), "each cache_salt has a secret of its own, and none has another")
    ok(identity.tenant_secret(bytes(32), "a") != identity.tenant_secret(master, "a"), "secrets of salts depend on the server's secret")
    ok("geheim" not in identity.tenant_name(master, "geheim"), "the name for operators does not tell the salt")
    model = Path(folder) / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    one = identity.weights_digest(config(model=model))
    (model / "model.safetensors").write_bytes(b"weightz")
    ok(identity.weights_digest(config(model=model)) != one, "one changed byte of the weights is another digest")
    (model / "model.safetensors").write_bytes(b"weights")
    ok(identity.weights_digest(config(model=model)) == one, "the same bytes have the same digest")
    (model / "model-2.safetensors").write_bytes(b"more")
    ok(identity.weights_digest(config(model=model)) != one, "a file of weights more is another digest")
    empty = Path(folder) / "empty"
    empty.mkdir()
    ok.raises(lambda: identity.weights_digest(config(model=empty)), "a model without weights", "no files of weights")
    ok.raises(lambda: identity.weights_digest(config(model="nobody/nothing")), "a model that is not on this machine", "not found on this machine")
    for kind in ("dummy", "tensorizer", "sharded_state", "runai_streamer_sharded", "ipc_cache", "modelexpress", "of a plug-in"):
        ok.raises(lambda: identity.weights_digest(config(model=model, load_format=kind)), f"weights of load_format {kind}", f"load_format {kind} ")
    for kind in ("auto", "hf", "safetensors", "pt", "npcache", "mistral", "fastsafetensors", "instanttensor", "runai_streamer"):
        ok(len(identity.weights_digest(config(model=model, load_format=kind))) == 64, f"weights of load_format {kind} have a digest")
    for names, is_elsewhere in (({"AutoModel": "code.Model"}, False), ({"AutoModel": ["a.B", "some/one--code.Model"]}, True)):
        code = config(hf=HF(auto_map=names), model=model, trust_remote_code=True)
        if is_elsewhere:
            ok.raises(lambda: identity.weights_digest(code), "code of another repository", "auto_map")
        else:
            identity.weights_digest(code)


def check_start():
    def start(policy="recompute", spec=None, **parallel):
        return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy), parallel_config=SimpleNamespace(**parallel),
                               speculative_config=spec and SimpleNamespace(method=spec))
    check(start())
    check(start(spec="ngram"))
    ok.raises(lambda: check(start(policy="fail")), "kv_load_failure_policy fail", '"kv_load_failure_policy": "recompute"')
    ok.raises(lambda: check(start(spec="eagle")), "a draft model", "ngram has none")
    ok.raises(lambda: check(start(pipeline_parallel_size=2)), "pipeline parallel", "pipeline_parallel_size")
