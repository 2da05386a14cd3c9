#!/bin/sh
# The paper benchmark on a GPU, at two sizes, within three minutes; one JSON file each goes into the folder.
#   sh benchmarks/gpu.sh FOLDER        (PYTHON=... for another interpreter)
set -eu
folder=${1:?name the folder for the JSON files}
mkdir -p "$folder"
cd "$(dirname "$0")/.." || exit
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
for shape in smollm2-135m 7b; do
    timeout 85 "${PYTHON:-python3}" -m benchmarks.paper --json --rounds 3 --shape "$shape" --device cuda --dtype bfloat16 \
        > "$folder/paper-$shape.json" || echo "no figures for $shape" >&2
done
