#!/bin/sh
# The benchmarks that a GPU is for, at two sizes, within eight minutes; one JSON file each goes into the folder.
#   sh benchmarks/gpu.sh FOLDER        (PYTHON=... for another interpreter; docs/figures for the results page)
set -eu
folder=${1:?name the folder for the JSON files}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$(dirname "$0")/.." || exit
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

# measure SECONDS FILE BENCHMARK [OPTION ...]: what does not end in time, or fails, leaves no file
measure() {
    seconds=$1 file=$folder/gpu-$2.json name=$3
    shift 3
    timeout "$seconds" "${PYTHON:-python3}" -m benchmarks "$name" --json --device cuda --dtype bfloat16 "$@" \
        > "$file.part" && mv "$file.part" "$file" && return
    rm -f "$file.part"
    echo "no figures: $file" >&2
}

for shape in smollm2-135m 7b; do
    measure 85 "paper-$shape" paper --rounds 3 --shape "$shape"
    measure 75 "roofline-$shape" roofline --shape "$shape"
done
measure 120 attention attention
