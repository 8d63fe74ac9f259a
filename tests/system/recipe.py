# SPDX-License-Identifier: MIT
"""The conda recipe and the Homebrew formula that scripts/release has filled in: form, version and sum. Neither is built here.

    tests/system/recipe.py FOLDER
"""
import hashlib
import re
import sys
from pathlib import Path

import yaml

# The parts of a recipe (schema version 1) that this one uses.
TYPES = {"schema_version": int, "context": dict, "package": dict, "source": dict, "build": dict, "requirements": dict, "tests": list, "about": dict}


def main():
    folder, wrong = Path(sys.argv[1]), []
    archive, = folder.glob("quire-*.tar.xz")
    version, own = archive.name[len("quire-"):-len(".tar.xz")], hashlib.sha256(archive.read_bytes()).hexdigest()
    recipe = yaml.safe_load((folder / "conda/recipe.yaml").read_text())
    if {k: type(v) for k, v in recipe.items()} != TYPES or recipe["schema_version"] != 1:
        wrong.append(f"recipe.yaml: its parts are {sorted(recipe)}")
    if (recipe["context"]["version"], recipe["source"]["sha256"]) != (version, own):
        wrong.append("recipe.yaml: version or sum")
    formula = (folder / "homebrew/quire.rb").read_text()
    if re.findall(r'^  (url|sha256) "(.*)"$', formula, re.M) != [("url", recipe["source"]["url"].replace("${{ version }}", version)), ("sha256", own)]:
        wrong.append("quire.rb: address or sum")
    for option in set(re.findall(r"-D(QUIRE_\w+)=", formula + "\n".join(recipe["build"]["script"]))):
        if not any(re.search(rf"\b{option}\b", p.read_text()) for p in [Path(__file__).resolve().parents[2] / "CMakeLists.txt"]):
            wrong.append(f"there is no option {option}")
    print("\n".join(wrong) or f"recipe.yaml and quire.rb: {version}, {own[:12]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
