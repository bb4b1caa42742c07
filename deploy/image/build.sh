#!/bin/sh
# The steps that make what is in the image: build.sh SOURCE TARGET puts Parley with what it needs on Kubernetes into TARGET, a virtual
# environment. The Dockerfile runs them, and tests/processes/test_image.py does where no base image can be had.
set -eu
source=$1
target=$2
python3 -m venv "$target"
"$target/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --quiet \
  --constraint "$source/constraints.txt" "$source[kubernetes,page,plugins]"
# Nothing is installed later. Files are compiled now, because the root of a container is read-only.
"$target/bin/python" -m pip --disable-pip-version-check --quiet uninstall --yes pip setuptools
"$target/bin/python" -m compileall -q "$target/lib"
