#!/bin/sh
# Installs what a service needs into an environment: install_packages.sh SOURCE ENVIRONMENT EXTRAS [TORCH_INDEX_URL [VERSIONS]]
#
# Of SOURCE only pyproject.toml and constraints.txt matter; EXTRAS are its optional dependencies, separated by commas. VERSIONS is a
# file in SOURCE with versions that take the place of those that constraints.txt and pyproject.toml name.
# draftwire itself is installed by install_wheel.sh, so that a change of the code does not repeat these gigabytes. The
# environment has no pip of its own.
set -eu
source=$1
environment=$2
extras=$3
torch_index_url=${4:-}
versions=${5:+$source/$5}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
python3 -m venv --without-pip "$environment"

install() {
  "$tools/venv/bin/python" -m pip --python "$environment/bin/python" install --quiet --no-cache-dir \
    --constraint "$tools/constraints.txt" "$@"
}

python3 - "$source" "$extras" "$tools" $versions <<'PYTHON'
import re
import sys
import tomllib
from pathlib import Path

source, extras, tools, *files = sys.argv[1:]
with open(f"{source}/pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
wanted = list(project["dependencies"])
for extra in extras.split(","):
    wanted += project["optional-dependencies"][extra]


def name(requirement):
    return re.match(r"[\w.-]*", requirement)[0].lower().replace("_", "-")


other = {name(line): line for each in files for line in Path(each).read_text().splitlines() if name(line)}
pinned = [line for line in Path(source, "constraints.txt").read_text().splitlines() if name(line) not in other]
Path(tools, "constraints.txt").write_text("\n".join([*pinned, *other.values(), ""]))
Path(tools, "requirements.txt").write_text("\n".join([*(other.get(name(each), each) for each in wanted), ""]))
PYTHON

# torch comes first and alone, so that its index serves torch and nothing else.
case ",$extras," in
  *,serve,*) install --no-deps ${torch_index_url:+--index-url "$torch_index_url"} torch ;;
esac

install --requirement "$tools/requirements.txt"

# Torch's own tests and its C++ headers, 190 MB that no program here reads.
for torch in "$environment"/lib/python*/site-packages/torch; do
  rm -rf "$torch"/test "$torch"/bin/test_* "$torch"/include
done
