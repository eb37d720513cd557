#!/bin/sh
# What `make setup` does: a virtual environment, and the pinned packages in it.
#
#   PYTHON         the interpreter, 3.11 or newer (python3)
#   VENV           where the environment goes (.venv)
#   TORCH_INDEX_URL  take torch from this index, for example PyTorch's CPU-only one
#
# Each step says what it does before it begins. What pip says goes into VENV/install.log; its end is shown on failure.
set -eu
python=${PYTHON:-python3} venv=${VENV:-.venv} index=${TORCH_INDEX_URL:-}
log=$venv/install.log

fail() { echo "$1" >&2; exit 1; }

# step WORDS COMMAND...: run it with its output in the log, a dot every two seconds if somebody is watching.
step() {
  printf '  %s ' "$1"
  shift
  began=$(date +%s)
  "$@" >>"$log" 2>&1 </dev/null &
  child=$!
  trap 'kill $child 2>/dev/null; echo; exit 130' INT TERM
  while [ -t 1 ] && kill -0 $child 2>/dev/null; do printf .; sleep 2; done
  status=0
  wait $child || status=$?
  trap - INT TERM
  if [ $status -ne 0 ]; then
    echo " failed. The end of $log:" >&2
    tail -n 15 "$log" | sed 's/^/    /' >&2
    exit 1
  fi
  echo " $(($(date +%s) - began)) s"
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "These labs need Python 3.11 or newer, and $python is older: run 'make setup PYTHON=python3.12' with one you have."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$python cannot make virtual environments: install its venv module (Debian, Ubuntu: apt install python3-venv)."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
pip() { "$venv/bin/python" -m pip install "$@"; }
torch=$(grep '^torch==' requirements.lock)

echo "Setting up $venv: 1 to 4 minutes, most of it the download, and 1 to 6 GB of disk, most of it torch's."
mkdir -p "$venv"
echo "--- $(date -u '+%Y-%m-%d %H:%M UTC')" >>"$log"
test -x "$venv/bin/python" || step "1 of 4: a virtual environment" "$python" -m venv "$venv"
if [ -n "$index" ]; then
  step "2 of 4: $torch from $index" pip --index-url "$index" "$torch"
else
  step "2 of 4: $torch (on Linux with NVIDIA's libraries; see README for the smaller CPU build)" \
    pip -c requirements.lock "$torch"
fi
step "3 of 4: all other packages" pip -r requirements.lock
step "4 of 4: the labs themselves" pip --no-deps -e .
echo "Ready: $venv/bin/lab --help, or 'source $venv/bin/activate' and then plain 'lab'."
