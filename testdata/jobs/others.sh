#!/bin/bash
# others.sh GPUTRACE [JOB...]: record each job of others/ for ten seconds, leaking and not, and print the verdicts.
#   testdata/jobs/others.sh build/gputrace gcn ddpm
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
gputrace=$(realpath "$1")
shift
venv=${OTHERS_VENV:-$here/../.work/others}
python=$("$here/../setup.sh" --print python)
site=$("$here/../setup.sh" --print site)
if [ ! -e "$venv/done" ]; then
    "$python" -m venv "$venv"
    echo "$site" >"$venv/lib/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/torch.pth"
    "$venv/bin/pip" install -q numpy transformers==5.23.0 psutil pyyaml requests aiohttp scipy scikit-learn tqdm einops gymnasium cloudpickle pandas \
        matplotlib tabulate jaxtyping linear-operator opt-einsum pyro-api huggingface_hub safetensors xxhash
    "$venv/bin/pip" install -q --no-deps accelerate==1.15.0 timm==1.0.31 peft==0.21.2 stable_baselines3==2.9.2 gpytorch==1.15.2 x-transformers==2.31.10 \
        denoising-diffusion-pytorch==2.3.4 ema-pytorch==0.8.3 skorch==1.4.0 torch-geometric==2.8.1 pyro-ppl==1.9.2 segmentation_models_pytorch==0.6.0
    touch "$venv/done"
fi
STANDIN_LIB=$("$here/../setup.sh" --print standin)
export STANDIN_LIB OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
[ $# -gt 0 ] || set -- "$here"/others/*.py
for job; do
    job=$(basename "$job" .py)
    for mode in leak ''; do
        "$here/../standin/standin-run" "$venv/bin/python" "$here/others/$job.py" $mode >"$out/job.log" 2>&1 &
        until [ "$(grep -c 'gpu_driver\|libcuda.so' "/proc/$!/maps" 2>/dev/null || true)" != 0 ]; do sleep 0.5; done
        sleep 5
        "$gputrace" -p $! -d 10s -o "$out/$job$mode" >"$out/log" 2>&1 || true
        kill $! || true
        wait $! 2>/dev/null || true
        echo "== $job ${mode:-clean}"
        grep -A 6 '^GROWING\|^STEADY\|^UNKNOWN' "$out/log" || cat "$out/log" "$out/job.log"
    done
done
