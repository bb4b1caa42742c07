#!/bin/sh
# The steps that make what is in the image: build.sh SOURCE TARGET puts Parley with what it needs on Kubernetes into TARGET, a virtual
# environment, with a list of its parts in sbom.cdx.json. The Dockerfile runs them, and tests/processes/test_image.py does where no base image can
# be had. Of packages of others only files with the hashes of requirements.txt and build-requirements.txt are installed (`make image-requirements`).
set -eu
source=$1
target=$2
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
install() { # install PYTHON OPTION...
  python=$1
  shift
  "$python" -m pip --disable-pip-version-check --no-cache-dir --quiet install --only-binary :all: "$@"
}
python3 -m venv "$tools/environment"
install "$tools/environment/bin/python" --require-hashes --requirement "$source/deploy/image/build-requirements.txt"
(cd "$source" && "$tools/environment/bin/python" -m hatchling build --target wheel --directory "$tools/wheel") >&2
python3 -m venv "$target"
install "$target/bin/python" --require-hashes --requirement "$source/deploy/image/requirements.txt"
install "$target/bin/python" --no-index --no-deps "$tools"/wheel/*.whl
# Nothing is installed later. Files are compiled now, because the root of a container is read-only.
"$target/bin/python" -m pip --disable-pip-version-check --quiet uninstall --yes pip setuptools
"$target/bin/python" "$source/deploy/image/sbom.py" "$target/sbom.cdx.json"
"$target/bin/python" -m compileall -q "$target/lib"
