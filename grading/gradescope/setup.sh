#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image: Python, bubblewrap, libseccomp, and the pinned packages.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
course=$(cd "$(dirname "$0")" && pwd)/course

able() { "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
found() { for python in python3 python3.13 python3.12 python3.11; do able $python && echo $python && return; done; false; }
if ! command -v bwrap >/dev/null || ! ldconfig -p | grep -q libseccomp.so.2 || ! found >/dev/null; then
  apt-get update -q
  apt-get install -qy bubblewrap libseccomp2
  found >/dev/null || apt-get install -qy python3.12 python3.12-venv || apt-get install -qy python3.11 python3.11-venv
fi
"$(found)" -m venv "$root/venv"
# The CPU's torch: a fifth of the size of CUDA's.
"$root/venv/bin/python" -m pip install -q --extra-index-url "${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}" \
  -r "$(dirname "$0")/requirements.txt"
echo "$course" >"$("$root/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/course.pth"
