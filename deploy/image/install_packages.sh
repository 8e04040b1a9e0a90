#!/bin/sh
# Installs what a service needs into an environment: install_packages.sh SOURCE ENVIRONMENT EXTRAS [TORCH_INDEX_URL]
#
# Of SOURCE only pyproject.toml and constraints.txt matter; EXTRAS are its optional dependencies, separated by commas.
# draftwire itself is installed by install_wheel.sh, so that a change of the code does not repeat these gigabytes. The
# environment has no pip of its own.
set -eu
source=$1
environment=$2
extras=$3
torch_index_url=${4:-}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
python3 -m venv --without-pip "$environment"

install() {
  "$tools/venv/bin/python" -m pip --python "$environment/bin/python" install --quiet --no-cache-dir \
    --constraint "$source/constraints.txt" "$@"
}

# torch comes first and alone, so that its index serves torch and nothing else.
case ",$extras," in
  *,serve,*) install --no-deps ${torch_index_url:+--index-url "$torch_index_url"} torch ;;
esac

python3 - "$source/pyproject.toml" "$extras" > "$tools/requirements.txt" <<'PYTHON'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[2].split(","):
    wanted += project["optional-dependencies"][extra]
print("\n".join(wanted))
PYTHON
install --requirement "$tools/requirements.txt"

# Torch's own tests and its C++ headers, 190 MB that no program here reads.
for torch in "$environment"/lib/python*/site-packages/torch; do
  rm -rf "$torch"/test "$torch"/bin/test_* "$torch"/include
done
