# What the Dockerfile does in each party's stage, with the environment /opt/maskedlark.
#
#   install.sh environment          make it empty, and the tools that fill it, which no image keeps
#   install.sh packages EXTRA,...   install the packages that pyproject.toml names, without their tests
#   install.sh party COMMAND        install this folder, without the other parties' commands, and write the bill of materials
#
# Everything from an index is a file whose hash constraints.txt names, and none builds itself: what it would build with has no hash.
set -eu
environment=/opt/maskedlark
tools=/opt/tools
hashed='--require-hashes --only-binary :all:'
case $1 in
environment)
    python -m venv "$tools"
    python -m venv --without-pip "$environment"
    sed -n '/^pip==/,/[^\\]$/p' constraints.txt > pip.txt
    "$tools/bin/pip" install --no-deps $hashed --requirement pip.txt
    "$tools/bin/pip" install $hashed --constraint constraints.txt setuptools ;;
packages)
    python requirements.py "$2" > needed.txt
    "$tools/bin/pip" --python "$environment" install $hashed --constraint constraints.txt --requirement needed.txt
    find "$environment/lib" -type d \( -name tests -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} + ;;
party)
    sed -i '/^dynamic = /d' pyproject.toml  # what an index shows, which setup.py writes, is not here
    "$tools/bin/pip" wheel --no-index --no-deps --no-build-isolation --wheel-dir wheels .
    "$tools/bin/pip" --python "$environment" install --no-index --no-deps wheels/*.whl
    for command in lark lark-helper adserver browser-sim; do [ "$command" = "$2" ] || rm -f "$environment/bin/$command"; done
    python bill_of_materials.py > "$environment/bill-of-materials.cdx.json" ;;
esac
