#!/bin/bash
# setup.sh [ARGUMENTS OF soak.py]: install the libraries of the jobs beside the PyTorch of ../setup.sh, and look into each job.
#   testdata/jobs/setup.sh build/gputrace --runs 100
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${JOBS_VENV:-$here/../.work/jobs}
python=$("$here/../setup.sh" --print python)
site=$("$here/../setup.sh" --print site)
if [ ! -e "$venv/done" ]; then
    "$python" -m venv "$venv"
    echo "$site" >"$venv/lib/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/torch.pth"
    "$venv/bin/pip" install -q transformers==5.23.0 psutil pyyaml packaging tqdm requests lightning-utilities==0.15.3
    "$venv/bin/pip" install -q --no-deps accelerate==1.15.0 timm==1.0.31 diffusers==0.42.1 torchmetrics==1.9.0 pytorch-lightning==2.6.6 importlib_metadata aiohttp mosaicml==0.32.1
    touch "$venv/done"
fi
STANDIN_LIB=$("$here/../setup.sh" --print standin)
export STANDIN_LIB STANDIN_RUN="$here/../standin/standin-run"
exec "$venv/bin/python" "$here/soak.py" "$@"
