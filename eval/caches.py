# SPDX-License-Identifier: MIT
"""The caches that are compared: stock llama.cpp's types, and policies of the device."""
import json
import subprocess


class Cache:
    """One way to keep K and V. name: "stock q8_0", or a policy."""

    def __init__(self, name):
        self.name = name
        self.stock = name.startswith("stock ")
        pair = name.removeprefix("stock ").partition(",")[0].split("/")
        self.k, self.v = pair[0], pair[-1]
        self.calibrated = self.k.startswith("c:")
        self.base = "stock f16" if self.stock else "f16"  # what it is compared with

    @property
    def family(self):
        """Whose format it is: llama.cpp's, MLX's or Quire's own."""
        if self.stock or self.k.startswith(("q", "iq")):
            return "llama.cpp"
        if self.k[0] == self.v[0] == "a" or self.name.startswith("k"):
            return "MLX"
        return "Quire, with a profile" if self.calibrated else "Quire"

    def arguments(self):
        types = (self.k, self.v) if self.stock else ("f16", "f16")
        return ["-fa", "on", "-ctk", types[0], "-ctv", types[1]]

    def environment(self, profile=None):
        if self.stock:
            return None
        env = {} if self.name == "f16" else {"QUIRE_KV": self.name}
        if self.calibrated:
            env["QUIRE_PROFILE"] = str(profile)
        return env


BASES = ["f16", "stock f16"]

# Figures over much text.
HEADLINE = ["stock q8_0", "stock q5_1", "stock q4_0",
            "a8g64", "k8v4", "a4g64",
            "r8", "r8/r4", "r6/r4", "r5/r4", "r5/r3", "r4",
            "c:r8/r8", "c:r6/r4", "c:r5/r4", "c:r4/r4", "c:r4/r3", "c:r3/r3", "c:r3/r2"]
# The headline of a larger model, where each takes several minutes.
LARGE = ["stock q8_0", "stock q5_1", "stock q4_0", "k8v4", "a4g64", "r8", "r6/r4", "r5/r3", "r4", "c:r8/r8", "c:r5/r4", "c:r4/r3"]
# The others, over less: every type of llama.cpp, every format of MLX that head size 64 has, what else Quire can be.
MORE = ["stock q5_0", "stock q4_1", "stock iq4_nl", "stock q8_0/q4_0",
        "a8g32", "a6g64", "a6g32", "a5g64", "a5g32", "a4g32", "a3g64", "a3g32", "a2g64", "a2g32",
        "h:a4g64", "h:a4g32", "q4_0", "tq4", "tq3", "tq2", "tv4", "tv3", "tv2", "tv3/tv4",
        "r6", "r5", "r4/r3", "r3", "r3/r2", "a2g64/r2", "r2", "c:r6/r6", "c:r5/r3", "c:r2/r2"]
# Window layers coded as stock codes them, where Quire keeps f16 unless told.
WINDOWED = [*(f"{c},window={c}" for c in ("h:a8g128", "r8", "r6/r4", "r5/r3", "r4", "c:r8/r8", "c:r5/r4", "c:r4/r3")),
            "c:r8/r8,window=r8", "c:r5/r4,window=r6/r4", "c:r4/r3,window=r5/r3"]
# Long contexts.
FEW = ["stock q8_0", "stock q4_0", "a4g64", "r8", "r6/r4", "c:r5/r4", "c:r4/r3"]
# Needles, texts that part: every preset, and stock types beside them.
TOLD = ["stock q8_0", "stock q4_0", "a4g64", "r8", "r6/r4", "r5/r3", "c:r8/r8", "c:r5/r4", "c:r4/r3"]

# Where a cache takes ten minutes.
FEWEST = ["stock q8_0", "stock q4_0", "a4g64", "r6/r4", "c:r4/r3"]

# Enough to see that no codec family got worse.
SHORT = ["stock q8_0", "stock q5_1", "stock q4_0", "a4g64", "r8", "r6/r4", "r5/r3", "r4", "c:r5/r4", "c:r4/r3"]


def codecs(quire, *arguments):
    """Objects that `quire codecs` prints."""
    rows = subprocess.run([quire, "codecs", "--json", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in rows.splitlines()]


def presets(quire):
    return codecs(quire, "--presets")


def bits(quire, k, v, d):
    """Bits per value of a pair of codecs at a head size, everything counted."""
    for preset in presets(quire):
        if k == preset["name"]:
            k, v = preset["without"].split("/")
    sizes = [codec["bits"] for codec in codecs(quire, k, v)]
    return sum(s[str(d)] for s in (sizes[0], sizes[-1])) / 2
