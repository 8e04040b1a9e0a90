#!/bin/sh
# The minutes that a GPU is at hand: OUT=DIRECTORY sh scripts/first_gpu.sh
#
# Asks the questions at the head of the queue (benchmarks/gpu/questions) for MINUTES, 14 by default. DEVICE=cpu rehearses it.
#
# Needs Python with torch and transformers, and no network. Answers are printed, one line of JSON each, and kept as results in
# $OUT/results, also if a later question fails or time runs out: commit them in benchmarks/results.
#
# Before, where there is a network: python scripts/release/service_wheels.py wheels --python 3.12    (the Python of this machine)
# Questions about services fail without these wheels, or packages that are installed.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-first-gpu}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD:$PWD/sdk"

nvidia-smi
command -v gcc
python3 -c 'import sys, torch, transformers; print(sys.version, torch.__version__, transformers.__version__)'
if [ -d wheels ]; then
  packages=$(mktemp -d)
  for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" "$packages"; done
  export PYTHONPATH="$PYTHONPATH:$packages"
fi
python3 -m benchmarks.gpu.questions --device "${DEVICE:-cuda}" --minutes "${MINUTES:-14}" --results "$OUT/results" > "$OUT/answers.jsonl"
status=$?
cat "$OUT/answers.jsonl"
exit $status
