#!/usr/bin/env bash
# The core's tests on the other Pythons that are here with the newest versions of everything, and on
# the oldest with the lowest that pyproject.toml allows; each in a venv of its own in .versions.
# Installs with uv where it is found, else with pip. Arguments go to pytest.
cd "$(dirname "$0")/.." && mkdir -p .versions && export OMP_NUM_THREADS=1
core=(tests/*/test_{priors_and_likelihoods,networks,dense,guides,objective,runner}.py
  tests/*/test_{simplify,recorded_steps,own_parts,xla_steps,metrics,export,frames,estimators}.py)
wanted='.[data,dev,explore,flows,neighbors,parallel,xla]'
oldest=$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml) said=()

python_of() { # the interpreter of a version such as 3.12, if there is one
  for each in "python$1" "$(pyenv root 2>/dev/null)/versions/$1".*/bin/python; do
    "$each" -c '' 2>/dev/null && echo "$each" && return
  done
}

try() { # version, name of the venv, constraints or "", arguments of pytest
  local venv=.versions/$2 python install
  python=$(python_of "$1")
  [ -n "$python" ] || { said+=("SKIPPED $venv: no Python $1 found") && return; }
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  install=("$venv/bin/python" -m pip install)
  if command -v uv >/dev/null; then install=(uv pip install --python "$venv/bin/python"); fi
  "${install[@]}" --quiet --upgrade ${3:+--constraint "$3"} --editable "$wanted" \
    --editable "./packages/elbocheck[psis]" &&
    "$venv/bin/python" -m pytest -q "${@:4}" "${core[@]}" &&
    said+=("PASSED  $venv") || said+=("FAILED  $venv")
}

"$(python_of "$oldest")" - >.versions/lowest.txt <<'PYTHON'
import re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
for needed in (project["dependencies"], *project["optional-dependencies"].values()):
    print(*(re.sub(r">=([\w.]+).*", r"==\1", each) for each in needed), sep="\n")
PYTHON
for version in 3.12 3.13 3.14; do try "$version" "$version" "" "$@"; done
# Old releases warn of each other, old PyTorch of how it loads its own programs, and scikit-learn
# before 1.9 of frames of polars, whose names it does not read.
try "$oldest" "$oldest-lowest" .versions/lowest.txt -W ignore::DeprecationWarning \
  -W "ignore:The given buffer is not" -W "ignore:X does not have valid feature names" "$@"
printf '%s\n' "${said[@]}"
[[ ${said[*]} != *FAILED* ]]
